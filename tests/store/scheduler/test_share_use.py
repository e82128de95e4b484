"""What leaders tell each other of use: heard while it is fresh, taken over once when its leader is gone, by nobody's wall clock."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from libs.pg import Database, Statement
from libs.testkit import ManualClock
from services.scheduler.app.decide_shares import FRESH_MS, SILENT_MS, Exchange
from services.scheduler.app.usage import MOVED_MS, Usage
from services.scheduler.domain.shares import Decided, Meter, Part, Policy
from services.scheduler.store.shares import ShareStore
from tests.store.scheduler.harness import Field
from tests.store.scheduler.harness import Leader as Boss

BOUNDED = Decided(1, Policy(), {}, {("a", "p"): Part(most_leases=5)})


class Leader:
    """A process' usage and its exchange."""

    def __init__(self, store: ShareStore, name: str) -> None:
        self.clock = ManualClock()
        self.usage = Usage(self.clock, decided=BOUNDED)
        self.exchange = Exchange(store, self.usage, name)

    def uses(self, tenant: str, running: int, average: float) -> None:
        self.usage.meters[tenant] = Meter(running, average, self.clock.monotonic_ms())

    async def tell(self, after_ms: int = 0) -> bool:
        self.clock.advance(after_ms)
        return await self.exchange.run()


@pytest.fixture
async def leaders(database: Callable[[str], Awaitable[str]]) -> AsyncIterator[list[Leader]]:
    db = Database(await database("scheduler"), name="scheduler", size=2)
    await db.open()
    yield [Leader(ShareStore(db), name) for name in ("one", "two", "three")]
    await db.close()


async def leads(leaders: list[Leader], name: str) -> None:
    """All shards are this process', as their rows say."""
    store = leaders[0].exchange._shares
    assert isinstance(store, ShareStore)
    await store._db.fetch(Statement("leads", "UPDATE shard SET holder = $1"), name)


async def test_what_others_use_is_heard_with_their_projects_while_they_lead(leaders: list[Leader]) -> None:
    one, two, three = leaders
    one.uses("a", 3, 2.5)
    one.usage.projects[("a", "p")] = 3
    three.uses("a", 1, 0.5)
    assert not await two.tell()
    await one.tell()
    await three.tell()
    assert await two.tell()
    assert (two.usage.used("a").running, two.usage.used("a").average) == (4, 3.0)
    assert two.usage.of_project(("a", "p")) == 3
    assert one.usage.used("a").running == 3, "nobody hears himself"
    await leads(leaders, "one")
    assert not await two.tell(FRESH_MS)
    assert await two.tell(1)
    assert two.usage.used("a").running == 3, "three leads nothing, so its leases are another's"
    assert two.usage.used("a").average == 3.0, "it may only be slow"
    await three.tell()
    await two.tell()
    assert two.usage.used("a").running == 4, "it is back"


@pytest.mark.requirement("sched.fair")
async def test_a_silent_leader_s_leases_count_for_as_long_as_its_shards_are_its_own(leaders: list[Leader]) -> None:
    one, two, three = leaders
    one.uses("a", 3, 40.0)
    one.usage.projects[("a", "p")] = 3
    await leads(leaders, "one")
    await one.tell()
    await two.tell()
    await two.tell(10 * SILENT_MS)
    assert (two.usage.used("a").running, two.usage.of_project(("a", "p"))) == (3, 3), "nobody took its shards over"
    await leads(leaders, "three")
    three.uses("a", 3, 0.0)
    await three.tell()
    await two.tell()
    assert two.usage.used("a").running == 3, "they are another's, who counts them"
    assert two.usage.used("a").average == 40.0


async def test_the_past_of_who_is_gone_is_taken_over_once_and_its_leases_are_not(leaders: list[Leader]) -> None:
    one, two, three = leaders
    one.uses("a", 3, 40.0)
    await one.tell()
    for other in (two, three):
        await other.tell()
        await other.tell(SILENT_MS)
    assert [other.usage.meters for other in (two, three)] == [{}, {}], "it may only be slow"
    assert [other.usage.used("a").average for other in (two, three)] == [40.0, 40.0]
    assert [other.usage.used("a").running for other in (two, three)] == [0, 0], "leases come with shards, not with reports"
    for other in (two, three):
        await other.tell(1)
    assert [other.usage.used("a").average for other in (two, three)] == [40.0, 0], "the first to notice has it, nobody else"
    await one.tell()
    await three.tell()
    assert three.usage.used("a").running == 3, "it was not gone after all"


@pytest.mark.requirement("sched.fair")
async def test_the_past_of_a_process_that_was_paused_counts_once(leaders: list[Leader]) -> None:
    one, two, three = leaders
    one.uses("a", 3, 40.0)
    one.uses("b", 0, 8.0)
    one.usage.projects[("a", "p")] = 3
    await one.tell()
    await two.tell()
    await two.tell(SILENT_MS + 1)
    for leader in (one, two, three, one):
        await leader.tell()
    assert (one.usage.meters["a"].average, one.usage.meters["a"].running) == (0.0, 3), "another has its past now"
    assert [leader.usage.used("a").average for leader in leaders] == [40.0, 40.0, 40.0]
    assert [leader.usage.used("b").average for leader in leaders] == [8.0, 8.0, 8.0]
    one.uses("a", 3, 5.0)
    await one.tell()
    await two.tell()
    assert two.usage.used("a").average == 45.0, "what it uses from then on counts beside it"
    one.uses("c", 1, 2.0)
    await one.tell()
    await one.tell()
    assert one.usage.meters["c"].average == 2.0, "what is said for the first time is nobody else's"


async def test_who_uses_nothing_takes_back_what_it_said(leaders: list[Leader]) -> None:
    one, two, _ = leaders
    one.uses("a", 3, 1.0)
    await one.tell()
    await two.tell()
    one.uses("a", 0, 0.0)
    await one.tell()
    await two.tell()
    assert two.usage.elsewhere == {}


async def test_a_clock_that_jumps_neither_silences_nor_revives(leaders: list[Leader]) -> None:
    one, two, _ = leaders
    one.uses("a", 3, 1.0)
    await one.tell()
    await two.tell()
    two.clock.jump(7_200_000)
    await one.tell()
    await two.tell()
    assert two.usage.used("a").running == 3
    assert two.usage.used("a").average == pytest.approx(1.0)


@pytest.mark.requirement("sched.fair")
async def test_leases_that_went_with_their_shards_count_until_their_new_leader_has_said_so(field_: Field, one: Boss) -> None:
    ticket = field_.ticket()
    await one.enqueue(ticket)
    (granted,) = await one.claim()
    usage, bound = one.book.usage, ("a", "p")
    usage.decided = BOUNDED
    one.book.drop(range(64))
    assert granted.lease.key not in one.book.leases
    assert (usage.used("a").running, usage.of_project(bound)) == (1, 1)
    assert {(said.tenant, said.project): said.running for said in usage.report()} == {("a", ""): 1, bound: 1}
    field_.clock.advance(MOVED_MS)
    assert (usage.used("a").running, usage.of_project(bound)) == (0, 0)
    assert [said.running for said in usage.report() if said.running] == []
