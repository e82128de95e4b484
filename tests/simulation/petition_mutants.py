"""Guards of approvals, questions and holds, taken out one at a time; see `mutants.py`."""

from dataclasses import replace
from typing import Any

from services.gateway.store import approvals as certificates
from services.gateway.store import transaction as admission
from services.launch.app import ask_approvals, withdraw_approvals
from services.launch.store import children
from services.launch.store import transaction as runs
from services.readiness.app import answer_inputs
from services.readiness.domain import steps
from services.readiness.domain.waits import WaitState
from services.readiness.store import waits as wait_rows
from services.scheduler.app.claim_attempts import ClaimDesk
from services.scheduler.app.hold_desk import HoldDesk
from tests.simulation.guards import Mutant, both, swap, untriggered

_PROPOSED = swap(admission, "admit", "WHERE r.need IS NOT NULL AND a.waits AND a.same\n", "WHERE r.need IS NOT NULL\n")
_VERSION = swap(admission, "admit", "AND c.proposal_version = a.version AND", "AND")


_CERTIFICATE = untriggered("approval_never_comes_back", "gateway.approval_certificate")
_APPROVAL = untriggered("approval_is_decided_once", "launch.approval")
_WAIT = untriggered("wait_end_is_final", "readiness.wait")
_TREES = both(swap(children, "lock_trees", "FOR NO KEY UPDATE", ""), _APPROVAL)


def _withdrawn_from_memory() -> None:
    told = withdraw_approvals._answer

    def answer(approval: Any, said: Any) -> Any:
        if approval is not None and approval.withdraw_ms and not approval.consumed_ms:
            return withdraw_approvals.Withdrawn(
                replace(approval, state=withdraw_approvals.ApprovalState.WITHDRAWN), tuple(said), False
            )
        return told(approval, said)

    withdraw_approvals._answer = answer


def _any_question_is_open() -> None:
    judged = answer_inputs._judge

    def judge(ask: Any, found: Any, by_run: Any, views: Any, now_ms: int) -> Any:
        for waits in by_run.values():
            waits.update({key: replace(wait, state=WaitState.OPEN) for key, wait in waits.items()})
        return judged(ask, found, by_run, views, now_ms)

    answer_inputs._judge = judge


def _told_as_often_as_it_comes() -> None:
    appended = runs.LaunchTx.append_events

    async def append_events(self: Any, events: Any, *, once: bool = False, words: bool = False) -> None:
        await appended(self, events, once=once and not words, words=words)

    runs.LaunchTx.append_events = append_events  # type: ignore[method-assign]


def _roots_are_not_told() -> None:
    ask_approvals.child_entry = lambda approval, now: []


def _nobody_waits_for_people() -> None:
    steps._await = lambda view, step, slots, now_ms: view.ready(step)


def _plans_go_on() -> None:
    async def settled(self: Any) -> None:
        """Whatever is under way."""

    ClaimDesk.settled = settled  # type: ignore[method-assign]


def _who_acted_is_all() -> None:
    asked = HoldDesk._who

    async def who(self: Any, *revision: Any) -> Any:
        return [one for one in await asked(self, *revision) if one.acted]

    HoldDesk._who = who  # type: ignore[method-assign]


MUTANTS: dict[str, Mutant] = {
    "approval_once": Mutant(
        "an approval that was used is not looked at: neither its mark nor the proposal that it was for",
        both(
            _PROPOSED,
            _VERSION,
            swap(admission, "admit", "c.standing = 1 AND c.consumed_ms = 0", "c.standing = 1"),
            _CERTIFICATE,
        ),
        "allowed_call_fails",
        "an approval that was used is used again",
    ),
    "approval_digest": Mutant(
        "what is sent is not compared with what was approved",
        both(_PROPOSED, _VERSION, swap(admission, "admit", "AND c.digest = sha256(a.proposal) AND", "AND")),
        "call_changes",
        "something else is sent than was approved",
    ),
    "approval_maximum": Mutant(
        "an approval stands as the newest message says",
        both(swap(certificates, "merge_certificates", "WHERE c.standing < excluded.standing AND", "WHERE"), _CERTIFICATE),
        "approval_overtaken",
        "an approval that was taken back is used",
    ),
    "withdrawn_from_memory": Mutant(
        "a withdrawal is called done before the gateway has it",
        _withdrawn_from_memory,
        "withdrawn_out_of_reach",
        "was called withdrawn, and was used",
    ),
    "decision_lock": Mutant(
        "trees are read without their locks",
        _TREES,
        "decided_beside_a_cancel",
        "an approval that was decided moves",
    ),
    "expiry_lock": Mutant(
        "the same",
        _TREES,
        "withdrawn_as_it_expires",
        "an approval that was decided moves",
    ),
    "question_closed": Mutant(
        "an answer is taken whatever stands, in the decision and in the row",
        both(_any_question_is_open, swap(wait_rows, "save_waits", "AND w.state = 1", ""), _WAIT),
        "answered_again",
        "a wait that has ended changes",
    ),
    "asked_once": Mutant(
        "what a child asks is told to its root as often as it comes",
        _told_as_often_as_it_comes,
        "asked_twice",
        "times: child.input_requested",
    ),
    "asked_under_root": Mutant(
        "what a child asks is not told to its root", _roots_are_not_told, "child_asks", "is not in the log of its root"
    ),
    "asking_waits": Mutant(
        "a step that asks people is ready again at once", _nobody_waits_for_people, "nobody_answers", "a step that asks people"
    ),
    "hold_settles": Mutant(
        "a hold is acted upon while a plan from before it is under way",
        _plans_go_on,
        "hold_meets_grant",
        "a grant of a step that all hold",
    ),
    "hold_of_all": Mutant(
        "who does not act on a hold is not named",
        _who_acted_is_all,
        "hold_unheard",
        "a grant of a step that all hold",
    ),
}
