"""Who is about to lead speaks first, and reads then: whoever places a hold between the two hears of it, and waits for it."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from libs.pg import Database
from libs.testkit import ManualClock
from services.scheduler.app.hold_desk import HoldAsk, HoldDesk
from services.scheduler.app.obey_holds import Obedience
from services.scheduler.domain.holds import HoldKind, HoldMode, Holds
from services.scheduler.store.holds import HoldStore
from tests.store.scheduler.harness import Leader

ASK = HoldAsk(HoldKind.QUEUE, "a", "a test", "ann", dry_run=False)


async def nothing() -> None:
    return None


async def nobody(endings: object) -> None:
    raise AssertionError("no attempt is killed here")


class Interrupted(HoldStore):
    """A table that is read while, at that very moment, somebody does something else."""

    def __init__(self, db: Database, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__(db)
        self._meanwhile = meanwhile

    async def in_force(self) -> Holds:
        found = await super().in_force()
        await self._meanwhile()
        return found


@pytest.fixture
async def db(database: Callable[[str], Awaitable[str]]) -> AsyncIterator[Database]:
    opened = Database(await database("scheduler"), name="scheduler", size=2)
    await opened.open()
    yield opened
    await opened.close()


@pytest.mark.requirement("sched.switch")
async def test_a_hold_placed_while_a_new_leader_reads_waits_for_it(db: Database, one: Leader) -> None:
    clock = ManualClock()
    desk = HoldDesk(HoldStore(db), clock, dict, nothing, wait_ms=0)
    answers = []

    async def place() -> None:
        answers.append(await desk.put(ASK, HoldMode.HOLD, unseen=True))

    fresh = Obedience(Interrupted(db, place), one.book, one.desk, clock, "fresh", nobody)
    await fresh.before_leading()
    assert [(acting.member_id, acting.acted) for acting in answers[0].acting] == [("fresh", False)]
    assert not fresh.book.shelf.holds.of(HoldKind.QUEUE, "a"), "it has read the table before the hold was placed"
