"""Approvals that nobody has decided in time: that fails the run, unless it is over.

Can go wrong: a decision at the same moment. The run's lock orders the two, and the second finds what the first made.
"""

from services.launch.app.approval_log import closing, entry
from services.launch.app.decide_outcomes import decide_and_store
from services.launch.domain.approvals import Approval, ApprovalState
from services.launch.ports import Ports, Tx


async def expire_approvals(ports: Ports, limit: int = 500) -> int:
    """Ends those that are over; how many."""
    now = ports.clock.now_ms()
    over = await ports.approvals.reads.over(now, limit)
    if not over:
        return 0
    ended_runs = {run_id for run_id, _, ended in over if ended}

    async def work(tx: Tx) -> tuple[list[Approval], int]:
        await tx.lock_trees(sorted({run_id for run_id, _, ended in over if not ended}), sorted(ended_runs))
        found = await tx.approvals.load([approval_id for _, approval_id, _ in over])
        pending = [approval for approval in found.values() if approval.state is ApprovalState.PENDING]
        late = [a for a in pending if a.run_id not in ended_runs and a.subject.expires_ms <= now]
        left = [a for a in pending if a.run_id in ended_runs]
        expired = [approval.ended(ApprovalState.EXPIRED, now, "") for approval in late]
        dropped = [approval.ended(ApprovalState.WITHDRAWN, now, "the run is over") for approval in left]
        await tx.approvals.save([*expired, *dropped])
        await tx.append_events([entry(approval, "expired", "launch", now) for approval in expired])
        if expired:
            await decide_and_store(ports, tx, [closing(approval, "") for approval in expired], now)
        return expired, len(dropped)

    expired, dropped = await ports.db.run(work)
    ports.hub.poke({approval.run_id for approval in expired})
    return len(expired) + dropped
