"""Authoritative for the states of a run and which may follow which. The database's trigger guards the terminal ones too.

Can go wrong: two outcomes for one run. An outcome is decided once, by one compare-and-set on the run row; everything after
that carries it out.
"""

from collections.abc import Mapping
from enum import IntEnum
from uuid import UUID

from libs.kernel.epochs import Mode
from libs.kernel.values import value


class RunState(IntEnum):
    """Where a run stands; the numbers are those of the contract and of the rows."""

    ACCEPTED = 1
    QUEUED = 2
    RUNNING = 3
    WAITING = 4
    PAUSING = 5
    PAUSED = 6
    CANCELLING = 7
    CLOSING = 8
    SUCCEEDED = 9
    FAILED = 10
    CANCELLED = 11
    EXPIRED = 12
    DENIED = 13


TERMINAL = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.EXPIRED, RunState.DENIED})
DECIDED = TERMINAL | {RunState.CANCELLING, RunState.CLOSING}
"""States in which the outcome is known."""
OPEN = frozenset(RunState) - DECIDED

FOLLOWS: Mapping[RunState, frozenset[RunState]] = {
    RunState.ACCEPTED: frozenset({RunState.QUEUED, RunState.RUNNING, RunState.PAUSING, RunState.CANCELLING, RunState.CLOSING}),
    RunState.QUEUED: frozenset({RunState.ACCEPTED, RunState.RUNNING, RunState.PAUSING, RunState.CANCELLING, RunState.CLOSING}),
    RunState.RUNNING: frozenset({RunState.WAITING, RunState.PAUSING, RunState.CANCELLING, RunState.CLOSING}),
    RunState.WAITING: frozenset({RunState.RUNNING, RunState.PAUSING, RunState.CANCELLING, RunState.CLOSING}),
    RunState.PAUSING: frozenset({RunState.PAUSED, RunState.RUNNING, RunState.CANCELLING, RunState.CLOSING}),
    RunState.PAUSED: frozenset({RunState.RUNNING, RunState.CANCELLING, RunState.CLOSING}),
    RunState.CANCELLING: frozenset({RunState.CLOSING, RunState.CANCELLED}),
    RunState.CLOSING: frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.EXPIRED}),
    **{state: frozenset() for state in TERMINAL},
}
"""Every transition there is."""

TERMINAL_OF: Mapping[str, RunState] = {
    "succeeded": RunState.SUCCEEDED,
    "failed": RunState.FAILED,
    "cancelled": RunState.CANCELLED,
    "expired": RunState.EXPIRED,
}
"""The terminal state that each outcome ends in."""


def mode_of(state: RunState) -> Mode:
    """How far a run in this state is open at its points."""
    if state in DECIDED:
        return Mode.CLOSED
    return Mode.DRAINING if state in (RunState.PAUSING, RunState.PAUSED) else Mode.OPEN


@value(frozen=True, slots=True)
class FailureFacts:
    """Why something did not succeed."""

    failure_class: str
    message: str
    type: str


@value(frozen=True, slots=True)
class RunHead:
    """What decisions about a run look at."""

    run_id: UUID
    tenant: str
    project: str
    state: RunState
    outcome: str
    epoch: int
    version: int
    points: int
    enforced: int
    quiesced: int
    capabilities: tuple[str, ...]
    budget_micros: int
    used_micros: int
    deadline_ms: int = 0
    paused_ms: int = 0
    """Since when it is pausing or paused; 0: it is not."""
    awaits: bool = False
    """The outcome was adopted after a promotion; readiness tells again what belongs to it."""
    parent_id: UUID | None = None
    root_id: UUID | None = None
    depth: int = 0
    independent: bool = False
    """Outlives its parent."""
    children: int = 0
    open_children: int = 0
    """Children that are neither independent nor terminal: it does not become terminal before they are."""
    delegated_micros: int = 0
    """What its children have of its budget, or have used of it."""
    budget_sequence: int = 1
    run_class: int = 2
    priority: int = 0
    digest: bytes = b""
    promised: str = ""
    """JSON Schema that its output must fit before its parent sees it; empty: any."""
    pause_until_ms: int = 0
    deepest: int = 0
    """The deepest level that children below it may have; 0: as the installation has it."""
    launched_by: str = ""
    """Name of the key that launched the run on top."""
    revoking: bool = False
    """Some point may not have confirmed yet what was taken from its grant."""


@value(frozen=True, slots=True)
class Run:
    """A run as its row has it; times in milliseconds since the Unix epoch, money in micros."""

    head: RunHead
    digest: bytes
    workflow_name: str
    workflow_number: int
    build: str
    run_class: int
    priority: int
    deadline_ms: int
    created_ms: int
    finished_ms: int
    enforced_ms: int
    budget_tokens: int
    used_tokens: int
    input: bytes
    output: bytes
    failure: FailureFacts | None
    labels: Mapping[str, str]
    cancel_extent: str
    sequence: int
    pause_until_ms: int = 0
    fork_of: UUID | None = None
    """The run that it continues."""
    start_by_ms: int = 0
    """When it expires if nothing of it has begun; 0: then nothing does."""
    revoked_epoch: int = 0
    """The epoch under which something was last taken from its grant; 0: nothing was."""


@value(frozen=True, slots=True)
class RunEventFacts:
    """One entry of a run's log before or after it has its sequence."""

    run_id: UUID
    sequence: int
    at_ms: int
    kind: str
    state: int
    step_key: str
    actor: str
    detail: str
