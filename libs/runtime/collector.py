"""Authoritative for Python's cycle collector in a long-lived process.

Nearly everything here dies by reference counting, and what lives long (tickets, leases, caches) has no cycles; the collector's
defaults walk it again and again: a third of the services' processor time went there. It stays on, for the cycles that
exceptions and tasks leave behind, and looks more seldom.

Can go wrong: garbage in cycles that waits for its collection. Its amount is bounded by the first threshold, times the second.
"""

import gc

YOUNG = 50_000
"""Objects allocated and not freed, before the youngest are looked at."""


def calm() -> None:
    """Called once what the process starts with is there: that is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 100)
