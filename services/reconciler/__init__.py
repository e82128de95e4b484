"""Reconciler: the authority for cases, effects whose outcome is unknown, what was tried, who decides."""
