"""Fair shares over time: the planner, the meters and virtual slots, minutes of saturation in a moment."""

import heapq
import random
from dataclasses import dataclass, field
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.domain.lines import Candidate, TenantQueue
from services.scheduler.domain.planner import Standing, plan
from services.scheduler.domain.polls import Poll
from services.scheduler.domain.rank import AUTOMATION, INTERACTIVE, MIGRATION, rank_ms
from services.scheduler.domain.shares import Meter, Part, Policy, Used, claim, jain, share_error

POLICY = Policy()


@dataclass
class World:
    """Shared slots, tenants' queues, a clock. What ends frees its slot; a cycle follows each step of time."""

    slots: int
    parts: dict[str, Part] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)
    seed: int = 1

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.queues: dict[str, TenantQueue] = {}
        self.meters: dict[str, Meter] = {}
        self.steps: dict[UUID, tuple[Candidate, int]] = {}
        self.live: list[tuple[int, int, Candidate]] = []
        self.held: dict[int, int] = {}
        self.got_ms: dict[str, float] = {}
        self.waits: dict[str, list[int]] = {}
        self.now_ms = 0
        self.numbers = 0

    def queue(self, tenant: str, run_class: int = AUTOMATION, takes_ms: int = 2_000, *, started: bool = False) -> None:
        self.numbers += 1
        rank = rank_ms(enqueued_ms=self.now_ms, run_class=run_class, priority=0, deadline_ms=0, started=started)
        key = (UUID(int=self.numbers), "s")
        ticket = Candidate(key, tenant, "p", run_class, "f", frozenset(), rank, size_bytes=self.now_ms)
        self.queues.setdefault(tenant, TenantQueue()).add(ticket)
        self.steps[key[0]] = (ticket, takes_ms)

    def cycle(self) -> None:
        while self.live and self.live[0][0] <= self.now_ms:
            _, _, ended = heapq.heappop(self.live)
            self.meters[ended.tenant].move(-1, self.now_ms, self.policy)
            self.held[ended.run_class] -= 1
        used = {name: Used(m.running, m.now(self.now_ms, self.policy.half_life_ms)) for name, m in self.meters.items()}
        standing = Standing(policy=self.policy, parts=self.parts, used=used, shared_leases=self.held)
        free = self.slots - len(self.live)
        poll = Poll(1, "", "", frozenset({"f"}), frozenset(), free)
        waiting = {name: queue for name, queue in self.queues.items() if queue.waiting}
        for grant in plan([poll], waiting, standing) if free else []:
            ticket, takes_ms = self.steps.pop(grant.key[0])
            self.queues[ticket.tenant].remove(ticket)
            meter = self.meters.setdefault(ticket.tenant, Meter(at_ms=self.now_ms))
            meter.move(1, self.now_ms, self.policy, entering=1)
            self.held[ticket.run_class] = self.held.get(ticket.run_class, 0) + 1
            heapq.heappush(self.live, (self.now_ms + takes_ms, ticket.key[0].int, ticket))
            self.waits.setdefault(f"{ticket.tenant}{ticket.run_class}", []).append(self.now_ms - ticket.size_bytes)

    def run(self, ms: int, step_ms: int = 50) -> None:
        for _ in range(ms // step_ms):
            self.cycle()
            self.now_ms += step_ms
            for name, meter in self.meters.items():
                self.got_ms[name] = self.got_ms.get(name, 0) + meter.running * step_ms


WEIGHTS = {"a": 1, "b": 1, "c": 2, "d": 4, "e": 8}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("longest", [2_000, 9_000], ids=["equal", "a's steps are longer"])
@pytest.mark.requirement("sched.fair")
def test_a_minute_of_saturation_is_shared_by_weight(seed: int, longest: int) -> None:
    world = World(200, {name: Part(weight) for name, weight in WEIGHTS.items()}, seed=seed)
    for name in WEIGHTS:
        for _ in range(9_000):
            world.queue(name, takes_ms=world.chance.randrange(200, longest if name == "a" else 2_000))
    world.run(60_000)
    assert share_error(world.got_ms, WEIGHTS) < (0.03 if longest == 2_000 else 0.06)
    assert jain(world.got_ms, WEIGHTS) > 0.99


@pytest.mark.requirement("sched.flood")
def test_a_flood_of_migrations_does_not_make_an_interactive_user_wait() -> None:
    world = World(200)
    for _ in range(20_000):
        world.queue("flood", MIGRATION, 2_000)
    world.run(10_000)
    for _ in range(30):
        world.queue("user", INTERACTIVE, 2_000)
        world.run(1_000)
    assert len(world.waits["user1"]) == 30
    assert max(world.waits["user1"]) == 0, "the reserve is there for it"
    assert world.held[MIGRATION] <= 180


def test_who_comes_late_gets_its_share_and_not_everything() -> None:
    world = World(100)
    for _ in range(12_000):
        world.queue("early")
    world.run(30_000)
    for _ in range(12_000):
        world.queue("late")
    world.got_ms.clear()
    world.run(30_000)
    assert 0.4 < world.got_ms["late"] / sum(world.got_ms.values()) < 0.99
    world.got_ms.clear()
    world.run(60_000)
    assert world.got_ms["early"] > 0, "nobody starves"


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(1, 50), st.sampled_from([1, 2, 3, 4])), min_size=2),
    st.integers(0, 400),
    st.integers(100, 1000),
)
@settings(max_examples=30)
def test_nobody_starves(tenants: dict[str, tuple[int, int]], reserve: int, migration: int) -> None:
    """Whatever weights and classes: in finite time, everybody who waits is served, floods of others notwithstanding."""
    policy = Policy(reserve_permille=reserve, migration_permille=migration)
    world = World(10, {name: Part(weight) for name, (weight, _) in tenants.items()}, policy)
    for name, (_, run_class) in tenants.items():
        for _ in range(600):
            world.queue(name, run_class, 500)
    world.run(30_000, step_ms=250)
    assert set(world.got_ms) == set(tenants)


def test_within_a_tenant_age_beats_class_and_priority_in_the_end() -> None:
    def rank(at_ms: int, run_class: int = AUTOMATION, priority: int = 0, deadline_ms: int = 0, *, started: bool = False) -> int:
        return rank_ms(enqueued_ms=at_ms, run_class=run_class, priority=priority, deadline_ms=deadline_ms, started=started)

    hour = 3_600_000
    now = 100 * hour
    assert rank(now, INTERACTIVE) < rank(now, 4) < rank(now) < rank(now, MIGRATION)
    assert rank(now, priority=1) < rank(now) < rank(now, priority=-1)
    assert rank(now, started=True) < rank(now)
    assert rank(now, deadline_ms=now + 60_000) < rank(now, deadline_ms=now + 120_000) < rank(now, deadline_ms=now + 5 * hour)
    assert rank(now, deadline_ms=now + 5 * hour) == rank(now), "a deadline that is far is none"
    assert rank(now - 3 * hour, MIGRATION) < rank(now, INTERACTIVE)
    assert rank(now - hour) < rank(now, priority=50), "what has waited for longer than a priority is worth goes first"


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 10_000)), max_size=40))
def test_a_meter_is_exact_between_events_and_never_negative(moves: list[tuple[int, int]]) -> None:
    meter = Meter()
    now_ms = 0
    for by, after_ms in moves:
        now_ms += after_ms
        by = max(by, -meter.running)
        meter.move(by, now_ms, POLICY, entering=max(0, by))
        assert meter.running >= 0
        assert meter.average >= -1e-9
        halfway = meter.now(now_ms + POLICY.half_life_ms, POLICY.half_life_ms)
        assert halfway == pytest.approx((meter.average + meter.running) / 2)
        assert meter.now(now_ms - 7_200_000, POLICY.half_life_ms) == pytest.approx(meter.average), (
            "a clock that went back changes nothing"
        )


def test_steps_too_short_to_be_seen_running_are_paid_for() -> None:
    meter = Meter()
    for at in range(1_000):
        meter.move(1, at, POLICY, entering=1)
        meter.move(-1, at, POLICY)
    assert meter.running == 0
    assert claim(meter.running, meter.average, 1) > 1


@pytest.mark.parametrize("weight", [0, -5, 10**9])
def test_a_weight_out_of_bounds_is_no_way_to_stop_a_plan(weight: int) -> None:
    queue = TenantQueue()
    queue.add(Candidate((UUID(int=1), "s"), "a", "p", AUTOMATION, "f", frozenset(), 0))
    polls = [Poll(1, "", "", frozenset({"f"}), frozenset(), 9)]
    assert len(plan(polls, {"a": queue}, Standing(parts={"a": Part(weight)}))) == 1


@pytest.mark.requirement("sched.flood")
@pytest.mark.parametrize(
    ("slots", "leaders", "wanted"), [(36, 4, 3.6), (90, 10, 9.0), (200, 3, 20.0), (16, 4, 1.6), (1, 1, 0.1)]
)
def test_the_reserve_over_all_leaders_is_off_by_half_a_slot_each_at_most(slots: int, leaders: int, wanted: float) -> None:
    whole, rest = divmod(slots, leaders)
    parts = [whole + (place < rest) for place in range(leaders)]
    assert abs(sum(Policy().reserve(part) for part in parts) - wanted) <= leaders / 2


def test_not_all_slots_are_reserved_unless_that_was_decided() -> None:
    assert [Policy(reserve_permille=half).reserve(1) for half in (500, 999, 1000)] == [0, 0, 1]
    assert [Policy(reserve_permille=100).reserve(n) for n in (0, 1, 4, 5, 9, 10, 15)] == [0, 0, 0, 1, 1, 1, 2]
