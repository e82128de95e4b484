"""Benchmarks: `make bench`. Everything is measured in one run, on one machine, on one PostgreSQL; figures are compared as ratios."""
