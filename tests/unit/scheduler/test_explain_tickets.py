"""Why a ticket is not granted: it agrees with the planner on any snapshot, and each blocker is what it says."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.kernel.blockers import REMEDY, Block
from libs.testkit.clocks import ManualClock
from services.scheduler.app.explain_tickets import Turns
from services.scheduler.domain.buckets import Allowance, View
from services.scheduler.domain.estimate import CURED_BY_TIME, Pace, estimate
from services.scheduler.domain.explain import Carrier, Explained, Snapshot, explain
from services.scheduler.domain.holds import Hold, HoldKind, HoldMode
from services.scheduler.domain.lines import Candidate, queued
from services.scheduler.domain.planner import Standing, plan
from services.scheduler.domain.polls import Poll
from services.scheduler.domain.rank import AUTOMATION, INTERACTIVE, MIGRATION
from services.scheduler.domain.shares import Part, Policy, Used, user_of
from tests.unit.scheduler.test_claim_planner import poll, polls_, standings_, ticket, tickets_

HELD = Hold(7, HoldKind.QUEUE, "a", HoldMode.HOLD, "a bad build", "ann", 1)


def carrier_of(found: Poll, hold: Hold | None = None) -> Carrier:
    return Carrier(found.tenant, found.project, found.handlers, found.labels, hold, found.total)


def snapshot(polls: Sequence[Poll], tickets: Sequence[Candidate], standing: Standing, busy: Sequence[Carrier] = ()) -> Snapshot:
    return Snapshot(polls, queued(tickets), standing, [*(carrier_of(p) for p in polls), *busy])


def codes(found: Explained) -> list[Block]:
    return [blocker.code for blocker in found.blockers]


busy_ = st.lists(
    st.builds(
        Carrier,
        st.sampled_from(["", "a", "b"]),
        st.sampled_from(["", "p"]),
        st.frozensets(st.sampled_from(["f", "g"]), min_size=1),
        st.frozensets(st.sampled_from(["gpu", "big"])),
        st.sampled_from([None, HELD]),
        st.sampled_from([(), (("gpu", 1),), (("gpu", 2), ("memory_mb", 3))]),
    ),
    max_size=4,
)
heavy_ = tickets_.flatmap(
    lambda found: st.tuples(*(st.sampled_from([1, 5, 50]) for _ in found)).map(
        lambda sizes: [replace(one, size_bytes=size) for one, size in zip(found, sizes, strict=True)]
    )
)
narrow_ = polls_.flatmap(
    lambda found: st.tuples(*(st.sampled_from([6, 60, 2**62]) for _ in found)).map(
        lambda rooms: [replace(one, room_bytes=room) for one, room in zip(found, rooms, strict=True)]
    )
)


@pytest.mark.requirement("run.explain")
@settings(max_examples=200)
@given(narrow_, heavy_, standings_, busy_)
def test_it_agrees_with_the_planner(
    polls: list[Poll], tickets: list[Candidate], standing: Standing, busy: list[Carrier]
) -> None:
    shot = snapshot(polls, tickets, standing, busy)
    planned = {grant.key for grant in plan(polls, shot.queues, standing)}
    for one in tickets:
        found = explain(one, (), shot)
        assert (not found.blockers) == (one.key in planned), (one, found)
        assert all(blocker.message and blocker.remedy for blocker in found.blockers)


@pytest.mark.requirement("run.explain")
@settings(max_examples=100)
@given(polls_, tickets_, standings_, st.floats(0, 5), st.sets(st.sampled_from(["a", "b"])))
def test_it_agrees_with_the_planner_about_buckets(
    polls: list[Poll], tickets: list[Candidate], standing: Standing, level: float, over: set[str]
) -> None:
    calling = [replace(one, calls=("t",) if number % 2 else ()) for number, one in enumerate(tickets)]

    def now() -> Standing:
        view = View("b", frozenset({"t"}), 10.0, 60.0, level, 1.0, 2.0, frozenset(over), 0)
        return replace(standing, allowance=Allowance([view], {}, 0))  # counts down, so each cycle has its own

    shot = snapshot(polls, calling, now())
    planned = {grant.key for grant in plan(polls, shot.queues, now())}
    for one in calling:
        found = explain(one, (), shot)
        assert (not found.blockers) == (one.key in planned), (one, found)
        assert one.calls or Block.BUCKET_EMPTY not in codes(found)


def cured(shot: Snapshot, one: Candidate, found: Explained) -> Snapshot:
    """What the remedies of the blockers make of the snapshot."""
    standing, polls, carriers = shot.standing, list(shot.polls), list(shot.carriers)
    for blocker in found.blockers:
        match blocker.code:
            case Block.TENANT_QUOTA:
                standing = replace(standing, parts={**standing.parts, one.tenant: Part(1, None)})
            case Block.PROJECT_QUOTA:
                standing = replace(
                    standing, projects={k: v for k, v in standing.projects.items() if k != (one.tenant, one.project)}
                )
            case Block.USER_QUOTA:
                standing = replace(
                    standing, projects={k: v for k, v in standing.projects.items() if k != user_of(one.tenant, one.user)}
                )
            case Block.RESERVE:
                standing = replace(standing, policy=replace(standing.policy, reserve_permille=0))
            case Block.HOLD:
                carriers = [replace(carrier, hold=None) for carrier in carriers]
            case Block.ANSWER_FULL:
                polls = [replace(p, room_bytes=2**62) for p in polls]
            case _:  # workers: what every other remedy comes to
                handlers = frozenset({one.handler})
                has = (("gpu", 200), ("memory_mb", 300))
                polls.append(
                    poll(len(polls) + 100, 100, tenant="", handlers=handlers, labels=one.requires, free=has, total=has)
                )
                carriers.append(carrier_of(polls[-1]))
    return Snapshot(polls, shot.queues, standing, carriers)


@pytest.mark.requirement("run.explain")
@settings(max_examples=80)
@given(narrow_, heavy_, standings_, busy_)
def test_following_the_remedies_gets_a_ticket_granted(
    polls: list[Poll], tickets: list[Candidate], standing: Standing, busy: list[Carrier]
) -> None:
    shot = snapshot(polls, tickets, standing, busy)
    for one in tickets:
        now = shot
        for _ in range(12):
            found = explain(one, (), now)
            if not found.blockers:
                break
            now = cured(now, one, found)
        assert not found.blockers, found
        assert one.key in {grant.key for grant in plan(now.polls, now.queues, now.standing)}


@given(polls_, tickets_, standings_)
def test_who_goes_before_is_counted_as_they_go(polls: list[Poll], tickets: list[Candidate], standing: Standing) -> None:
    shot = snapshot(polls, tickets, standing)
    for one in tickets:
        found = explain(one, (), shot)
        assert found.position is not None
        line = sorted(other.place for other in tickets if other.line == one.line)
        assert (found.position.ahead_in_line, found.position.line_length) == (line.index(one.place), len(line))
        before = sum(other.place < one.place for other in tickets if other.tenant == one.tenant)
        assert found.position.ahead_in_line <= found.position.ahead_in_tenant <= before


FREE = Standing(policy=Policy(0, 1000))


def test_holds_are_named_with_their_reason_and_nothing_else_is_needed() -> None:
    shot = snapshot([poll(1)], [ticket(1)], FREE)
    found = explain(ticket(1), [HELD], shot)
    assert codes(found) == [Block.HOLD]
    assert "a bad build" in found.blockers[0].message
    assert "ann" not in str(found.blockers[0]), "who placed it is for operators"
    assert found.blockers[0].remedy == "release it: `runway queue release a --reason WHY`"


@pytest.mark.requirement("sched.capability")
def test_what_no_worker_has_is_named_and_what_they_have() -> None:
    wanted = ticket(1, requires=frozenset({"gpu", "eu"}))
    polls = [poll(1, labels=frozenset({"gpu", "us"})), poll(2, labels=frozenset({"us"})), poll(3, handlers=frozenset({"g"}))]
    found = explain(wanted, (), snapshot(polls, [wanted], FREE))
    assert codes(found) == [Block.NO_WORKER_HAS_LABELS]
    told = found.blockers[0]
    assert told.message == "it requires eu, gpu, and of 2 workers with f nobody has eu; they have: gpu, us; us"
    assert "also has eu" in told.remedy
    assert dict(told.detail) == {"required": "eu,gpu", "missing": "eu", "workers_have": "gpu, us; us"}
    apart = [poll(1, labels=frozenset({"gpu"})), poll(2, labels=frozenset({"eu"}))]
    assert "no worker has all of them together" in explain(wanted, (), snapshot(apart, [wanted], FREE)).blockers[0].message


def test_workers_of_others_are_not_counted_nor_named() -> None:
    theirs = poll(1, tenant="b", labels=frozenset({"secret-label"}))
    found = explain(ticket(1), (), snapshot([theirs], [ticket(1)], FREE))
    assert codes(found) == [Block.NO_WORKER_CARRIES_BUILD]
    assert found.blockers[0].message == "no worker seen lately carries f"
    bound = poll(1, project="q")
    found = explain(ticket(1), (), snapshot([bound], [ticket(1)], FREE))
    assert codes(found) == [Block.NO_WORKER_CARRIES_BUILD]
    assert "key of another project" in found.blockers[0].message
    others = ticket(2, tenant="b-of-a-name")
    busy = Carrier("", "", frozenset({"f"}), frozenset())
    found = explain(ticket(1), (), snapshot([], [ticket(1), others], replace(FREE, used={"a": Used(2)}), [busy]))
    assert codes(found) == [Block.NO_FREE_SLOT, Block.SHARE]
    assert "b-of-a-name" not in str(found)


@pytest.mark.requirement("run.explain")
def test_a_bound_below_what_is_used_says_what_must_end() -> None:
    standing = replace(FREE, parts={"a": Part(1, 3)}, used={"a": Used(5)}, projects={("a", "p"): Part(1, 0)})
    found = explain(ticket(1), (), snapshot([poll(1)], [ticket(1)], standing))
    assert codes(found) == [Block.TENANT_QUOTA, Block.PROJECT_QUOTA]
    assert "has 5 live leases, and its bound is 3: nothing is ended for that, and 3 must end" in found.blockers[0].message
    assert found.blockers[1].message == "project a/p has 0 live leases, and its bound is 0"


def test_a_bound_that_is_reached_and_one_that_others_reach_first() -> None:
    tickets = [ticket(1), ticket(2)]
    reached = replace(FREE, parts={"a": Part(1, 3)}, used={"a": Used(3)})
    found = explain(tickets[0], (), snapshot([poll(1, 2)], tickets, reached))
    assert [b.message for b in found.blockers] == ["tenant a has 3 live leases, and its bound is 3"]
    nearly = replace(reached, used={"a": Used(2)})
    assert not explain(tickets[0], (), snapshot([poll(1, 2)], tickets, nearly)).blockers
    found = explain(tickets[1], (), snapshot([poll(1, 2)], tickets, nearly))
    assert codes(found) == [Block.TENANT_QUOTA, Block.POSITION]
    assert found.blockers[0].message == "tickets before it take what is left of the bound of tenant a, 3"
    project = replace(FREE, projects={("a", "p"): Part(1, 1)})
    found = explain(tickets[1], (), snapshot([poll(1, 2)], tickets, project))
    assert codes(found) == [Block.PROJECT_QUOTA, Block.POSITION]


def test_an_answer_without_room_is_named() -> None:
    tickets = [ticket(1, size_bytes=50), ticket(2, size_bytes=60)]
    found = explain(tickets[1], (), snapshot([poll(1, 2, room_bytes=100)], tickets, FREE))
    assert codes(found) == [Block.ANSWER_FULL, Block.POSITION]
    assert "60 bytes" in found.blockers[0].message


def test_held_workers_are_a_hold() -> None:
    shot = Snapshot([], queued([ticket(1)]), FREE, [carrier_of(poll(1), replace(HELD, kind=HoldKind.WORKER, name="a/w1"))])
    found = explain(ticket(1), (), shot)
    assert codes(found) == [Block.HOLD]
    assert "runway worker release a/w1" in found.blockers[0].remedy


def test_the_reserve_and_the_cap_are_named() -> None:
    shared = poll(1, 1, tenant="")
    standing = Standing(policy=Policy(1000, 0))
    assert codes(explain(ticket(1), (), snapshot([shared], [ticket(1)], standing))) == [Block.RESERVE]
    hurried = ticket(1, run_class=INTERACTIVE)
    assert not explain(hurried, (), snapshot([shared], [hurried], standing)).blockers
    bulk, plain = ticket(1, run_class=MIGRATION), ticket(2, tenant="b")
    found = explain(bulk, (), snapshot([shared], [bulk, plain], replace(standing, policy=Policy(0, 0))))
    assert Block.MIGRATION_CAP in codes(found)


def test_an_estimate_has_a_basis_or_is_missing() -> None:
    tickets = [ticket(number, run_class=AUTOMATION) for number in range(10)]
    shot = snapshot([poll(1, 2)], tickets, FREE)
    found = explain(tickets[6], (), shot)
    assert codes(found) == [Block.NO_FREE_SLOT, Block.POSITION]
    told = estimate(tickets[6], found, Pace(20, 60_000), 1_000_000)
    assert told is not None
    assert told.at_ms == 1_000_000 + 7 * 3_000
    assert told.basis == "20 tickets of tenant a for f were granted here in the last 60 s; 6 go before it"
    assert estimate(tickets[6], found, None, 0) is None
    assert estimate(tickets[6], found, Pace(0, 60_000), 0) is None
    assert estimate(tickets[6], explain(tickets[6], [HELD], shot), Pace(20, 60_000), 0) is None
    soon = estimate(tickets[0], explain(tickets[0], (), shot), Pace(20, 60_000), 5)
    assert soon is not None
    assert soon.at_ms == 5


@pytest.mark.requirement("run.explain")
def test_every_blocker_has_a_remedy_and_its_place_in_the_handbook() -> None:
    page = (Path(__file__).resolve().parents[3] / "deploy/handbook/explain.md").read_text()
    assert set(REMEDY) == set(Block)
    assert [code for code in Block if f"| `{code.value}` |" not in page] == []
    assert set(Block) >= CURED_BY_TIME


@pytest.mark.requirement("run.explain")
async def test_who_asks_without_end_takes_a_part_of_the_process_only() -> None:
    clock, loop = ManualClock(), asyncio.get_running_loop()
    turns, began = Turns(clock), []

    async def asked(took_ms: int) -> None:
        async with turns.one():
            began.append(loop.time())
            clock.advance(took_ms)

    await asyncio.gather(asked(50), asked(0), asked(0))
    assert began[1] - began[0] >= 0.19, "four times what the first one took"
    first = len(began)
    clock.advance(1_000)
    with pytest.raises(ZeroDivisionError):
        async with turns.one():
            clock.advance(10)
            raise ZeroDivisionError
    await asked(0)
    assert len(began) == first + 1, "one that fails leaves the next its turn"
