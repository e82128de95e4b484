"""Values about children: what came of which run, what a join tells, what comes back, how far a tree has come, what waits for
a budget. Pure.

Authoritative for how much of a join's children is told at once: the first of them, within so many bytes; the rest is read by
pages.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from libs.kernel.values import value
from services.launch.domain.joining import Counts, Join, JoinKey
from services.launch.domain.run import TERMINAL, FailureFacts, Run, RunHead

WARNED, WARNED_CHARS = 20, 300
"""Most children that one warning names, and how much it says of each."""
TOLD_CHILDREN = 100
TOLD_BYTES = 65_536
"""Of an answer: it is in the input of each further attempt of the step."""


def below(tops: Collection[UUID], heads: Mapping[UUID, RunHead]) -> dict[UUID, RunHead]:
    """Of these runs, those that came of the tops at any depth, are not terminal and do not outlive their parent; in order of
    ids. (Ids say nothing of who is above whom: clocks jump.)"""
    children: dict[UUID, list[UUID]] = {}
    for run_id, head in heads.items():
        if head.parent_id is not None and not head.independent and head.state not in TERMINAL:
            children.setdefault(head.parent_id, []).append(run_id)
    found: set[UUID] = set()
    above = list(tops)
    while above:
        new = [run_id for run_id in children.get(above.pop(), ()) if run_id not in found]
        found.update(new)
        above += new
    return {run_id: heads[run_id] for run_id in sorted(found)}


@value(frozen=True, slots=True)
class SliceBack:
    """A slice that comes back to its parent's envelope: `spent` by the child and all below it."""

    parent_id: UUID
    delegation: bytes
    spent: int


@value(frozen=True, slots=True)
class SliceTaken:
    """The gateway's answer for the slices of one parent."""

    taken: bool
    reason: str
    free: int


@value(frozen=True, slots=True)
class Envelope:
    """What a run's gate holds at the gateway."""

    held: int
    used: int
    free: int


@value(frozen=True, slots=True)
class JoinedChild:
    """A child that was waited for."""

    run_id: UUID
    name: str
    state: int
    output: bytes
    failure: FailureFacts | None


@value(frozen=True, slots=True)
class DeniedSpawn:
    """Children that were never made."""

    slot: str
    children: int
    failure: FailureFacts


@value(frozen=True, slots=True)
class JoinedFacts:
    """A join that is answered, with the first of its children; `whole`: these are all that were made."""

    join: Join
    counts: Counts
    children: Sequence[JoinedChild]
    denied: Sequence[DeniedSpawn]
    whole: bool


@value(frozen=True, slots=True)
class ChildRow:
    """A child and what its parent calls it."""

    name: str
    step_key: str
    slot: str
    group: str
    run: Run


@value(frozen=True, slots=True)
class TreeCounts:
    """How far all below a run has come."""

    total: int = 0
    accepted: int = 0
    enforced: int = 0
    quiesced: int = 0


@value(frozen=True, slots=True)
class BudgetWait:
    """A step that waits for a greater budget than that of `sequence`."""

    run_id: UUID
    step_key: str
    slot: str
    sequence: int


def warning_of(key: JoinKey, counts: Counts, failed: Sequence[JoinedChild], denied: Sequence[DeniedSpawn]) -> str:
    """What the run's log says of children that a join went on without: the first of them, as JSON."""
    named: list[dict[str, object]] = [
        {"child": child.name, "run_id": str(child.run_id)} | _why(child.failure or FailureFacts("", "it was cancelled", ""))
        for child in failed
    ]
    named += [{"spawn": item.slot, "children": item.children} | _why(item.failure) for item in denied]
    said = {"join": key[2], "failures": counts.failures, "failed": named[:WARNED]}
    return json.dumps(said, ensure_ascii=False)


def _why(failure: FailureFacts) -> dict[str, object]:
    return {"class": failure.failure_class, "type": failure.type, "message": failure.message[:WARNED_CHARS]}


def told(children: Sequence[JoinedChild]) -> list[JoinedChild]:
    """As many as may be told at once, in order."""
    found: list[JoinedChild] = []
    left = TOLD_BYTES
    for child in children[:TOLD_CHILDREN]:
        left -= len(child.output) + len(child.name) + 150
        if left < 0:
            break
        found.append(child)
    return found
