"""Authoritative for which calls are cut once their run is closed, and for what may be said of one that was. Pure.

Can go wrong: a lie. A request that may have been applied is not cut where that only loses the knowledge of it: its answer says
what became of it. A pure call changes nothing, so its connection may be closed at any moment; a process may be signalled until
it begins what cannot be taken back.
"""

from enum import StrEnum

from services.gateway.domain.effect import Failed, Outcome, ReplayClass, State

CAUSE = "aborted"
WHY = "its run was closed while it was under way"


class Abort(StrEnum):
    """How a tool's call under way is cut. Its tool declares it."""

    NONE = "none"
    """It is waited for."""
    CLOSE = "close"
    """Its connection is closed, where the call is pure."""
    SIGNAL = "signal"
    """Its process gets SIGTERM, then SIGKILL, until it begins what cannot be taken back."""


def may_cut(abort: Abort, replay_class: ReplayClass) -> bool:
    """Whether a call may be cut at all."""
    match abort:
        case Abort.CLOSE:
            return replay_class is ReplayClass.PURE
        case Abort.SIGNAL:
            return True
        case Abort.NONE:
            return False


def cut_outcome(replay_class: ReplayClass) -> Outcome:
    """What is true of a call that was cut: the provider of a pure one may have worked, and is paid; of any other nothing had
    begun that changes anything."""
    if replay_class is ReplayClass.PURE:
        return Outcome(State.UNKNOWN, cause=CAUSE, evidence=f"cut: {WHY}")
    return Outcome(
        State.NOT_SENT, failure=Failed("policy", WHY, "ABORTED"), evidence=f"cut before it began: {WHY}", cause=CAUSE
    )
