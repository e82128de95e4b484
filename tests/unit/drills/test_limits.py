"""What drills of limits reckon by themselves, on forged histories."""

import pytest

from libs.drills.faults.capacities import CAPACITY, LAG_MS, PER_MINUTE, beyond

pytestmark = pytest.mark.requirement("ops.drills")


def test_calls_as_fast_as_a_bucket_feeds_are_within_it_and_one_more_is_not() -> None:
    apart = 60_000 / PER_MINUTE
    fed = [0.0] * CAPACITY + [number * apart for number in range(1, 20)]
    assert beyond(fed) == 0
    assert beyond([]) == 0
    lagging = LAG_MS / apart
    burst = [*fed, *[fed[-1]] * (int(lagging) + 2)]
    assert beyond(burst) > 0, "a burst at the end of a bucket that was emptied"
    assert beyond([0.0] * (CAPACITY + int(lagging) + 1)) > 0, "a burst beyond a full one"


def test_a_full_bucket_after_a_rest_is_a_burst_of_its_own() -> None:
    rest = CAPACITY * 60_000 / PER_MINUTE
    assert beyond([0.0] * CAPACITY + [rest] * CAPACITY) == 0
