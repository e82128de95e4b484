"""`runway`: the command line, on the SDK only. stdout is data, progress and errors go to stderr."""
