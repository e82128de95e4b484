"""Authoritative for when a run has begun: with its first lease.

The scheduler says so in an event that nothing waits for. What tells of an attempt may come sooner, of a short run even its end;
then the run has begun all the same, and its log says that before anything else. Can go wrong: a run whose steps were skipped.
Nothing of it ran, and it never was running.
"""

import json
from collections.abc import Mapping, Sequence
from uuid import UUID

from services.launch.domain.run import RunEventFacts, RunHead, RunState

_NOT_YET = frozenset({RunState.ACCEPTED, RunState.QUEUED})


def entry(run_id: UUID, at_ms: int) -> RunEventFacts:
    """What the log of a run says of it."""
    return RunEventFacts(run_id, 0, at_ms, "run.running", int(RunState.RUNNING), "", "scheduler", "{}")


def begun(steps: Sequence[RunEventFacts], heads: Mapping[UUID, RunHead]) -> list[RunEventFacts]:
    """Entries of runs that have begun, as these steps tell, and do not know it yet."""
    first: dict[UUID, int] = {}
    for step in steps:
        head = heads.get(step.run_id)
        if head is not None and head.state in _NOT_YET and json.loads(step.detail).get("attempts", 0) > 0:
            first[step.run_id] = min(step.at_ms, first.get(step.run_id, step.at_ms))
    return [entry(run_id, at_ms) for run_id, at_ms in first.items()]
