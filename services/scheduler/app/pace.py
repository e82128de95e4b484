"""How fast tickets were granted here lately, by tenant and handler: the ground of an estimate. Memory of one process, bounded.

Authoritative for nothing. Can go wrong: a process that has just begun. The span told is what it has seen, not more.
"""

from collections import OrderedDict, deque

from libs.kernel.clock import Clock
from services.scheduler.domain.estimate import Pace

SPAN_MS = 300_000
GRAIN_MS = 5_000
QUEUES_MOST = 10_000

Queue = tuple[str, str]
"""Tenant and handler."""


class Paces:
    """Counts by `GRAIN_MS`, for `SPAN_MS`, of the queues that were granted from last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: OrderedDict[Queue, deque[list[int]]] = OrderedDict()

    def note(self, tenant: str, handler: str) -> None:
        """One was granted."""
        queue, grain = (tenant, handler), self._clock.monotonic_ms() // GRAIN_MS
        counts = self._counts.get(queue)
        if counts is None:
            counts = self._counts[queue] = deque(maxlen=SPAN_MS // GRAIN_MS)
            if len(self._counts) > QUEUES_MOST:
                self._counts.popitem(last=False)
        else:
            self._counts.move_to_end(queue)
        if counts and counts[-1][0] == grain:
            counts[-1][1] += 1
        else:
            counts.append([grain, 1])

    def of(self, tenant: str, handler: str) -> Pace | None:
        """What was granted within the span, and how long that is; None where it was nothing."""
        now_ms = self._clock.monotonic_ms()
        counts = [c for c in self._counts.get((tenant, handler), ()) if c[0] * GRAIN_MS > now_ms - SPAN_MS]
        if not counts:
            return None
        return Pace(sum(count for _, count in counts), max(GRAIN_MS, now_ms - counts[0][0] * GRAIN_MS))
