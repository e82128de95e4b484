"""Authoritative for how a run ends: who decides the outcome, and when it may become terminal.

Every terminal state is reached through a decision (`closing(outcome)`; a cancel is one that says `cancelling` until it is
enforced), raised as `(next epoch, closed)` at every point the version touches, and written only when each point has enforced
it and reports nothing live, unresolved or held, and each child that does not outlive it is terminal. Can go wrong: terminal
before quiesced; that would let an effect outlive its run's account.
"""

from collections.abc import Sequence
from enum import IntEnum
from uuid import UUID

from libs.kernel.epochs import Mode, next_epoch
from libs.kernel.values import value
from services.launch.domain.run import DECIDED, TERMINAL, TERMINAL_OF, FailureFacts, RunHead, RunState


class Limit(IntEnum):
    """What a run may have outlived."""

    DEADLINE = 1
    START = 2
    PAUSE = 3


MOVING = frozenset({RunState.ACCEPTED, RunState.QUEUED, RunState.RUNNING, RunState.WAITING})
"""States in which a deadline counts."""


@value(frozen=True, slots=True)
class Lapse:
    """A limit that had passed when somebody looked, without a lock. Can go wrong: a run that moved on since; so it is judged
    again behind the run's lock."""

    limit: Limit
    now_ms: int

    def holds(self, head: RunHead) -> bool:
        """Whether it has passed, as the run stands now."""
        match self.limit:
            case Limit.DEADLINE:
                return head.state in MOVING and head.deadline_ms <= self.now_ms
            case Limit.START:
                return head.state in (RunState.ACCEPTED, RunState.QUEUED)
            case Limit.PAUSE:
                return head.state in (RunState.PAUSING, RunState.PAUSED) and head.pause_until_ms <= self.now_ms


@value(frozen=True, slots=True)
class Closing:
    """An outcome to decide. `output` on success, `failure` else; `actor` and `reason` for the log; `lapse`: only if that
    limit has passed still."""

    run_id: UUID
    outcome: str
    output: bytes
    failure: FailureFacts | None
    actor: str
    reason: str
    lapse: Lapse | None = None


@value(frozen=True, slots=True)
class Decided:
    """A closing that won: the run's next state and epoch, conditional on its version."""

    closing: Closing
    head: RunHead
    state: RunState
    epoch: int


def decide_closing(head: RunHead, ask: Closing, incarnation: int) -> Decided | None:
    """The run's closing under its next epoch; None when its outcome was decided before, which stands, or what it is for has
    passed."""
    if head.state in DECIDED or (ask.lapse is not None and not ask.lapse.holds(head)):
        return None
    state = RunState.CANCELLING if ask.outcome == "cancelled" else RunState.CLOSING
    return Decided(ask, head, state, next_epoch(head.epoch, incarnation))


@value(frozen=True, slots=True)
class Receipt:
    """What one point confirmed: it committed `epoch` (0: it did not), and whether nothing of the run is left there. With that
    comes what the run has used (`usage_sequence` 0: nothing), since its own report may come later than the settlement."""

    run_id: UUID
    point: int
    epoch: int
    quiesced: bool
    used_micros: int = 0
    used_tokens: int = 0
    usage_sequence: int = 0
    mode: Mode = Mode.CLOSED
    """Of the gate that it committed; a report that nothing is left comes from none that is open."""


@value(frozen=True, slots=True)
class Progress:
    """A run's accounting after receipts: bits of points, and the state that follows."""

    head: RunHead
    enforced: int
    quiesced: int
    state: RunState

    @property
    def terminal(self) -> bool:
        """Whether the run may now be settled."""
        return self.state in TERMINAL


def apply_receipts(head: RunHead, receipts: Sequence[Receipt]) -> Progress | None:
    """Merges receipts for the run's present epoch (none: its last child has ended); None when they change nothing. Late ones of
    older epochs count nothing; for a pause, which keeps the epoch, only those of a gate that drains: the answer to the resume
    before it, or to a revocation, may come late. An open run counts them while something that was taken from it may not be
    confirmed, under whichever epoch that is then: each later one carries the smaller grant too."""
    confirms = head.state in (RunState.CANCELLING, RunState.CLOSING, RunState.PAUSING)
    if not confirms and (not head.revoking or head.state in TERMINAL):
        return None
    enforced, quiesced = head.enforced, head.quiesced
    still = head.state in (RunState.PAUSING, RunState.PAUSED)
    for receipt in receipts:
        if receipt.epoch == head.epoch and not (still and receipt.mode is Mode.OPEN):
            enforced |= receipt.point
            quiesced |= receipt.point if receipt.quiesced else 0
    enforced, quiesced = enforced & head.points, quiesced & head.points
    state: RunState = head.state
    if head.state == RunState.PAUSING:
        state = RunState.PAUSED if enforced == quiesced == head.points else head.state
    elif confirms and enforced == head.points:
        state = RunState.CLOSING
        if quiesced == head.points and not head.awaits and not head.open_children:
            state = TERMINAL_OF[head.outcome]
    if (enforced, quiesced, state) == (head.enforced, head.quiesced, head.state):
        return None
    return Progress(head, enforced, quiesced, state)
