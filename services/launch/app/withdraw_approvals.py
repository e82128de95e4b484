"""Approvals taken back. Answered only once it is certain: the gateway lets nothing through by it any more, or it has let
through.

Can go wrong: a gateway that does not answer. The withdrawal is recorded and sent until it does; whoever asks again is told
then.
"""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from libs.fence.certificates import Certificate
from libs.kernel.refusal import Reason, Refusal, not_found
from libs.kernel.values import value
from services.launch.app.approval_log import closing, entry
from services.launch.app.decide_outcomes import decide_and_store
from services.launch.app.hold_approvals import record_held
from services.launch.domain.approvals import Approval, ApprovalState, DecisionFacts, certificate, closed
from services.launch.domain.closing import Closing
from services.launch.domain.run import RunEventFacts
from services.launch.ports import Ports, Tx

AGAIN_MS = 1_000


@value(frozen=True, slots=True)
class Withdrawal:
    """What is asked, and by whom."""

    approval_id: UUID
    tenant: str
    project: str
    actor: str
    reason: str


@value(frozen=True, slots=True)
class Withdrawn:
    """The approval after it: withdrawn, or used before."""

    approval: Approval
    decisions: tuple[DecisionFacts, ...]
    consumed: bool


async def withdraw_approvals(ports: Ports, asks: Sequence[Withdrawal]) -> list[Withdrawn | Refusal]:
    """One outcome per ask, in order."""
    ids = sorted({ask.approval_id for ask in asks})
    found = await ports.approvals.reads.load(ids)
    now = ports.clock.now_ms()
    run_ids = sorted({approval.run_id for approval in found.values()})

    async def work(tx: Tx) -> tuple[list[Certificate], dict[int, Refusal]]:
        refusals: dict[int, Refusal] = {}
        certificates: list[Certificate] = []
        heads = await tx.lock_trees(run_ids)
        approvals = {key: one for key, one in (await tx.approvals.load(ids)).items() if one.run_id in heads}
        said = await tx.approvals.decisions(list(approvals))
        moved: list[Approval] = []
        events: list[RunEventFacts] = []
        closings: list[Closing] = []
        for number, ask in enumerate(asks):
            approval = approvals.get(ask.approval_id)
            if approval is None or approval.tenant != ask.tenant or (ask.project and approval.project != ask.project):
                refusals[number] = not_found("approval")
            elif approval.state is ApprovalState.PENDING:
                became = approval.ended(ApprovalState.WITHDRAWN, now, ask.reason)
                approvals[ask.approval_id] = became
                moved.append(became)
                events.append(entry(became, "withdrawn", f"approver:{ask.actor}", now, reason=ask.reason))
                closings.append(closing(became, ask.actor))
            elif approval.usable:
                asked = approval
                if not approval.withdraw_ms:
                    asked = replace(approval, withdraw_ms=now, withdraw_by=ask.actor, reason=ask.reason)
                    approvals[ask.approval_id] = asked
                    moved.append(asked)
                certificates.append(certificate(asked, said[ask.approval_id]))
            elif approval.state not in (ApprovalState.APPROVED, ApprovalState.WITHDRAWN):
                refusals[number] = closed(approval)
        await tx.approvals.save(moved)
        await tx.append_events(events)
        await tx.send([ports.approvals.notices.certificate(one) for one in certificates], now)
        if closings:
            await decide_and_store(ports, tx, closings, now)
        return certificates, refusals

    certificates, refusals = await ports.db.run(work)
    ports.hub.poke(run_ids)
    if certificates:
        await record_held(ports, await ports.approvals.point.hold(certificates, ports.approvals.hold_deadline_ms))
    return await _answers(ports, asks, refusals)


async def _answers(ports: Ports, asks: Sequence[Withdrawal], refusals: dict[int, Refusal]) -> list[Withdrawn | Refusal]:
    ids = {ask.approval_id for number, ask in enumerate(asks) if number not in refusals}
    approvals = await ports.approvals.reads.load(ids)
    said = await ports.approvals.reads.decisions(ids)
    return [
        refusals.get(number) or _answer(approvals.get(ask.approval_id), said.get(ask.approval_id, []))
        for number, ask in enumerate(asks)
    ]


def _answer(approval: Approval | None, said: Sequence[DecisionFacts]) -> Withdrawn | Refusal:
    if approval is None:
        return not_found("approval")
    if approval.state is ApprovalState.WITHDRAWN or approval.consumed_ms:
        return Withdrawn(approval, tuple(said), bool(approval.consumed_ms))
    if approval.state is not ApprovalState.APPROVED:
        return closed(approval)
    return Refusal(
        Reason.AUTHORITY_UNREACHABLE,
        "the withdrawal is recorded, and the gateway has not confirmed it yet: a call may still be let through",
        remedy="ask again: it goes on by itself, and is answered once it is certain",
        retry_after_ms=AGAIN_MS,
    )
