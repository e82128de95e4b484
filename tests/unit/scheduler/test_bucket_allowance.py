"""What a claim cycle grants of tickets whose calls are bounded outside."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from libs.kernel.blockers import Block
from libs.testkit import ManualClock
from services.scheduler.app.gauges import Gauges
from services.scheduler.domain.buckets import EMPTY, Allowance, View
from services.scheduler.domain.explain import Carrier, Snapshot, explain
from services.scheduler.domain.lines import Candidate, queued
from services.scheduler.domain.planner import Standing, plan
from services.scheduler.domain.polls import Poll
from services.scheduler.domain.shares import Policy


def view(name: str, level: float, *calls: str, typical: float = 1.0, over: str = "", floor: float = 0.0) -> View:
    return View(name, frozenset(calls), 100.0, 60.0, level, typical, floor, frozenset(over), 0)


def ticket(number: int, tenant: str, *calls: str) -> Candidate:
    return Candidate((UUID(int=number), "s"), tenant, "p", 2, "h", frozenset(), number, calls=calls)


POLLS = [Poll(1, "", "", frozenset({"h"}), frozenset(), 50)]
CALLS = st.lists(st.sampled_from("xyz"), max_size=3, unique=True).map(tuple)


@pytest.mark.requirement("sched.buckets")
@given(
    st.lists(st.tuples(st.sampled_from("ab"), CALLS), max_size=40),
    st.dictionaries(st.sampled_from("xyz"), st.floats(-5, 12), max_size=3),
    st.floats(0.5, 4),
)
@settings(max_examples=200, deadline=None)
def test_no_more_is_granted_than_buckets_have_and_what_could_be_granted_is(
    tickets: list[tuple[str, tuple[str, ...]]], levels: dict[str, float], typical: float
) -> None:
    waiting = [ticket(number, tenant, *calls) for number, (tenant, calls) in enumerate(tickets, 1)]
    views = [view(name, level, name, typical=typical) for name, level in levels.items()]
    standing = Standing(allowance=Allowance(views, {}, 0))
    granted = {grant.key for grant in plan(POLLS, queued(waiting), standing)}
    left = dict(levels)
    for one in waiting:
        if one.key in granted:
            for call in one.calls:
                if call in left:
                    left[call] -= typical
    assert all(left[name] >= -1e-9 for name in left if left[name] != levels[name])
    for one in waiting:
        if one.key not in granted:
            assert any(left.get(call, typical) < typical for call in one.calls), "nothing else kept it back"


@pytest.mark.requirement("sched.buckets")
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 300)), min_size=1, max_size=20),
    st.floats(0, 100),
    st.floats(0.5, 4),
    st.sampled_from(["", "a"]),
)
@example([("a", 1), ("b", 1)], 11.0, 1.0, "a")
@example([("a", 23)], 100.0, 4.0, "a")
@settings(max_examples=200, deadline=None)
def test_a_ticket_that_waits_for_many_calls_is_granted_only_where_they_are_there(
    asked: list[tuple[str, int]], level: float, typical: float, over: str
) -> None:
    waiting = [replace(ticket(n, tenant, "x"), wants=(("x", calls),)) for n, (tenant, calls) in enumerate(asked, 1)]
    views = [view("b", level, "x", typical=typical, over=over, floor=10.0)]
    granted = {grant.key for grant in plan(POLLS, queued(waiting), Standing(allowance=Allowance(views, {}, 0)))}
    left = level
    for one in waiting:
        if one.key in granted:
            left -= min(one.wants[0][1] * typical, 100.0)
    served = [one.tenant for one in waiting if one.key in granted]
    # another tenant may draw below what one over its share may; and so many calls that they need all of it get a full one
    kept = 10.0 if over and level < 100.0 and all(tenant in over for tenant in served) else 0.0
    assert left >= kept - 1e-9 or not granted
    for one in waiting:
        floor = 10.0 if one.tenant in over else 0.0
        if one.key not in granted:
            assert left < min(one.wants[0][1] * typical + floor, 100.0), "nothing else kept it back"
    full_ = Allowance([view("b", 100.0, "x", typical=typical, over=over, floor=10.0)], {}, 0)
    assert all(full_.dry(one.tenant, ("x",), one.wants) is None for one in waiting), "a full bucket is enough for whoever waits"


def passed(level: float, overdue_ms: int, *, per_minute: float = 60.0, other: float = 100.0) -> list[int]:
    """Who is granted: the first waits for 50 calls of x, then come small ones of its tenant, of another bucket, of another tenant."""
    first = replace(ticket(1, "a", "x", "z"), wants=(("x", 50),))
    waiting = [
        first,
        ticket(2, "a", "x"),
        replace(ticket(3, "a", "x"), wants=(("x", 2),)),
        ticket(4, "a", "y"),
        ticket(5, "b", "x"),
    ]
    slow = replace(view("z", other, "z"), per_minute=0.0)
    views = [replace(view("x", level, "x"), per_minute=per_minute), view("y", 50.0, "y"), slow]
    standing = Standing(allowance=Allowance(views, {}, 0), overdue_ms=overdue_ms)
    return sorted(grant.key[0].int for grant in plan(POLLS, queued(waiting), standing))


@pytest.mark.requirement("sched.buckets")
def test_one_that_waited_long_for_many_calls_is_passed_by_no_other_of_its_tenant() -> None:
    assert passed(10.0, 0) == [2, 3, 4, 5], "not yet"
    assert passed(10.0, 2) == [4, 5]
    assert passed(53.0, 2) == [1, 2, 4, 5], "as the first is granted, the others get what is left"
    assert passed(10.0, 2, per_minute=0.0) == [2, 3, 4, 5], "nothing flows in: there is nothing to keep it for"
    assert passed(10.0, 2, other=0.0) == [2, 3, 4, 5], "it waits for a bucket that does not fill"


def test_what_is_kept_for_another_and_what_never_fills_is_said() -> None:
    first, second = replace(ticket(1, "a", "x"), wants=(("x", 50),)), ticket(2, "a", "x")
    carriers = [Carrier("", "", frozenset({"h"}), frozenset())]

    def said(one: Candidate, overdue_ms: int, level: float, per_minute: float) -> list[str]:
        views = [replace(view("b", level, "x"), per_minute=per_minute)]
        standing = Standing(policy=Policy(reserve_permille=0), allowance=Allowance(views, {}, 0), overdue_ms=overdue_ms)
        found = explain(one, (), Snapshot(POLLS, queued([first, second]), standing, carriers)).blockers
        return [blocker.message for blocker in found if blocker.code is Block.BUCKET_EMPTY]

    assert "the 50 calls of it that the step waits for; if nobody takes more, enough in 40.0 s" in said(first, 2, 10.0, 60.0)[0]
    assert "not before 60.0 s" in said(first, 2, 10.0, 1.0)[0]
    assert said(second, 0, 10.0, 60.0) == []
    assert "is kept for a step of the tenant" in said(second, 2, 10.0, 60.0)[0]
    assert "nothing flows into it" in said(second, 2, 0.0, 0.0)[0]


def test_the_wait_is_as_long_as_the_bucket_needs() -> None:
    allowance = Allowance([view("b", 0.5, "x", over="a", floor=2)], {}, 0)
    dry = allowance.dry("b", ("x",))
    assert dry is not None
    assert (allowance.wait_ms("b", dry), allowance.wait_ms("a", dry)) == (500, 2_500)
    assert allowance.kept_back
    assert Allowance([view("b", 0.5, "x")], {}, 500).dry("b", ("x",)) is None
    assert not EMPTY


def full(level: float, at_ms: int) -> View:
    return replace(view("b", level, "x"), at_ms=at_ms)


def test_what_was_granted_is_counted_until_it_has_flowed_in_again() -> None:
    clock = ManualClock()
    gauges = Gauges(clock)
    gauges.see([full(2.0, clock.monotonic_ms())])
    for _ in range(2):
        assert gauges.allowance().dry("a", ("x",)) is None
        gauges.granted(("x", "y"))
    for _ in range(3):
        gauges.see([full(2.0, clock.monotonic_ms())])
        assert gauges.allowance().dry("a", ("x",)) is not None, "they have not called yet"
    clock.advance(1_000)
    assert gauges.allowance().dry("a", ("x",)) is None
    gauges.see([])
    assert not gauges.allowance()
    gauges.granted(("x",))


def test_a_lease_that_ended_without_a_call_is_counted_no_more_once_a_later_view_came() -> None:
    clock = ManualClock()
    gauges = Gauges(clock)
    gauges.see([full(1.0, clock.monotonic_ms())])
    gauges.granted(("x",))
    gauges.ended(("x",))
    gauges.see([full(1.0, clock.monotonic_ms())])
    assert gauges.allowance().dry("a", ("x",)) is not None, "this view may not know of its call"
    clock.advance(10)
    gauges.see([full(1.0, clock.monotonic_ms())])
    assert gauges.allowance().dry("a", ("x",)) is None


def test_what_others_took_is_taken_here_too() -> None:
    clock = ManualClock()
    gauges = Gauges(clock)
    gauges.see([full(50.0, clock.monotonic_ms())])
    gauges.see([full(0.0, clock.monotonic_ms())])
    assert gauges.allowance().dry("a", ("x",)) is not None
    clock.advance(1_000)
    assert gauges.allowance().dry("a", ("x",)) is None


@pytest.mark.requirement("run.explain")
@given(
    st.lists(st.tuples(st.sampled_from("ab"), CALLS), max_size=30),
    st.dictionaries(st.sampled_from("xyz"), st.floats(-5, 12), max_size=3),
    st.integers(0, 40),
)
@settings(max_examples=200, deadline=None)
def test_who_is_kept_back_by_a_bucket_is_told_so_and_when(
    tickets: list[tuple[str, tuple[str, ...]]], levels: dict[str, float], slots: int
) -> None:
    waiting = [ticket(number, tenant, *calls) for number, (tenant, calls) in enumerate(tickets, 1)]
    views = [view(name, level, name) for name, level in levels.items()]
    polls = [replace(POLLS[0], slots=slots)] if slots else []

    def standing() -> Standing:
        return Standing(policy=Policy(reserve_permille=0), allowance=Allowance(views, {}, 0))

    granted = {grant.key for grant in plan(polls, queued(waiting), standing())}
    carriers = [Carrier("", "", frozenset({"h"}), frozenset())]
    shot = Snapshot(polls, queued(waiting), standing(), carriers)
    for one in waiting:
        found = explain(one, (), shot)
        assert (not found.blockers) == (one.key in granted), (one, found)
        told = [blocker for blocker in found.blockers if blocker.code is Block.BUCKET_EMPTY]
        assert all(int(blocker.detail["wait_ms"]) > 0 for blocker in told)
        if len(granted) < slots and one.key not in granted:
            assert told, "there were slots left"


def test_a_tenant_over_its_part_is_told_so() -> None:
    shot = Snapshot(
        POLLS,
        queued([ticket(1, "a", "x")]),
        Standing(allowance=Allowance([view("provider p (calls)", 5, "x", over="a", floor=50)], {}, 0)),
        [Carrier("", "", frozenset({"h"}), frozenset())],
    )
    (told,) = explain(ticket(1, "a", "x"), (), shot).blockers
    assert (told.code, told.detail) == (Block.BUCKET_EMPTY, {"bucket": "provider p (calls)", "wait_ms": "46000"})
    assert "more than its part" in told.message
