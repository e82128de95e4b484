"""Services that exist only in tests of the libs beneath services."""
