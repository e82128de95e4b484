"""Steps of runs as this process last committed them, so that the next fact about a run loads nothing.

Never decides: a view is used only where the run row, locked, still has the version that was cached. Bounded by runs and by
bytes of outputs; what does not fit is read from the rows again.
"""

from collections import OrderedDict
from uuid import UUID

from services.readiness.domain.steps import Step


class StepCache:
    """Least recently used goes first."""

    def __init__(self, max_runs: int, max_run_bytes: int, max_bytes: int) -> None:
        self._max_runs = max_runs
        self._max_run_bytes = max_run_bytes
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[UUID, tuple[int, dict[str, Step], int]] = OrderedDict()

    def get(self, run_id: UUID, version: int) -> dict[str, Step] | None:
        """The steps at this version of the run."""
        kept = self._kept.get(run_id)
        if kept is None or kept[0] != version:
            return None
        self._kept.move_to_end(run_id)
        return kept[1]

    def put(self, run_id: UUID, version: int, steps: dict[str, Step]) -> None:
        """After a commit."""
        self.drop(run_id)
        size = sum(len(step.output) + len(step.item) for step in steps.values())
        if size > self._max_run_bytes:
            return
        self._kept[run_id] = (version, steps, size)
        self._bytes += size
        while len(self._kept) > self._max_runs or self._bytes > self._max_bytes:
            self.drop(next(iter(self._kept)))

    def drop(self, run_id: UUID) -> None:
        """When the run is finished, or a commit failed."""
        kept = self._kept.pop(run_id, None)
        self._bytes -= kept[2] if kept else 0

    def clear(self) -> None:
        """When the database may have lost commits: a version may then come again with other steps."""
        self._kept.clear()
        self._bytes = 0
