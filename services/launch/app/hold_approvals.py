"""What the gateway says of approvals that it was sent: that it holds them, that they were used, or that they are taken back.

Only here is a step told that it may go on, and only here is a withdrawal final. Answers come from the call that was made at
once and again from the outbox, in any order. Can go wrong: one that the gateway refuses. It is an error in the log of this
service, and nothing of the step goes on.
"""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from libs.fence.certificates import Standing
from libs.telemetry.logs import get_logger
from services.launch.app.approval_log import closing, entry
from services.launch.app.decide_outcomes import decide_and_store
from services.launch.domain.approvals import Approval, ApprovalState, HeldAnswer, answered
from services.launch.domain.closing import Closing
from services.launch.domain.run import RunEventFacts
from services.launch.ports import Ports, Tx

log = get_logger(__name__)


async def record_held(ports: Ports, answers: Sequence[HeldAnswer]) -> None:
    """Notes how approvals stand at the gateway; what is known already changes nothing."""
    for answer in answers:
        if answer.standing is Standing.REFUSED:
            log.error("the gateway refuses an approval", approval=answer.approval_id, problem=answer.problem)
    good = [answer for answer in answers if answer.standing is not Standing.REFUSED]
    if not good:
        return
    now = ports.clock.now_ms()
    run_ids = sorted({answer.run_id for answer in good})
    closing_runs = sorted({answer.run_id for answer in good if answer.standing is Standing.WITHDRAWN})

    async def work(tx: Tx) -> None:
        await tx.lock_trees(closing_runs, run_ids)
        approvals = await tx.approvals.load([answer.approval_id for answer in good])
        before = dict(approvals)
        events: list[RunEventFacts] = []
        closings: list[Closing] = []
        for answer in good:
            known = approvals.get(answer.approval_id)
            if known is not None:
                approvals[answer.approval_id] = _follow(known, answer, now, events, closings)
        moved = [approval for key, approval in approvals.items() if approval != before[key]]
        await tx.approvals.save(moved)
        told = [a for a in moved if a.effective_ms and not before[a.approval_id].effective_ms]
        said = await tx.approvals.decisions([approval.approval_id for approval in told])
        notices = [ports.approvals.notices.answered(answered(a, said[a.approval_id]), now) for a in told]
        await tx.append_events(events)
        await tx.send(notices, now)
        if closings:
            await decide_and_store(ports, tx, closings, now)

    await ports.db.run(work)
    ports.hub.poke(run_ids)


async def record_consumed(ports: Ports, consumed: Sequence[tuple[UUID, UUID, int]]) -> None:
    """Approvals (run, approval, when) that have allowed their dispatch."""
    await record_held(ports, [HeldAnswer(run, approval, Standing.CONSUMED, at_ms) for run, approval, at_ms in consumed])


def _follow(approval: Approval, answer: HeldAnswer, now: int, events: list[RunEventFacts], closings: list[Closing]) -> Approval:
    """What one answer makes of it."""
    became = approval
    if answer.standing is Standing.WITHDRAWN:
        if approval.usable and approval.withdraw_ms:
            became = approval.ended(ApprovalState.WITHDRAWN, now, approval.reason)
            who = approval.withdraw_by
            events.append(entry(became, "withdrawn", f"approver:{who}", now, reason=approval.reason))
            closings.append(closing(became, who))
        return became
    if approval.state is ApprovalState.PENDING and answer.standing is Standing.CONSUMED:
        became = replace(became, state=ApprovalState.APPROVED, decided_ms=now)  # by signatures that a promotion has lost here
        events.append(entry(became, "approved", "gateway", now))
    if became.state is ApprovalState.APPROVED and not approval.effective_ms:
        became = replace(became, effective_ms=now)
        events.append(entry(became, "effective", "gateway", now))
    if answer.standing is Standing.CONSUMED and not approval.consumed_ms:
        became = replace(became, consumed_ms=answer.consumed_ms or now)
        events.append(entry(became, "consumed", "gateway", now))
    return became
