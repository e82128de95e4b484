"""Authoritative for what a caller is told when a fence says no.

Can go wrong: a refusal that hides which way out there is. `EPOCH_STALE` is cured by renewing the token once, a pause by
waiting, nothing else by repeating.
"""

from libs.fence.values import Asked, Judgement, Verdict
from libs.kernel.refusal import Reason, Refusal


def refusal_for(judgement: Judgement, asked: Asked) -> Refusal:
    """The refusal of a verdict that speaks of fences; a verdict that speaks of slots or money is not for here."""
    detail = {"run_id": str(asked.run_id), "step_key": asked.step_key}
    gate = judgement.gate
    if gate is not None:
        detail["epoch"] = str(gate.epoch)
    match judgement.verdict:
        case Verdict.SCOPE:
            return Refusal(
                Reason.SCOPE_STOPPED,
                f"{judgement.scope} is stopped",
                remedy="an operator stopped it; `runway scope list` says why and by whom, and `runway scope release` opens it",
                detail={**detail, "scope": judgement.scope},
            )
        case Verdict.CLOSED if judgement.outcome == "cancelled":
            return Refusal(
                Reason.RUN_CANCELLED,
                "the run was cancelled",
                remedy="stop working on it; nothing of it commits any more",
                detail=detail,
            )
        case Verdict.CLOSED:
            how = f" ({judgement.outcome})" if judgement.outcome else ""
            return Refusal(
                Reason.RUN_CLOSED,
                f"the run is closed{how}",
                remedy="stop working on it; launch a new run for more",
                detail={**detail, "outcome": judgement.outcome},
            )
        case Verdict.PAUSED:
            return Refusal(
                Reason.RUN_PAUSED,
                "the run is paused",
                remedy="commit a checkpoint and yield; the step is granted again when the run resumes",
                detail=detail,
            )
        case Verdict.STALE:
            return Refusal(
                Reason.EPOCH_STALE,
                "the run's epoch has moved since this token was signed",
                remedy="renew the token by a heartbeat that names this epoch, then repeat the call once",
                detail={**detail, "current_epoch": detail.get("epoch", "")},
            )
        case Verdict.FENCED | Verdict.COLD:
            return fenced(asked)
        case other:
            raise ValueError(f"{other} is not a verdict about fences")


def fenced(asked: Asked) -> Refusal:
    """LEASE_FENCED: this attempt is over, whatever it believes."""
    return Refusal(
        Reason.LEASE_FENCED,
        f"the lease of step {asked.step_key} is no longer this attempt's",
        remedy="stop the attempt; a newer grant, an expiry or a completion took the step",
        detail={"run_id": str(asked.run_id), "step_key": asked.step_key, "attempt_id": str(asked.fence.attempt_id)},
    )


def expired(asked: Asked) -> Refusal:
    """LEASE_EXPIRED: the token has died and no authority could be asked whether the lease lives."""
    return Refusal(
        Reason.LEASE_EXPIRED,
        f"the token of step {asked.step_key} has expired and its authority does not answer",
        remedy="renew the token by a heartbeat, then repeat the call",
        retry_after_ms=500,
        detail={"run_id": str(asked.run_id), "step_key": asked.step_key},
    )
