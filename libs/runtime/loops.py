"""Authoritative for supervised loops: what a service does by itself, restarted with backoff when it fails, cancelled cleanly
at the end.

Can go wrong: a loop that dies silently. Every failure is logged and counted; a Refusal (the database is away) is logged
short, because it is expected and says all there is.
"""

import asyncio
import random
from collections.abc import Sequence

from libs.kernel.refusal import Refusal
from libs.runtime.service import Every, Loop
from libs.telemetry.catalogue import LOOP_FAILURES
from libs.telemetry.logs import get_logger

FIRST_BACKOFF_MS = 100
LONGEST_BACKOFF_MS = 5_000
log = get_logger(__name__)


class Supervisor:
    """The loops of one process."""

    def __init__(self, *, first_backoff_ms: int = FIRST_BACKOFF_MS, longest_backoff_ms: int = LONGEST_BACKOFF_MS) -> None:
        self._first_ms = first_backoff_ms
        self._longest_ms = longest_backoff_ms
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, owner: str, loops: Sequence[Loop | Every]) -> None:
        """Runs these until `stop`."""
        for loop in loops:
            name = f"{owner}.{loop.name}"
            work = self._again(loop, name) if isinstance(loop, Loop) else self._repeat(loop, name)
            self._tasks.append(asyncio.get_running_loop().create_task(work, name=name))

    async def stop(self) -> None:
        """Cancels all and waits until they are gone."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _again(self, loop: Loop, name: str) -> None:
        """Backoff starts over once a run lasted longer than the longest backoff."""
        clock = asyncio.get_running_loop().time
        backoff_ms = self._first_ms
        while True:
            began = clock()
            try:
                await loop.run()
                log.warning("a loop ended by itself; it is started again", loop=name)
            except Exception as error:
                _report(name, error)
            if (clock() - began) * 1000 > self._longest_ms:
                backoff_ms = self._first_ms
            await asyncio.sleep(_jittered_s(backoff_ms))
            backoff_ms = min(backoff_ms * 2, self._longest_ms)

    async def _repeat(self, every: Every, name: str) -> None:
        backoff_ms = 0
        while True:
            try:
                await every.verb()
                backoff_ms = 0
            except Exception as error:
                _report(name, error)
                backoff_ms = min(max(backoff_ms * 2, self._first_ms), self._longest_ms)
            await asyncio.sleep(every.interval_ms / 1000 if not backoff_ms else _jittered_s(max(backoff_ms, every.interval_ms)))


def _report(name: str, error: Exception) -> None:
    LOOP_FAILURES.labels(name).inc()
    if isinstance(error, Refusal):
        log.warning("a loop was refused; it tries again", loop=name, reason=error.reason.value, message=error.message)
    else:
        log.error("a loop failed; it tries again", loop=name, exc_info=error)


def _jittered_s(interval_ms: int) -> float:
    """So that replicas that failed together do not come back together."""
    return interval_ms * random.uniform(0.8, 1.2) / 1000  # noqa: S311 - spreads load, guards nothing
