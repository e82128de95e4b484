"""A raise that comes to a process that leads nothing: its loop waits like any other, and everything else goes on."""

import asyncio
from typing import Any, cast

import pytest

from libs.runtime.service import Loop
from libs.testkit.clocks import ManualClock
from services.scheduler.app.book import Book
from services.scheduler.app.claim_attempts import ClaimDesk
from services.scheduler.loops import loops
from services.scheduler.ports import Limits
from services.scheduler.settings import SchedulerSettings

NOBODY = cast(Any, None)
ENOUGH = 50


class Paused:
    """A process that was paused: it has not been told yet that its session is over, but knows when asked."""

    def __init__(self) -> None:
        self.asked = 0

    def alive(self) -> bool:
        self.asked += 1
        if self.asked > ENOUGH:  # ends a loop that nothing else can end
            raise AssertionError("the loop turns without end")
        return False


@pytest.mark.requirement("ops.drills")
async def test_a_raise_does_not_keep_a_process_busy_that_leads_nothing() -> None:
    paused = Paused()
    book = Book(ManualClock(), Limits(9_000, 60_000, 5_000, 60_000), paused.alive)
    desk = ClaimDesk(NOBODY, book)
    made = loops(NOBODY, NOBODY, book, desk, NOBODY, NOBODY, (b"", b""), SchedulerSettings(notice_interval_ms=60_000))
    [obey] = [loop for loop in made if isinstance(loop, Loop) and loop.name == "obey_gates"]
    book.raised.set()
    running = asyncio.create_task(obey.run())
    while not paused.asked and not running.done():
        await asyncio.sleep(0)
    assert not running.done(), running.exception()
    assert not book.raised.is_set()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
