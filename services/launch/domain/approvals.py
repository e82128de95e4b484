"""Authoritative for approvals: what each state may become, who may decide, what a new proposal does to older ones. Pure.

pending → approved | rejected | expired | stale | withdrawn, once; an approval that was not used yet may still expire, become
stale or be taken back. A child asks through its root: its approval stands under both, and nobody may decide it who launched the
root or published the version of any run on the way. Can go wrong: a decision that is about something else than what will be
done. What is signed names the digest of the content, and the gateway compares it with what it will send.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from uuid import UUID

from libs.fence.certificates import Certificate, Signature, Standing, Subject, statement, verifies
from libs.fence.rules import Call, Rule
from libs.kernel.refusal import Reason, Refusal, not_found
from libs.kernel.values import value
from services.launch.domain.workflow import ROLES, ApprovalRule, StepSpec

REVIEWER, OPERATOR = "reviewer", "operator"
"""Scopes of keys: who may decide, and who may decide alone against the rule."""


class ApprovalState(IntEnum):
    """Where an approval stands; the numbers are those of the contract and of the rows."""

    PENDING = 1
    APPROVED = 2
    REJECTED = 3
    EXPIRED = 4
    STALE = 5
    WITHDRAWN = 6


FOLLOWS: Mapping[ApprovalState, frozenset[ApprovalState]] = {
    ApprovalState.PENDING: frozenset(ApprovalState) - {ApprovalState.PENDING},
    ApprovalState.APPROVED: frozenset({ApprovalState.EXPIRED, ApprovalState.STALE, ApprovalState.WITHDRAWN}),
    ApprovalState.REJECTED: frozenset(),
    ApprovalState.EXPIRED: frozenset(),
    ApprovalState.STALE: frozenset(),
    ApprovalState.WITHDRAWN: frozenset(),
}
"""Every transition there is; those of an approval that was approved only while it is not used."""


@value(frozen=True, slots=True)
class Asked:
    """What a command asks. `length_ms` 0: as the rule or the installation says; `problem`: why nobody can be asked this. Class,
    total and policy as the gateway's refusal said them: empty and -1 where it did not."""

    run_id: UUID
    step_key: str
    command_slot: str
    slot: str
    tool: str = ""
    title: str = ""
    content: bytes = b""
    digest: bytes = b""
    proposal_version: int = 0
    hold_micros: int = 0
    need: int = 1
    eligible: tuple[str, ...] = ()
    length_ms: int = 0
    problem: str = ""
    effect_class: str = ""
    total_micros: int = -1
    policy: str = ""

    @property
    def call(self) -> Call:
        """As rules see it."""
        return Call(self.step_key, self.tool, self.hold_micros, self.effect_class, max(self.total_micros, 0))


@value(frozen=True, slots=True)
class Approval:
    """An approval as its row has it."""

    subject: Subject
    command_slot: str
    tenant: str
    project: str
    workflow: str
    title: str
    content: bytes
    need: int
    eligible: tuple[str, ...]
    requester: str
    owner: str
    state: ApprovalState
    requested_ms: int
    decided_ms: int = 0
    effective_ms: int = 0
    consumed_ms: int = 0
    withdraw_ms: int = 0
    withdraw_by: str = ""
    reason: str = ""
    root_run_id: UUID | None = None
    """The run on top of the tree that asks; None: itself."""
    owners_above: tuple[str, ...] = ()
    """Who published the versions of the runs above it."""

    @property
    def approval_id(self) -> UUID:
        """Its id."""
        return self.subject.approval_id

    @property
    def run_id(self) -> UUID:
        """Its run."""
        return self.subject.run_id

    @property
    def place(self) -> tuple[str, str]:
        """Step and slot of what it is about."""
        return self.subject.step_key, self.subject.slot

    @property
    def usable(self) -> bool:
        """Whether it may still allow something."""
        return self.state is ApprovalState.APPROVED and not self.consumed_ms

    def ended(self, state: ApprovalState, now_ms: int, reason: str) -> "Approval":
        """As it becomes; what may not follow is a fault."""
        if state not in FOLLOWS[self.state] or self.consumed_ms:
            raise ValueError(f"{self.state.name} cannot become {state.name}")
        return replace(self, state=state, decided_ms=now_ms, reason=reason)


@value(frozen=True, slots=True)
class DecisionFacts:
    """One approver's decision as its row has it."""

    approval_id: UUID
    run_id: UUID
    approver: str
    approve: bool
    key_id: str
    public_key: bytes
    signature: bytes
    reason: str
    break_glass: bool
    decided_ms: int


@value(frozen=True, slots=True)
class ApproverKey:
    """A public key as its row has it."""

    tenant: str
    key_id: str
    approver: str
    public_key: bytes
    created_ms: int
    revoked_ms: int = 0


@value(frozen=True, slots=True)
class Decision:
    """What an approver says, and with what rights."""

    approval_id: UUID
    tenant: str
    project: str
    approver: str
    scopes: frozenset[str]
    approve: bool
    key_id: str
    signature: bytes
    reason: str = ""
    break_glass: bool = False


@value(frozen=True, slots=True)
class Answered:
    """What the step is told under the slot of its command."""

    run_id: UUID
    step_key: str
    command_slot: str
    refused: bool
    by: str
    facts: Mapping[str, object]


@value(frozen=True, slots=True)
class HeldAnswer:
    """How an approval stands at the gateway."""

    run_id: UUID
    approval_id: UUID
    standing: Standing
    consumed_ms: int = 0
    problem: str = ""


def rules_behind(steps: Iterable[StepSpec], entries: Collection[Rule]) -> list[ApprovalRule]:
    """The rules of these steps that became these entries of a grant: each of the step whose it was, if the entry says it."""
    found = []
    for step in steps:
        asked = {
            (one.tool, one.need, one.above_micros, one.above_total_micros) for one in entries if one.origin in (step.key, "")
        }
        found += [
            rule
            for rule in step.approvals
            if any((named, rule.need, rule.above_micros, rule.above_total_micros) in asked for named in rule.named)
        ]
    return found


def who_and_how_long(named: Sequence[ApprovalRule], governing: Sequence[ApprovalRule]) -> tuple[tuple[str, ...], int]:
    """Who may decide about a call that these rules name, those of runs above it too (empty: every reviewer), and for how long
    (0: as the installation says). Of several lists those who are in all of them, where they are enough; else the list of the
    rules that govern, or the first."""
    lists = [rule.eligible for rule in (*governing, *named) if rule.eligible]
    both = set(lists[0]).intersection(*lists[1:]) if lists else set()
    enough = both & ROLES or len(both) >= max((rule.need for rule in named), default=1)
    eligible = tuple(sorted(both)) if enough else lists[0] if lists else ()
    return eligible, min((rule.expires_in_ms for rule in governing if rule.expires_in_ms), default=0)


def superseded(new: Approval, others: Collection[Approval]) -> list[Approval]:
    """Older approvals of the same slot that a new proposal ends, as they become."""
    return [
        old.ended(ApprovalState.STALE, new.requested_ms, "what it is about was proposed anew")
        for old in others
        if old.place == new.place
        and old.approval_id != new.approval_id
        and old.subject.proposal_version <= new.subject.proposal_version
        and (old.state is ApprovalState.PENDING or old.usable)
    ]


def born(new: Approval, others: Collection[Approval]) -> Approval:
    """A new approval; stale from the beginning where a later proposal was told of before it."""
    late = any(o.place == new.place and o.subject.proposal_version > new.subject.proposal_version for o in others)
    if not late or not new.subject.tool:
        return new
    return new.ended(ApprovalState.STALE, new.requested_ms, "what it is about was proposed anew")


def closed(approval: Approval) -> Refusal:
    """APPROVAL_CLOSED or APPROVAL_STALE: how it was decided stands."""
    how = approval.state.name.lower()
    stale = approval.state is ApprovalState.STALE
    return Refusal(
        Reason.APPROVAL_STALE if stale else Reason.APPROVAL_CLOSED,
        "what it is about was proposed anew, with other content" if stale else f"the approval is {how}: that stands",
        remedy="decide the newer approval: `runway approval list`" if stale else "look at it: `runway approval show`",
        detail={"state": how, "approval_id": str(approval.approval_id)},
    )


def judge(
    approval: Approval | None,
    said: Sequence[DecisionFacts],
    ask: Decision,
    key: ApproverKey | None,
    now_ms: int,
    *,
    still: bool = False,
) -> DecisionFacts | None:
    """The decision to record; None where it changes nothing. Refuses what may not be decided, or not by him. `still`: the
    run is paused, so its approvals do not expire; but what is signed now would name a time that has passed."""
    if approval is None or approval.tenant != ask.tenant or (ask.project and approval.project != ask.project):
        raise not_found("approval")
    mine = next((one for one in said if one.approver == ask.approver), None)
    if mine is not None and mine.approve is ask.approve:
        return None
    if mine is not None:
        raise Refusal(
            Reason.APPROVAL_CLOSED,
            f"{ask.approver} has decided otherwise: the first decision stands",
            remedy="look at it: `runway approval show`; an approval that is not used yet can be withdrawn",
            detail={"state": approval.state.name.lower(), "approval_id": str(approval.approval_id)},
        )
    if approval.state is not ApprovalState.PENDING:
        if (approval.state, ask.approve) in ((ApprovalState.APPROVED, True), (ApprovalState.REJECTED, False)):
            return None
        raise closed(approval)
    if now_ms >= approval.subject.expires_ms and still:
        raise Refusal(
            Reason.RUN_PAUSED,
            "its run is paused, and its time stands still: it gets that time back when the run goes on",
            remedy="resume the run, then decide: `runway run resume`",
            detail={"state": approval.state.name.lower(), "approval_id": str(approval.approval_id)},
        )
    if now_ms >= approval.subject.expires_ms:
        raise closed(replace(approval, state=ApprovalState.EXPIRED))
    _check_right(approval, ask)
    if key is None or key.revoked_ms or key.approver != ask.approver:
        raise _unsigned(f"{ask.approver} has no key {ask.key_id} here", "register the key: `runway approval key register`")
    signed = statement(
        approval.subject, approve=ask.approve, approver=ask.approver, reason=ask.reason, break_glass=ask.break_glass
    )
    if not verifies(key.public_key, ask.signature, signed):
        raise _unsigned(
            "the signature does not verify over this decision", "read the approval again, and sign what it says now"
        )
    return DecisionFacts(
        approval.approval_id,
        approval.run_id,
        ask.approver,
        ask.approve,
        key.key_id,
        key.public_key,
        ask.signature,
        ask.reason,
        ask.break_glass,
        now_ms,
    )


def _unsigned(problem: str, remedy: str) -> Refusal:
    return Refusal(Reason.SIGNATURE_INVALID, problem, field="signature", remedy=remedy)


def _check_right(approval: Approval, ask: Decision) -> None:
    """Separation of duties, and who the rule names. An operator may break it, for a reason that is kept."""
    if ask.break_glass:
        if OPERATOR not in ask.scopes:
            raise _not_eligible(
                f"{ask.approver} is no operator", "let an operator break the glass, or let the reviewers decide"
            )
        if not ask.reason:
            raise Refusal(
                Reason.INVALID_FIELD, "reason is empty", field="reason", remedy="say why the rule is broken: it is kept"
            )
        return
    if REVIEWER not in ask.scopes:
        raise _not_eligible(f"{ask.approver} is no reviewer", "use a key that has the scope reviewer")
    duties = [("launched the run", approval.requester), ("published the workflow", approval.owner)]
    duties += [("published a workflow above it", who) for who in approval.owners_above]
    for duty, who in duties:
        if ask.approver == who:
            raise _not_eligible(f"{ask.approver} {duty}", "let somebody else decide")
    if approval.eligible and ask.approver not in approval.eligible and not ask.scopes & set(approval.eligible):
        raise _not_eligible(
            f"the rule does not name {ask.approver}", f"let one of these decide: {', '.join(approval.eligible)}"
        )


def _not_eligible(problem: str, remedy: str) -> Refusal:
    return Refusal(Reason.APPROVAL_NOT_ELIGIBLE, problem, remedy=remedy)


def after(approval: Approval, said: Sequence[DecisionFacts], now_ms: int) -> Approval:
    """What the decisions so far make of it: one no is a no, enough yes are a yes; an operator's alone is enough."""
    if approval.state is not ApprovalState.PENDING:
        return approval
    refused = next((one for one in said if not one.approve), None)
    if refused is not None:
        return replace(approval, state=ApprovalState.REJECTED, decided_ms=now_ms, reason=refused.reason)
    if any(one.break_glass for one in said) or len(said) >= approval.need:
        at_once = 0 if approval.subject.tool else now_ms  # a question of the step allows nothing outside
        return replace(approval, state=ApprovalState.APPROVED, decided_ms=now_ms, effective_ms=at_once, consumed_ms=at_once)
    return approval


def certificate(approval: Approval, said: Sequence[DecisionFacts]) -> Certificate:
    """What the gateway is to hold of it."""
    standing = Standing.ISSUED if approval.state is ApprovalState.APPROVED and not approval.withdraw_ms else Standing.WITHDRAWN
    signatures = [
        Signature(one.public_key, one.signature, one.approver, one.break_glass, one.reason) for one in said if one.approve
    ]
    return Certificate(approval.subject, standing, signatures)


def answered(approval: Approval, said: Sequence[DecisionFacts] = ()) -> Answered:
    """What its step is told."""
    approvers = sorted(one.approver for one in said if one.approve)
    facts = {
        "approval_id": str(approval.approval_id),
        "state": approval.state.name.lower(),
        "digest": approval.subject.digest.hex(),
        "approvers": approvers,
        "break_glass": any(one.break_glass for one in said),
    }
    return Answered(approval.run_id, approval.subject.step_key, approval.command_slot, False, ", ".join(approvers)[:500], facts)


def refused(asked: Asked, problem: str) -> Answered:
    """What a step is told whose question nobody can be asked."""
    return Answered(asked.run_id, asked.step_key, asked.command_slot, True, problem[:500], {})
