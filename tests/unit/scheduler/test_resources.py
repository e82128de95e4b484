"""What steps take of workers besides slots: who is passed and for how long, what it weighs, and how it is explained."""

import heapq
import random
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.kernel.blockers import Block
from libs.testkit.clocks import ManualClock
from services.scheduler.app.usage import WEIGH_MS, Usage
from services.scheduler.domain.explain import Carrier, explain
from services.scheduler.domain.lines import Candidate, TenantQueue
from services.scheduler.domain.planner import PATIENCE_MS, Standing, plan
from services.scheduler.domain.polls import Poll
from services.scheduler.domain.rank import AUTOMATION
from services.scheduler.domain.resources import Amounts, Capacity, amounts, parse, text_of
from services.scheduler.domain.shares import Meter, Part, Policy, Used
from tests.unit.scheduler.test_claim_planner import NO_RESERVE, planned, poll, ticket
from tests.unit.scheduler.test_explain_tickets import FREE, codes, snapshot
from tests.unit.scheduler.test_lease_life import lease

GPU: Amounts = (("gpu", 1),)
FOUR: Amounts = (("gpu", 4),)


@given(st.dictionaries(st.text("ab :/.", min_size=1), st.integers(0, 2**53)))
def test_amounts_are_read_back_as_they_were_written(given_: dict[str, int]) -> None:
    assert dict(parse(text_of(amounts(given_)))) == {name: amount for name, amount in given_.items() if amount}


def test_a_ticket_goes_where_all_of_it_is_free() -> None:
    large = (("gpu", 4), ("memory_mb", 9))
    polls = [poll(1, 9), poll(2, 9, free=GPU, total=FOUR), poll(3, 9, free=(("gpu", 2), ("memory_mb", 7)), total=large)]
    assert sorted(g.poll for g in planned(polls, [ticket(n, resources=GPU) for n in range(9)])) == [2, 3, 3]
    assert [g.poll for g in planned(polls, [ticket(1, resources=(("gpu", 1), ("memory_mb", 7)))])] == [3]
    assert planned(polls, [ticket(1, resources=FOUR)]) == []


def test_the_worker_that_had_the_step_must_have_it_free_too() -> None:
    polls = [poll(1, worker_id="w1", total=GPU), poll(2, worker_id="w2", free=GPU, total=GPU)]
    assert [g.poll for g in planned(polls, [ticket(1, resources=GPU, last_worker="w1")])] == [2]


def test_what_takes_less_passes_what_does_not_fit_until_that_has_waited_long() -> None:
    polls = [poll(1, 9, worker_id="near", free=(("gpu", 3),), total=FOUR), poll(2, 9, worker_id="far", free=GPU, total=FOUR)]
    small = [ticket(10 + n, resources=GPU) for n in range(9)]
    large, plain = ticket(1, resources=FOUR), ticket(2)
    assert len(planned(polls, [large, *small])) == 4, "nothing is idle for it"
    kept = Standing(policy=NO_RESERVE, overdue_ms=2)
    grants = planned(polls, [large, plain, *small], kept)
    assert [g.poll for g in grants if g.key != plain.key] == [2], "the nearer worker's are kept, the other's are not"
    assert plain.key in {g.key for g in grants}, "what takes none of it goes on"
    free = [poll(1, 9, worker_id="near", free=FOUR, total=FOUR), polls[1]]
    assert planned(free, [large, *small], kept)[0].key == large.key
    apart = Standing(policy=NO_RESERVE, overdue_ms=2, projects={("a", "p"): Part(most_leases=0)})
    assert len(planned(polls, [large, *(replace(t, project="q") for t in small)], apart)) == 4, "what is bounded keeps nothing"


def test_each_that_waited_long_has_a_worker_kept() -> None:
    has = {"gpu": 4, "memory_mb": 9}
    polls = [poll(n, 9, worker_id=f"w{n}", free=(("gpu", n), ("memory_mb", 5)), total=amounts(has)) for n in (1, 2, 3)]
    larges = [ticket(1, resources=FOUR), ticket(2, resources=(("gpu", 4), ("memory_mb", 1)))]
    small = [ticket(10 + n, resources=GPU) for n in range(9)]
    standing = Standing(policy=NO_RESERVE, overdue_ms=2)
    assert {g.poll for g in planned(polls, [*larges, *small], standing)} == {1, 2}
    standing = Standing(policy=NO_RESERVE, overdue_ms=3)
    assert {g.poll for g in planned(polls, [*larges, *small], standing)} == {1}


@pytest.mark.requirement("sched.fair")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_large_step_does_not_starve_under_a_stream_of_small_ones(seed: int) -> None:
    """Three workers with four GPUs each, always full with steps of one that end at odd times: a step of four waits for its
    patience and one step of each GPU more, no longer."""
    chance = random.Random(seed)
    free = {f"w{n}": 4 for n in range(3)}
    live: list[tuple[int, int, str, int]] = []
    queue = TenantQueue()
    large = ticket(1, resources=FOUR, rank_ms=5_000)
    started_ms, number, now_ms = 0, 10, 0
    while not started_ms and now_ms < 120_000:
        while live and live[0][0] <= now_ms:
            _, _, worker, took = heapq.heappop(live)
            free[worker] += took
        if now_ms == 5_000:
            queue.add(large)
        while queue.waiting < 30:
            number += 1
            queue.add(ticket(number, resources=GPU, rank_ms=now_ms))
        offers = [
            poll(n, 16, tenant="", worker_id=name, free=amounts({"gpu": left}), total=FOUR)
            for n, (name, left) in enumerate(free.items())
            if chance.random() < 0.9  # a worker between two claims is not there
        ]
        standing = Standing(policy=NO_RESERVE, overdue_ms=now_ms - PATIENCE_MS)
        by_key = {t.key: t for line in queue.lines.values() for t in line}
        for grant in plan(offers, {"a": queue}, standing):
            one = by_key[grant.key]
            queue.remove(one)
            worker = next(p.worker_id for p in offers if p.number == grant.poll)
            took = dict(one.resources)["gpu"]
            free[worker] -= took
            heapq.heappush(live, (now_ms + chance.randrange(500, 3_000), one.key[0].int, worker, took))
            started_ms = now_ms if one.key == large.key else started_ms
        now_ms += 100
    assert 5_000 + PATIENCE_MS < started_ms < 5_000 + PATIENCE_MS + 4_000


@dataclass
class World:
    """One pool of shared slots and GPUs, tenants with steps of one kind each, a clock."""

    slots: int
    gpus: int
    needs: dict[str, Amounts]
    parts: dict[str, Part] = field(default_factory=dict)
    weighed: bool = True
    now_ms: int = 0

    def __post_init__(self) -> None:
        self.policy = Policy(reserve_permille=0)
        self.queues: dict[str, TenantQueue] = {name: TenantQueue() for name in self.needs}
        self.meters = {name: Meter() for name in self.needs}
        self.live: list[tuple[int, int, Candidate, float]] = []
        self.got: dict[str, float] = dict.fromkeys(self.needs, 0.0)
        self.free = self.gpus
        number = 0
        for name, need in self.needs.items():
            for _ in range(3_000):
                number += 1
                key = (UUID(int=number), "s")
                self.queues[name].add(Candidate(key, name, "p", AUTOMATION, "f", frozenset(), number, resources=need))
        self.by_key = {t.key: t for queue in self.queues.values() for line in queue.lines.values() for t in line}

    def cycle(self) -> None:
        while self.live and self.live[0][0] <= self.now_ms:
            _, _, ended, weight = heapq.heappop(self.live)
            self.meters[ended.tenant].move(-1, self.now_ms, self.policy, extra=1 - weight)
            self.free += dict(ended.resources).get("gpu", 0)
        half_life_ms = self.policy.half_life_ms
        used = {n: Used(m.running, m.now(self.now_ms, half_life_ms), extra=m.extra) for n, m in self.meters.items()}
        capacity = Capacity(self.slots, {"gpu": self.gpus} if self.weighed else {})
        standing = Standing(policy=self.policy, parts=self.parts, used=used, capacity=capacity)
        idle, total = self.slots - len(self.live), (("gpu", self.gpus),)
        offer = Poll(1, "", "", frozenset({"f"}), frozenset(), idle, free=amounts({"gpu": self.free}), total=total)
        for grant in plan([offer], self.queues, standing) if idle else []:
            one = self.by_key[grant.key]
            self.queues[one.tenant].remove(one)
            weight = capacity.weight(one.resources)
            self.meters[one.tenant].move(1, self.now_ms, self.policy, entering=weight, extra=weight - 1)
            self.free -= dict(one.resources).get("gpu", 0)
            takes_ms = 900 + 37 * (one.key[0].int % 7)
            heapq.heappush(self.live, (self.now_ms + takes_ms, one.key[0].int, one, weight))
        assert self.free >= 0
        assert len(self.live) <= self.slots

    def run(self, ms: int) -> dict[str, float]:
        """Leases held on average, after a while of settling."""
        for at_ms in range(0, ms, 50):
            self.cycle()
            self.now_ms += 50
            if at_ms >= ms // 4:
                for name, meter in self.meters.items():
                    self.got[name] += meter.running / (ms * 3 / 4 / 50)
        return self.got


@pytest.mark.requirement("sched.fair")
@pytest.mark.parametrize(("gpu_weight", "slot_weight"), [(1, 1), (1, 3), (2, 1)])
def test_the_dominant_resource_is_shared_by_weight(gpu_weight: int, slot_weight: int) -> None:
    """A minute in which one tenant is bound by GPUs and one by slots: each has its weight's part of what it wants most."""
    parts = {"g": Part(gpu_weight), "s": Part(slot_weight)}
    got = World(40, 10, {"g": GPU, "s": ()}, parts).run(60_000)
    gpu_part, slot_part = got["g"] / 10, got["s"] / 40
    if gpu_weight > slot_weight:
        assert gpu_part > 0.93, "it has all GPUs and could use no more"
        assert got["g"] + got["s"] > 38
    else:
        assert gpu_part / gpu_weight == pytest.approx(slot_part / slot_weight, rel=0.08)


@pytest.mark.requirement("sched.fair")
def test_half_of_all_gpus_counts_as_half_of_everything() -> None:
    counted = World(40, 10, {"g": GPU, "s": ()}).run(30_000)
    by_slots = World(40, 10, {"g": GPU, "s": ()}, weighed=False).run(30_000)
    assert by_slots["g"] > 9.3 > 8.6 > counted["g"] > 7.4


@given(st.integers(1, 9), st.integers(1, 400), st.integers(1, 9))
def test_a_lease_weighs_a_slot_at_least_and_all_slots_at_most(amount: int, slots: int, has: int) -> None:
    weight = Capacity(slots, {"gpu": has}).weight((("gpu", amount),))
    assert 1 <= weight <= max(1, slots)
    assert Capacity(slots, {"gpu": has + 1}).weight((("gpu", amount),)) <= weight
    assert Capacity(slots, {}).weight((("gpu", amount),)) == 1


def test_leases_are_weighed_again_when_workers_come_and_leave_with_what_they_were_counted_as() -> None:
    clock = ManualClock()
    usage = Usage(clock)
    has = Capacity(40, {"gpu": 10})
    usage.capacity_now = lambda: has
    held = lease()
    held.fleet, held.contract = "fleet", replace(held.contract, resources=GPU)
    usage.began(held)
    assert usage.used(held.tenant).held == 1, "nobody is known to have any"
    usage.declared()
    assert usage.standing([held.tenant]).used[held.tenant].held == 4
    has = Capacity(40, {"gpu": 20})
    assert usage.standing([held.tenant]).used[held.tenant].held == 4, "asked once in a second"
    clock.advance(WEIGH_MS)
    assert usage.standing([held.tenant]).used[held.tenant].held == 2
    assert [(said.running, said.extra) for said in usage.report()] == [(1, 1.0)]
    usage.ended(held)
    assert usage.used(held.tenant).held == 0
    assert usage.heavy == {}


@pytest.mark.requirement("sched.capability")
def test_what_no_worker_has_enough_of_is_named_with_the_largest() -> None:
    wanted = ticket(1, resources=(("gpu", 4), ("memory_mb", 100)))
    polls = [poll(1, total=(("gpu", 2), ("memory_mb", 500))), poll(2), poll(3, handlers=frozenset({"g"}), total=(("gpu", 9),))]
    found = explain(wanted, (), snapshot(polls, [wanted], FREE))
    assert codes(found) == [Block.NO_WORKER_HAS_RESOURCES]
    told = found.blockers[0]
    assert told.message == (
        "it takes gpu 4, memory_mb 100, and of 2 workers that could run it the largest has gpu 2, memory_mb 500"
    )
    assert told.detail["missing"] == "gpu 2"
    assert "start a worker with gpu 4, memory_mb 100 or more" in told.remedy


@pytest.mark.requirement("sched.capability")
def test_what_is_in_use_is_told_from_what_nobody_has() -> None:
    wanted = ticket(1, resources=FOUR)
    busy = [poll(1, 5, free=GPU, total=FOUR)]
    found = explain(wanted, (), snapshot(busy, [wanted], FREE))
    assert codes(found) == [Block.RESOURCES_IN_USE]
    assert found.blockers[0].detail["most_free"] == "gpu 1"
    gone = Carrier("a", "", frozenset({"f"}), frozenset(), resources=FOUR)
    assert codes(explain(wanted, (), snapshot([], [wanted], FREE, [gone]))) == [Block.NO_FREE_SLOT]
