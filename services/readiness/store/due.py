"""When this process has to look for steps whose time has come. Authoritative for nothing: the rows are.

Only times that are near are kept in mind, so that a step that waits for long costs no memory; what is due later, and what
another process noted, is found by looking now and then. Can go wrong: a wall clock that jumps. Looking now and then goes by the
monotonic one.
"""

import heapq
from collections.abc import Iterable

LOOK_EVERY_MS = 1_000
"""How often backoffs and timers that nobody here keeps in mind are looked for."""
NEAR_MS = 3 * LOOK_EVERY_MS


class DueSoon:
    """Times in milliseconds since the Unix epoch."""

    def __init__(self) -> None:
        self._near: list[int] = []
        self._now_ms = 0

    def __len__(self) -> int:
        return len(self._near)

    def note(self, times_ms: Iterable[int]) -> None:
        """After a commit that stored such times."""
        for at_ms in times_ms:
            if at_ms <= self._now_ms + NEAR_MS:
                heapq.heappush(self._near, at_ms)

    def look(self, now_ms: int, looked_before_ms: int) -> bool:
        """Whether something may be due."""
        self._now_ms = now_ms
        due = looked_before_ms >= LOOK_EVERY_MS
        while self._near and self._near[0] <= now_ms:
            heapq.heappop(self._near)
            due = True
        return due
