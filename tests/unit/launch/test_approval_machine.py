"""Any sequence of proposals, decisions, answers of the gateway, withdrawals and clock jumps: an approval is decided once, by enough of
those who may, with signatures that verify, and what ended never allows anything.

The rules of `domain/approvals.py` and of `app/hold_approvals.py` under a model that keeps who said what. No I/O: locks, rows and the wire
are the tests' in `tests/rpc/approvals`.
"""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from runway_sdk import ApproverKey

from libs.fence.certificates import Standing, Subject, problem_of, statement
from libs.kernel.refusal import Reason, Refusal
from services.launch.app.hold_approvals import _follow as follow
from services.launch.domain.approvals import (
    FOLLOWS,
    Approval,
    ApprovalState,
    Decision,
    DecisionFacts,
    HeldAnswer,
    after,
    born,
    certificate,
    judge,
    superseded,
)
from services.launch.domain.approvals import (
    ApproverKey as KeyRow,
)

PEOPLE = ("rita", "rolf", "rosa", "lena", "olga", "otto")
"""Lena launched, Olga published, Rosa is not named by the rule, Otto is an operator."""
KEYS = {name: ApproverKey.generate() for name in PEOPLE}
ELIGIBLE = ("rita", "rolf", "lena", "olga")
NEED = 2
RUN = UUID(int=9)
pytestmark = pytest.mark.requirement("fx.approval")


class Life(RuleBasedStateMachine):
    """Approvals of one slot, oldest first; `final` is what people were told first of each."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100
        self.approvals: list[Approval] = []
        self.said: dict[UUID, list[DecisionFacts]] = {}
        self.final: dict[UUID, ApprovalState] = {}
        self.used: dict[UUID, int] = {}

    def put(self, number: int, became: Approval) -> None:
        known = self.approvals[number]
        if became.state is not known.state:
            assert became.state in FOLLOWS[known.state]
            assert not known.consumed_ms, "what was used moved"
        assert became.subject == known.subject
        if known.consumed_ms:
            assert became.consumed_ms == known.consumed_ms
        self.approvals[number] = became

    @rule(version=st.integers(1, 5), length=st.integers(30, 200))
    def propose(self, version: int, length: int) -> None:
        """A command, maybe late."""
        number = len(self.approvals)
        words = bytes([version]) * 32
        subject = Subject(UUID(int=number + 1), RUN, "s", "slot", "tool", words, "p" * 64, version, 0, self.now + length)
        new = Approval(
            subject,
            str(number),
            "acme",
            "web",
            "w@1",
            "t",
            b"",
            NEED,
            ELIGIBLE,
            "lena",
            "olga",
            ApprovalState.PENDING,
            self.now,
        )
        new = born(new, self.approvals)
        for old in superseded(new, self.approvals):
            self.put(next(n for n, known in enumerate(self.approvals) if known.approval_id == old.approval_id), old)
        self.approvals.append(new)
        self.said[new.approval_id] = []

    @precondition(lambda self: self.approvals)
    @rule(
        data=st.data(),
        who=st.sampled_from(("rita", "rolf", "otto") * 3 + PEOPLE),
        yes=st.sampled_from([True] * 5 + [False]),
        alone=st.sampled_from([True] * 7 + [False]),
        bent=st.sampled_from([""] * 12 + ["key", "words", "end"]),
    )
    def decide(self, data: st.DataObject, who: str, yes: bool, alone: bool, bent: str) -> None:
        """Somebody's decision, sometimes signed for something else; operators break the glass, and others try to."""
        glass = (who == "otto") is alone
        number = max(0, len(self.approvals) - 1 - data.draw(st.sampled_from([0, 0, 0, 1, 2])))
        approval = self.approvals[number]
        about = replace(approval.subject, digest=bytes(32)) if bent == "words" else approval.subject
        about = replace(about, expires_ms=about.expires_ms + 1) if bent == "end" else about
        signed = KEYS["otto" if bent == "key" and who != "otto" else who].sign(
            statement(about, approve=yes, approver=who, reason="why", break_glass=glass)
        )
        scopes = frozenset({"operator"} if who == "otto" else {"reviewer"})
        ask = Decision(approval.approval_id, "acme", "", who, scopes, yes, "k", signed, "why", glass)
        key = KeyRow("acme", "k", who, KEYS[who].public, 0)
        said = self.said[approval.approval_id]
        try:
            fact = judge(approval, said, ask, key, self.now)
        except Refusal as no:
            self.refused(approval, who, yes, glass, bent if who != "otto" or bent != "key" else "", no)
            return
        if fact is None:
            mine = [one.approve for one in said if one.approver == who]
            assert mine == [yes] or approval.state.name == ("APPROVED" if yes else "REJECTED")
            return
        assert approval.state is ApprovalState.PENDING
        assert self.now < approval.subject.expires_ms
        assert (who in ("rita", "rolf") and not glass) or (who == "otto" and glass)
        assert not bent or (bent == "key" and who == "otto")
        said.append(fact)
        self.put(number, after(approval, said, self.now))

    def refused(self, approval: Approval, who: str, yes: bool, glass: bool, bent: str, no: Refusal) -> None:
        """A refusal has a cause."""
        decided = approval.state is not ApprovalState.PENDING or self.now >= approval.subject.expires_ms
        otherwise = any(one.approver == who and one.approve is not yes for one in self.said[approval.approval_id])
        may = (who in ("rita", "rolf") and not glass) or (who == "otto" and glass)
        causes = {
            Reason.APPROVAL_CLOSED: decided or otherwise,
            Reason.APPROVAL_STALE: approval.state is ApprovalState.STALE,
            Reason.APPROVAL_NOT_ELIGIBLE: not may,
            Reason.SIGNATURE_INVALID: bool(bent),
        }
        assert causes[no.reason], no

    @precondition(lambda self: any(a.state is ApprovalState.APPROVED for a in self.approvals))
    @rule(data=st.data(), standing=st.sampled_from([Standing.ISSUED, Standing.WITHDRAWN, Standing.CONSUMED]))
    def hear(self, data: st.DataObject, standing: Standing) -> None:
        """What the gateway says, once, twice or late; it says `used` of what it may have let through."""
        number = data.draw(st.sampled_from([n for n, a in enumerate(self.approvals) if a.state is ApprovalState.APPROVED]))
        approval = self.approvals[number]
        closings: list[object] = []
        became = follow(approval, HeldAnswer(RUN, approval.approval_id, standing, self.now), self.now, [], closings)  # type: ignore[arg-type]
        self.put(number, became)
        assert bool(closings) == (became.state is ApprovalState.WITHDRAWN)
        if standing is Standing.WITHDRAWN:
            assert became.state is ApprovalState.APPROVED or (approval.withdraw_ms and not approval.consumed_ms)
        if standing is Standing.CONSUMED:
            self.used.setdefault(approval.approval_id, became.consumed_ms)
            assert became.effective_ms

    @precondition(lambda self: self.approvals)
    @rule(data=st.data(), also_pending=st.sampled_from([False, False, True]))
    def withdraw(self, data: st.DataObject, also_pending: bool) -> None:
        """As `app/withdraw_approvals.py` has it."""
        number = data.draw(st.integers(0, len(self.approvals) - 1))
        approval = self.approvals[number]
        if approval.state is ApprovalState.PENDING and also_pending:
            self.put(number, approval.ended(ApprovalState.WITHDRAWN, self.now, "no"))
        elif approval.usable and not approval.withdraw_ms:
            self.put(number, replace(approval, withdraw_ms=self.now, withdraw_by="rolf"))

    @rule(by=st.sampled_from([-20, 1, 5, 40, 150]), noted=st.booleans())
    def time(self, by: int, noted: bool) -> None:
        """Clocks jump, also back; what is due is noted, sooner or later."""
        self.now = max(1, self.now + by)
        if not noted:
            return
        for number, approval in enumerate(self.approvals):
            if approval.state is ApprovalState.PENDING and approval.subject.expires_ms <= self.now:
                self.put(number, approval.ended(ApprovalState.EXPIRED, self.now, ""))

    @invariant()
    def decided_once_by_enough(self) -> None:
        """What people were told first stays, or ends unused; nothing that ended is a certificate that is good."""
        for approval in self.approvals:
            said = self.said[approval.approval_id]
            assert len({one.approver for one in said}) == len(said)
            carried = certificate(approval, said)
            assert (carried.standing is Standing.ISSUED) == (
                approval.state is ApprovalState.APPROVED and not approval.withdraw_ms
            )
            if approval.state is ApprovalState.APPROVED:
                assert problem_of(carried) == ""
                glass = any(one.break_glass for one in said)
                assert glass or {one.approver for one in said} == {"rita", "rolf"}
                assert all(one.approve for one in said)
            if approval.state is ApprovalState.REJECTED:
                assert [one.approve for one in said].count(False) == 1
            if approval.state is not ApprovalState.PENDING:
                first = self.final.setdefault(approval.approval_id, approval.state)
                assert approval.state is first or first is ApprovalState.APPROVED
            if approval.approval_id in self.used:
                assert approval.consumed_ms == self.used[approval.approval_id]

    @invariant()
    def one_question(self) -> None:
        """Nobody is asked about two proposals of one slot."""
        assert sum(approval.state is ApprovalState.PENDING for approval in self.approvals) <= 1


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
