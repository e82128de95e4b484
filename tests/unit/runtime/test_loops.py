"""Supervised loops."""

import asyncio

from libs.kernel.refusal import unreachable
from libs.runtime.loops import Supervisor
from libs.runtime.service import Every, Loop
from libs.telemetry.catalogue import LOOP_FAILURES


class Counted:
    """Something called again and again, that fails the first times."""

    def __init__(self, failures: list[Exception], until: int) -> None:
        self.failures = failures
        self.calls = 0
        self.until = until
        self.enough = asyncio.Event()

    async def verb(self) -> None:
        self.calls += 1
        if self.calls >= self.until:
            self.enough.set()
        if self.failures:
            raise self.failures.pop(0)


async def test_a_verb_is_repeated_through_failures_and_refusals() -> None:
    counted = Counted([RuntimeError("x"), unreachable("db")], 5)
    supervisor = Supervisor(first_backoff_ms=1, longest_backoff_ms=2)
    before = LOOP_FAILURES.labels("t.every")._value.get()
    supervisor.start("t", [Every(1, counted.verb, "every")])
    async with asyncio.timeout(5):
        await counted.enough.wait()
    await supervisor.stop()
    assert LOOP_FAILURES.labels("t.every")._value.get() == before + 2


async def test_a_loop_that_fails_or_ends_is_started_again() -> None:
    counted = Counted([RuntimeError("x")], 4)
    supervisor = Supervisor(first_backoff_ms=1, longest_backoff_ms=2)
    supervisor.start("t", [Loop("loop", counted.verb)])
    async with asyncio.timeout(5):
        await counted.enough.wait()
    await supervisor.stop()
    assert counted.calls >= 4


async def test_stop_cancels_and_waits_for_cleaning_up() -> None:
    entered, cleaned = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            entered.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    supervisor = Supervisor()
    supervisor.start("t", [Loop("loop", work)])
    async with asyncio.timeout(5):
        await entered.wait()
        await supervisor.stop()
    assert cleaned.is_set()
