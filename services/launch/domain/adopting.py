"""Authoritative for what a promoted launch makes of a run: its database may have lost the last commits, the points have not.

Each run that is not terminal adopts the greatest gate that a point holds, with its outcome, and gets an epoch of this
incarnation above it, in the same mode. Can go wrong: opening a run again that was closed. A closed gate closes it here too;
what only the lost commit knew (its output, its failure) is told again by readiness and waited for (`awaits`).
"""

from dataclasses import replace
from uuid import UUID

from libs.fence.grants import Revoked, narrowed
from libs.kernel.epochs import Mode, incarnation_of, next_epoch
from libs.kernel.values import value
from services.launch.domain.closing import Closing, Progress
from services.launch.domain.run import DECIDED, TERMINAL, TERMINAL_OF, FailureFacts, RunHead, RunState

TOLD_BY_READINESS = frozenset({"succeeded", "failed"})
"""Outcomes whose output or failure the graph's end carries."""


@value(frozen=True, slots=True)
class Held:
    """The greatest gate of a run among its points; epoch 0 where none holds one."""

    run_id: UUID
    epoch: int
    mode: Mode
    outcome: str
    revoked: tuple[Revoked, ...] = ()
    """What any point knows to be taken from it."""


@value(frozen=True, slots=True)
class Adopted:
    """A run under its epoch in this incarnation. `found`: its outcome is one that only the points still knew."""

    head: RunHead
    state: RunState
    outcome: str
    epoch: int
    found: bool
    failure: FailureFacts | None
    revoked: tuple[Revoked, ...] = ()

    @property
    def grant(self) -> tuple[str, ...]:
        """What it may do: a revocation of which the commit was lost is not lost."""
        return narrowed(self.head.capabilities, self.revoked)

    @property
    def narrowed(self) -> bool:
        """Whether points knew of something taken that launch did not."""
        return self.grant != self.head.capabilities

    @property
    def awaits(self) -> bool:
        """Whether it may not settle before readiness has told its end again."""
        return self.head.awaits or (self.found and self.outcome in TOLD_BY_READINESS)


def adopt(head: RunHead, held: Held, incarnation: int) -> Adopted | None:
    """The run in this incarnation; None where it is terminal, or was adopted already."""
    if head.state in TERMINAL or incarnation_of(head.epoch) >= incarnation:
        return None
    epoch = next_epoch(max(head.epoch, held.epoch), incarnation)
    if head.state in DECIDED or held.mode is not Mode.CLOSED:
        state = RunState.CANCELLING if head.outcome == "cancelled" else head.state
        return Adopted(head, state, head.outcome, epoch, found=False, failure=None, revoked=held.revoked)
    outcome = held.outcome or "cancelled"
    state = RunState.CANCELLING if outcome == "cancelled" else RunState.CLOSING
    failure = FailureFacts("deadline", "the run's deadline passed", "DEADLINE_EXCEEDED") if outcome == "expired" else None
    return Adopted(head, state, outcome, epoch, found=True, failure=failure, revoked=held.revoked)


def tell_again(head: RunHead, ask: Closing) -> Closing | None:
    """The end of a run whose outcome was adopted without it; None where none is awaited, or another is told."""
    return ask if head.awaits and ask.outcome == head.outcome and head.state not in TERMINAL else None


def settle_told(head: RunHead) -> Progress | None:
    """The end of a run that waited for nothing but being told; `head` is from before that."""
    if head.open_children or not head.points == head.enforced == head.quiesced:
        return None
    told = replace(head, version=head.version + 1, awaits=False)
    return Progress(told, head.enforced, head.quiesced, TERMINAL_OF[head.outcome])


@value(frozen=True, slots=True)
class Orphan:
    """A run that points hold open and launch does not know: its launch is among the lost commits. It is closed."""

    run_id: UUID
    epoch: int


def close_orphan(held: Held, incarnation: int) -> Orphan | None:
    """The epoch that closes it; None where this incarnation issued the gate, so that its launch is younger than this look."""
    if held.mode is Mode.CLOSED or incarnation_of(held.epoch) >= incarnation:
        return None
    return Orphan(held.run_id, next_epoch(held.epoch, incarnation))
