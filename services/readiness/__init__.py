"""Readiness: the authority for step states, joins, and what follows an ended attempt."""
