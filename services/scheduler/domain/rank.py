"""Authoritative for the order of one tenant's tickets: class, priority, deadline, started runs, and age, as one number. Pure.

A ticket's rank is the moment since which it counts as waiting: when it came, or its deadline less an hour if that is
earlier, moved back by what its class, its priority and a started run are worth. Less goes first. Since all of it is fixed
when the ticket comes, a queue needs no sorting again; and since worth is time, whoever waits for longer than the difference
goes first: nobody starves.

Can go wrong: ranks of two processes' clocks compared. Only one leader compares, and it is the clock of who stored the ticket.
"""

from collections.abc import Mapping

from services.scheduler.domain.ticket import Key

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
INTERACTIVE, AUTOMATION, MIGRATION, APPROVAL_RESUME = 1, 2, 3, 4
"""runway.launch.v1.RunClass."""

CLASS_WORTH_MS: Mapping[int, int] = {INTERACTIVE: HOUR_MS, APPROVAL_RESUME: HOUR_MS // 2, MIGRATION: -HOUR_MS}
"""What a class is worth in waiting; others nothing."""
PRIORITY_WORTH_MS = MINUTE_MS
"""What a point of priority is worth in waiting."""
STARTED_WORTH_MS = 10 * MINUTE_MS
"""What it is worth that the run has begun: what is begun is ended before more is begun."""
DEADLINE_NEAR_MS = HOUR_MS
"""A ticket so near to its run's deadline counts as waiting since then."""

Place = tuple[int, Key]
"""Where a ticket stands among its tenant's: its rank, and its key where ranks are equal, so no order of arrival matters."""


def rank_ms(*, enqueued_ms: int, run_class: int, priority: int, deadline_ms: int, started: bool) -> int:
    """The moment since which a ticket counts as waiting."""
    since_ms = min(enqueued_ms, deadline_ms - DEADLINE_NEAR_MS) if deadline_ms else enqueued_ms
    worth_ms = CLASS_WORTH_MS.get(run_class, 0) + priority * PRIORITY_WORTH_MS
    return since_ms - worth_ms - (STARTED_WORTH_MS if started else 0)
