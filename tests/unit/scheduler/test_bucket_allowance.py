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
    kept = (
        10.0 if over and all(tenant in over for tenant in served) else 0.0
    )  # another tenant may draw below what one over its share may
    assert left >= kept - 1e-9 or not granted
    for one in waiting:
        floor = 10.0 if one.tenant in over else 0.0
        if one.key not in granted:
            assert left < min(one.wants[0][1] * typical + floor, 100.0), "nothing else kept it back"
    full_ = Allowance([view("b", 100.0, "x", typical=typical, over=over, floor=10.0)], {}, 0)
    assert all(full_.dry(one.tenant, ("x",), one.wants) is None for one in waiting), "a full bucket is enough for whoever waits"


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
