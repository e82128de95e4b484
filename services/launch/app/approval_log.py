"""What a run's log says of its approvals, and how a run ends that people did not allow. Authoritative for the words alone."""

import json

from services.launch.domain.approvals import Approval, ApprovalState, DecisionFacts
from services.launch.domain.closing import Closing
from services.launch.domain.run import FailureFacts, RunEventFacts

ACTOR = "approval"


def entry(approval: Approval, what: str, actor: str, now_ms: int, **facts: object) -> RunEventFacts:
    """One entry: `approval.requested`, `.decision`, `.approved`, `.rejected`, `.expired`, `.stale`, `.withdrawn`,
    `.effective` or `.consumed`."""
    subject = approval.subject
    detail: dict[str, object] = {
        "approval_id": str(subject.approval_id),
        "slot": subject.slot,
        "tool": subject.tool,
        "digest": subject.digest.hex(),
    }
    text = json.dumps(detail | {name: fact for name, fact in facts.items() if fact}, ensure_ascii=False)
    return RunEventFacts(subject.run_id, 0, now_ms, f"approval.{what}", 0, subject.step_key, actor, text)


def child_entry(approval: Approval, now_ms: int) -> list[RunEventFacts]:
    """`child.approval_requested` in the log of the root: whoever watches the tree from there learns of it."""
    if approval.root_run_id is None:
        return []
    facts = {
        "child_run_id": str(approval.run_id),
        "child_step": approval.subject.step_key,
        "approval_id": str(approval.approval_id),
        "title": approval.title,
        "tool": approval.subject.tool,
    }
    text = json.dumps(facts, ensure_ascii=False)
    return [RunEventFacts(approval.root_run_id, 0, now_ms, "child.approval_requested", 0, "", f"run:{approval.run_id}", text)]


def decision_entry(approval: Approval, said: DecisionFacts) -> RunEventFacts:
    """One approver's decision."""
    how = "approve" if said.approve else "reject"
    facts = {"decision": how, "reason": said.reason, "break_glass": said.break_glass, "key_id": said.key_id}
    return entry(approval, "decision", f"approver:{said.approver}", said.decided_ms, **facts)


def closing(approval: Approval, who: str) -> Closing:
    """The run that may not go on."""
    state = approval.state
    how = "nobody decided in time" if state is ApprovalState.EXPIRED else f"{state.name.lower()} by {who}"
    what = approval.subject.tool or approval.title or "a question"
    text = f"step {approval.subject.step_key}: {what} in slot {approval.subject.slot}: {how}"
    if approval.reason:
        text += f": {approval.reason}"
    failure = FailureFacts("policy", text[:2000], f"APPROVAL_{state.name}")
    return Closing(approval.run_id, "failed", b"", failure, ACTOR, text[:2000])
