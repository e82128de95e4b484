"""Who is about to lead speaks first, and reads then: whoever places a hold between the two hears of it, and waits for it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest

from libs.pg import Database
from libs.testkit import ManualClock
from services.scheduler.app.hold_desk import NEWCOMER_MS, HoldAsk, HoldDesk
from services.scheduler.app.obey_holds import Obedience
from services.scheduler.domain.holds import HoldKind, HoldMode, Holds
from services.scheduler.store.holds import HoldStore
from tests.store.scheduler.harness import Leader

ASK = HoldAsk(HoldKind.QUEUE, "a", "a test", "ann", dry_run=False)


async def nothing() -> None:
    return None


async def nobody_new() -> Mapping[str, str]:
    return {}


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
    desk = HoldDesk(HoldStore(db), clock, dict, nothing, nobody_new, wait_ms=0)
    answers = []

    async def place() -> None:
        answers.append(await desk.put(ASK, HoldMode.HOLD, unseen=True))

    fresh = Obedience(Interrupted(db, place), one.book, one.desk, clock, "fresh", nobody)
    await fresh.before_leading()
    assert [(acting.member_id, acting.acted) for acting in answers[0].acting] == [("fresh", False)]
    assert not fresh.book.shelf.holds.of(HoldKind.QUEUE, "a"), "it has read the table before the hold was placed"


@pytest.mark.requirement("sched.switch")
async def test_a_newcomer_whose_clock_is_slow_is_named_by_etcd_itself(db: Database) -> None:
    clock, store = ManualClock(), HoldStore(db)
    asked: list[int] = []

    async def etcd() -> Mapping[str, str]:
        asked.append((await store.in_force()).revision)
        return {"fresh": "fresh:1"}

    await store.acknowledge("fresh", 0, clock.now_ms() - 20 * NEWCOMER_MS)
    desk = HoldDesk(store, clock, dict, nothing, etcd, wait_ms=0)
    first = await desk.put(ASK, HoldMode.HOLD, unseen=True)
    assert [(acting.member_id, acting.address, acting.acted) for acting in first.acting] == [("fresh", "fresh:1", False)]
    assert asked == [1], "asked once the change is stored: who registered before that is named"
    await store.acknowledge("fresh", 1, clock.now_ms())
    again = await desk.release(ASK, 0)
    assert [(acting.member_id, acting.acted) for acting in again.acting] == [("fresh", False)]
