"""How a row of the figures ends, and how its figures are reckoned: what is missed is said, whatever way it is missed."""

import json

import pytest

from tests.bench import numbers, shares
from tests.bench.check import RANGES
from tests.bench.tenants import most_at_once


@pytest.mark.requirement("sched.fair")
@pytest.mark.parametrize(
    ("judged", "missed"),
    [
        ({"wait_ms": 100.0, "index": 0.99}, []),
        ({"wait_ms": 100.5, "index": 0.99}, ["wait_ms: 100.5 is more than 100"]),
        ({"wait_ms": 1.0, "index": 0.98}, ["index: 0.98 is less than 0.99"]),
        ({"wait_ms": None, "index": 1.0}, ["wait_ms: nothing was measured"]),
        ({"wait_ms": 1.0}, ["index: nothing was measured"]),
        ({"wait_ms": 1.0, "index": 1.0, "other": 1.0}, ["other: ranges.json has no bound for it"]),
    ],
)
def test_a_bound_is_missed_above_below_and_where_nothing_was_measured(
    judged: dict[str, float | None], missed: list[str]
) -> None:
    assert numbers.beyond(judged, {"wait_ms": {"most": 100}, "index": {"least": 0.99}}) == missed


@pytest.mark.requirement("sched.fair")
def test_every_row_has_bounds_and_every_bound_a_row() -> None:
    bounds = json.loads(RANGES.read_text())["numbers"]
    assert bounds.keys() == numbers.ROWS.keys()
    assert all(bound.keys() <= {"most", "least"} and bound for row in bounds.values() for bound in row.values())


@pytest.mark.requirement("sched.flood")
def test_the_most_leases_at_once_are_counted_not_sampled() -> None:
    assert most_at_once([(0, 10), (5, 15), (9, None), (20, 30)]) == 3
    assert most_at_once([(0, 10), (10, 20)]) == 1, "one ended in the millisecond in which the next began"
    assert most_at_once([(0, None)] * 4) == 4, "what lives counts"
    assert most_at_once([]) == 0


@pytest.mark.requirement("sched.fair")
def test_a_tenants_part_is_what_it_held_within_the_span() -> None:
    def lease(tenant: str, leased_ms: int, ended_ms: int | None) -> dict[str, object]:
        return {"tenant": tenant, "leased_ms": leased_ms, "ended_ms": ended_ms}

    fair = [lease(name, 0, None) for name, weight in shares.WEIGHTS.items() for _ in range(weight)]
    found = shares._parts(fair, 1_000, 2_000)
    assert (found["share_error_percent"], found["jain_index"], found["slots_used"]) == (0, 1, 16)
    assert found["longest_without_a_grant_ms"] == 1_000, "nothing was granted within the span"
    more = [*fair, lease("ash", 500, 1_500), lease("ash", 0, 900), lease("ash", 2_100, 2_200)]
    assert shares._parts(more, 1_000, 2_000)["slot_seconds"]["ash"] == 1.5
    assert shares._parts(more, 1_000, 2_000)["share_error_percent"] == pytest.approx(45.45, abs=0.01)
