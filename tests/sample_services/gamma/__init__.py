"""A service that exists only in tests of migrations and databases."""
