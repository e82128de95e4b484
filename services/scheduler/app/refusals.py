"""What callers are told when the scheduler says no."""

from libs.kernel.refusal import Reason, Refusal
from services.scheduler.ports import Holder


def no_leader() -> Refusal:
    """NO_LEADER: nothing was decided."""
    return Refusal(
        Reason.NO_LEADER,
        "the run's shard has no leader here now",
        remedy="repeat the same call; a leader is elected within seconds",
        retry_after_ms=300,
    )


def fenced(holder: Holder) -> Refusal:
    """LEASE_FENCED: this attempt is over, whatever it believes."""
    return Refusal(
        Reason.LEASE_FENCED,
        f"the lease of step {holder.step_key} is no longer this attempt's",
        remedy="stop the attempt; a newer grant, an expiry or a completion took the step",
        detail={
            "run_id": str(holder.run_id),
            "step_key": holder.step_key,
            "attempt_id": str(holder.fence.attempt_id),
        },
    )
