"""Decisions about approvals, each signed: recorded with what follows from them in one transaction.

A yes that completes an approval leaves for the gateway with the commit, and is asked of it at once; the step is told only
when the gateway holds it. A no closes the run. Can go wrong: a decision and an expiry that meet. Whoever holds the run's lock
first decides.
"""

from collections.abc import Sequence

from libs.fence.certificates import Certificate
from libs.kernel.refusal import Refusal, not_found
from libs.kernel.values import value
from services.launch.app.approval_log import closing, decision_entry, entry
from services.launch.app.decide_outcomes import decide_and_store
from services.launch.app.hold_approvals import record_held
from services.launch.domain.approvals import (
    Approval,
    ApprovalState,
    Decision,
    DecisionFacts,
    after,
    answered,
    certificate,
    closed,
    judge,
)
from services.launch.domain.closing import Closing
from services.launch.domain.facts import Notice
from services.launch.domain.run import DECIDED, RunEventFacts, RunState
from services.launch.ports import Ports, Tx


@value(frozen=True, slots=True)
class DecidedApproval:
    """The approval after it; `replayed`: nothing changed."""

    approval: Approval
    decisions: tuple[DecisionFacts, ...]
    replayed: bool


STILL = frozenset({RunState.PAUSING, RunState.PAUSED})
"""States in which time stands still for a run."""


class _Changes:
    """What one batch does, collected."""

    def __init__(self) -> None:
        self.recorded: list[DecisionFacts] = []
        self.moved: dict[object, Approval] = {}
        self.events: list[RunEventFacts] = []
        self.notices: list[Notice] = []
        self.certificates: list[Certificate] = []
        self.closings: list[Closing] = []


async def decide_approvals(ports: Ports, asks: Sequence[Decision]) -> list[DecidedApproval | Refusal]:
    """One outcome per decision, in order."""
    ids = sorted({ask.approval_id for ask in asks})
    found = await ports.approvals.reads.load(ids)
    now = ports.clock.now_ms()
    run_ids = sorted({approval.run_id for approval in found.values()})
    refusing = {found[ask.approval_id].run_id for ask in asks if not ask.approve and ask.approval_id in found}

    async def work(tx: Tx) -> tuple[_Changes, list[bool | Refusal]]:
        outcomes: list[bool | Refusal] = []
        changes = _Changes()
        heads = await tx.lock_trees(sorted(refusing), run_ids)
        approvals = {key: one for key, one in (await tx.approvals.load(ids)).items() if one.run_id in heads}
        said = await tx.approvals.decisions(list(approvals))
        keys = await tx.approvals.keys({(ask.tenant, ask.key_id) for ask in asks})
        for ask in asks:
            approval = approvals.get(ask.approval_id)
            try:
                if approval is not None and approval.tenant == ask.tenant and heads[approval.run_id].state in DECIDED:
                    _refuse_over(approval, ask)
                key = keys.get((ask.tenant, ask.key_id))
                still = approval is not None and heads[approval.run_id].state in STILL
                fact = judge(approval, said.get(ask.approval_id, []), ask, key, now, still=still)
            except Refusal as no:
                outcomes.append(no)
                continue
            outcomes.append(fact is None)
            if fact is not None and approval is not None:
                said[ask.approval_id].append(fact)
                approvals[ask.approval_id] = _follow(ports, changes, approval, said[ask.approval_id], now)
        await _store(ports, tx, changes, now)
        return changes, outcomes

    changes, outcomes = await ports.db.run(work)
    ports.hub.poke({fact.run_id for fact in changes.recorded})
    if changes.certificates:
        await record_held(ports, await ports.approvals.point.hold(changes.certificates, ports.approvals.hold_deadline_ms))
    return await _answers(ports, asks, outcomes)


def _refuse_over(approval: Approval, ask: Decision) -> None:
    if approval.state is ApprovalState.PENDING and (not ask.project or approval.project == ask.project):
        raise closed(approval.ended(ApprovalState.WITHDRAWN, 0, "the run is over"))


def _follow(ports: Ports, changes: _Changes, approval: Approval, said: Sequence[DecisionFacts], now: int) -> Approval:
    """What one recorded decision leads to."""
    fact = said[-1]
    became = after(approval, said, now)
    changes.recorded.append(fact)
    changes.moved[became.approval_id] = became
    changes.events.append(decision_entry(approval, fact))
    if became.state is ApprovalState.REJECTED:
        changes.events.append(entry(became, "rejected", f"approver:{fact.approver}", now, reason=fact.reason))
        changes.closings.append(closing(became, fact.approver))
    elif became.state is ApprovalState.APPROVED:
        glass = any(one.break_glass for one in said)
        changes.events.append(entry(became, "approved", f"approver:{fact.approver}", now, break_glass=glass))
        if became.subject.tool:
            changes.certificates.append(certificate(became, said))
            changes.notices.append(ports.approvals.notices.certificate(changes.certificates[-1]))
        else:
            changes.notices.append(ports.approvals.notices.answered(answered(became, said), now))
    return became


async def _store(ports: Ports, tx: Tx, changes: _Changes, now: int) -> None:
    await tx.approvals.add_decisions(changes.recorded)
    await tx.approvals.save(list(changes.moved.values()))
    await tx.append_events(changes.events)
    await tx.send(changes.notices, now)
    if changes.closings:
        await decide_and_store(ports, tx, changes.closings, now)


async def _answers(
    ports: Ports, asks: Sequence[Decision], outcomes: Sequence[bool | Refusal]
) -> list[DecidedApproval | Refusal]:
    ids = {ask.approval_id for ask, outcome in zip(asks, outcomes, strict=True) if not isinstance(outcome, Refusal)}
    approvals = await ports.approvals.reads.load(ids)
    said = await ports.approvals.reads.decisions(ids)
    answers: list[DecidedApproval | Refusal] = []
    for ask, outcome in zip(asks, outcomes, strict=True):
        if isinstance(outcome, Refusal):
            answers.append(outcome)
        elif ask.approval_id not in approvals:
            answers.append(not_found("approval"))
        else:
            answers.append(DecidedApproval(approvals[ask.approval_id], tuple(said[ask.approval_id]), outcome))
    return answers
