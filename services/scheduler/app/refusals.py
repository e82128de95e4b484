"""What callers are told when the scheduler says no."""

from libs.kernel.refusal import Reason, Refusal
from services.scheduler.domain.commits import Holder


def no_leader() -> Refusal:
    """NO_LEADER: nothing was decided."""
    return Refusal(
        Reason.NO_LEADER,
        "the run's shard has no leader here now",
        remedy="repeat the same call; a leader is elected within seconds",
        retry_after_ms=300,
    )


_WORDS = {
    1: "child runs",
    2: "expansion of a run",
    3: "waits for events",
    4: "approvals",
    5: "requests for input",
    6: "joins of child runs",
    7: "waits for a budget",
}
"""What commands ask for, by runway.events.v1.CommandKind."""


def not_available(kind: int) -> Refusal:
    """NOT_AVAILABLE: nobody acts on such a command in this version, so it is not stored."""
    return Refusal(
        Reason.NOT_AVAILABLE,
        f"{_WORDS.get(kind, 'commands of this kind')} are not available in this version; nothing was recorded",
        field="commands.type",
        remedy="leave the command out; end the attempt, or yield without commands",
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
