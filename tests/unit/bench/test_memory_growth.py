"""What `make soak` calls flat."""

import random

import pytest

from tests.bench.bench_stack import memory_growth


@pytest.mark.parametrize(
    ("per_sample", "flat"), [(0.0, True), (0.02, True), (0.2, False)], ids=["level", "a collector's moods", "a leak"]
)
def test_growth_is_told_from_noise(per_sample: float, flat: bool) -> None:
    noise = random.Random(7)
    samples = [{"launch": 90 + per_sample * at + noise.uniform(-3, 3)} for at in range(360)]
    assert memory_growth(samples)["launch"]["flat"] is flat


def test_a_cache_that_fills_first_is_not_growth() -> None:
    samples = [{"scheduler": 90.0 + 80 * min(1.0, at / 50)} for at in range(360)]
    assert memory_growth(samples)["scheduler"] == {"early_mb": 170.0, "late_mb": 170.0, "flat": True}


def test_a_process_that_came_late_is_judged_by_what_is_there() -> None:
    samples = [{"launch": 90.0} | ({"worker": 50.0} if at > 350 else {}) for at in range(360)]
    assert memory_growth(samples)["worker"]["flat"] is True
