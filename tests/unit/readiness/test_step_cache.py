"""Steps in memory: by version only, bounded by runs and bytes, forgotten when the database may have lost commits."""

from uuid import UUID

from services.readiness.app.cache import StepCache
from services.readiness.domain.steps import Step, StepState


def steps(size: int) -> dict[str, Step]:
    return {"a": Step("a", StepState.SUCCEEDED, output=b"x" * size)}


def test_only_the_version_that_was_kept_is_found() -> None:
    cache = StepCache(10, 100, 1000)
    cache.put(UUID(int=1), 2, steps(1))
    assert cache.get(UUID(int=1), 2) == steps(1)
    assert cache.get(UUID(int=1), 3) is None
    cache.clear()
    assert cache.get(UUID(int=1), 2) is None


def test_the_least_used_leaves_when_runs_or_bytes_are_too_many() -> None:
    cache = StepCache(3, 100, 200)
    for number in (1, 2, 3):
        cache.put(UUID(int=number), 1, steps(10))
    assert cache.get(UUID(int=1), 1)
    cache.put(UUID(int=4), 1, steps(10))
    assert [number for number in (1, 2, 3, 4) if cache.get(UUID(int=number), 1)] == [1, 3, 4]
    cache.put(UUID(int=5), 1, steps(101))
    assert cache.get(UUID(int=5), 1) is None
    for _ in range(50):
        cache.put(UUID(int=6), 1, steps(95))
    cache.put(UUID(int=7), 1, steps(95))
    assert [number for number in (1, 3, 4, 6, 7) if cache.get(UUID(int=number), 1)] == [4, 6, 7]
