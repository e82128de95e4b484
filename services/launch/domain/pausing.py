"""Authoritative for pauses: who may be paused and resumed, under which epoch, and what time stands still. Pure.

A pause is `(epoch, draining)`: the epoch stays, so what is under way may still end; a resume is `(next epoch, open)`: what
slept through it is refused, and asks for a new token. Can go wrong: a run that is resumed although it may not go on. Its
budget is looked at, and its deadline moves by the time that it stood still.
"""

from libs.kernel.epochs import Mode, next_epoch
from libs.kernel.refusal import Reason, Refusal
from libs.kernel.values import value
from services.launch.domain.run import DECIDED, RunHead, RunState

PAUSED = (RunState.PAUSING, RunState.PAUSED)


@value(frozen=True, slots=True)
class Moved:
    """A run paused or resumed: what its row becomes, conditional on the version of `head`."""

    head: RunHead
    state: RunState
    epoch: int
    mode: Mode
    deadline_ms: int
    paused_ms: int
    pause_until_ms: int


def decide_pause(head: RunHead, longest_ms: int, now_ms: int) -> Moved | None:
    """The run pausing; None where it is paused. Refused where its outcome is decided."""
    refuse_decided(head)
    if head.state in PAUSED:
        return None
    until_ms = now_ms + longest_ms
    return Moved(head, RunState.PAUSING, head.epoch, Mode.DRAINING, head.deadline_ms, now_ms, until_ms)


def decide_resume(head: RunHead, incarnation: int, now_ms: int) -> Moved | None:
    """The run going on; None where it is not paused. Refused where its outcome is decided, or it has nothing left to spend."""
    refuse_decided(head)
    if head.state not in PAUSED:
        return None
    if 0 < head.budget_micros <= head.used_micros:
        raise Refusal(
            Reason.BUDGET_EXHAUSTED,
            f"the run has used {head.used_micros} micros of {head.budget_micros}: it could not go on",
            remedy="raise its budget: `runway budget raise`, or cancel it",
            detail={"budget_micros": str(head.budget_micros), "used_micros": str(head.used_micros)},
        )
    stood_ms = max(0, now_ms - head.paused_ms)
    epoch = next_epoch(head.epoch, incarnation)
    return Moved(head, RunState.RUNNING, epoch, Mode.OPEN, head.deadline_ms + stood_ms, 0, 0)


def refuse_decided(head: RunHead) -> None:
    """RUN_CLOSED once the outcome is known."""
    if head.state in DECIDED:
        raise Refusal(
            Reason.RUN_CLOSED,
            f"the run's outcome is decided: {head.outcome or 'denied'}",
            remedy="none: the outcome stands; launch a new run",
            detail={"outcome": head.outcome, "state": head.state.name.lower()},
        )
