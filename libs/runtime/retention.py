"""Authoritative for when what belongs to a run may go: some time after its launch, once it is over.

Every service forgets its own part, by its own account of whether the run is over: launch's runs that are terminal, gates that
are closed, graphs that are finished. Ids begin with their time, so the oldest come first in every key.

Can go wrong: a run that is open for longer than the retention. It stays until it is over. What comes late about a forgotten run
finds no row, is asked of launch, which does not know it either, and is refused.
"""

from collections.abc import Awaitable, Callable
from uuid import UUID

from libs.kernel.clock import Clock
from libs.runtime.service import Every

Forget = Callable[[UUID, int], Awaitable[int]]
"""Drops at most so many runs with lesser ids that are over; how many there were."""

BATCH = 500
LONGEST_PAUSE_MS = 60_000


def oldest(at_ms: int) -> UUID:
    """Less than the id of any run launched from then on."""
    return UUID(int=max(at_ms, 0) << 80)


def interval_ms(keep_ms: int) -> int:
    """How often it is looked for what was kept for so long: a tenth of it, within a second and a minute."""
    return max(1_000, min(LONGEST_PAUSE_MS, keep_ms // 10))


def forgetting(forget: Forget, clock: Clock, retention_ms: int) -> Every:
    """The loop of a service."""

    async def run() -> None:
        while await forget(oldest(clock.now_ms() - retention_ms), BATCH) == BATCH:
            continue

    return Every(interval_ms(retention_ms), run, "forget_runs")
