"""Authoritative for the order in which waiting calls start and are shed, over any backlog.

Can go wrong: an example that agrees with the sort by chance; so the properties are stated without sorting.
"""

from hypothesis import given
from hypothesis import strategies as st

from libs.rpc.shedding import Bounds, Criticality, Waiting, decide, retry_after_ms

NOW = 1_000
CALLS = st.lists(st.tuples(st.sampled_from(Criticality), st.none() | st.integers(NOW - 5, NOW + 5)), max_size=40).map(
    lambda items: [Waiting(index, *item) for index, item in enumerate(items)]
)
BOUNDS = st.builds(Bounds, st.integers(0, 10), st.integers(0, 10))


@given(CALLS, st.integers(0, 12), BOUNDS)
def test_each_call_has_one_fate_and_the_bounds_hold(calls: list[Waiting], under_way: int, bounds: Bounds) -> None:
    made = decide(calls, under_way, bounds, NOW)
    named = [*made.start, *made.shed, *made.lapsed]
    kept = set(calls) - set(named)
    assert len(named) == len(set(named))
    assert len(made.start) <= max(0, bounds.under_way - under_way)
    assert len(kept) <= bounds.waiting
    assert not made.shed or len(kept) == bounds.waiting
    assert not (kept or made.shed) or under_way + len(made.start) >= bounds.under_way


@given(CALLS, st.integers(0, 12), BOUNDS)
def test_a_call_past_its_deadline_is_not_started(calls: list[Waiting], under_way: int, bounds: Bounds) -> None:
    made = decide(calls, under_way, bounds, NOW)
    assert set(made.lapsed) == {call for call in calls if call.deadline_ms is not None and call.deadline_ms <= NOW}


@given(CALLS, st.integers(0, 12), BOUNDS)
def test_bulk_is_shed_first_and_the_oldest_of_it(calls: list[Waiting], under_way: int, bounds: Bounds) -> None:
    made = decide(calls, under_way, bounds, NOW)
    kept = set(calls) - {*made.start, *made.shed, *made.lapsed}
    for shed in made.shed:
        for other in kept:
            assert shed.criticality <= other.criticality
            if shed.criticality == other.criticality:
                assert (shed.arrival < other.arrival) == (shed.criticality is Criticality.BULK)


@given(CALLS, st.integers(0, 12), BOUNDS)
def test_the_more_critical_starts_first_then_the_older(calls: list[Waiting], under_way: int, bounds: Bounds) -> None:
    made = decide(calls, under_way, bounds, NOW)
    for started in made.start:
        for other in set(calls) - {*made.start, *made.lapsed}:
            assert (-started.criticality, started.arrival) < (-other.criticality, other.arrival)


@given(st.integers(0, 10_000), st.integers(0, 10_000), BOUNDS)
def test_the_advice_to_come_again_grows_with_the_backlog_within_limits(one: int, more: int, bounds: Bounds) -> None:
    first, second = (retry_after_ms(backlog, bounds, 100, 5_000) for backlog in (one, one + more))
    assert 100 <= first <= second <= 5_000


def test_ten_times_the_places_ask_for_a_longer_pause() -> None:
    assert retry_after_ms(100, Bounds(10, 5), 100, 5_000) == 1_100
