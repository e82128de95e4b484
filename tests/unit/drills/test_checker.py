"""The checker against forged histories: the good one is green, and each bad one breaks the rule that it is forged for."""

from collections.abc import Callable

import pytest

from libs.drills.checker import RULES, check
from libs.drills.history import Fact

RUN, OTHER, CANCELLED = "run-1", "run-2", "run-3"
EPOCH = 256 << 40


def fact(t: float, who: str, what: str, **facts: object) -> Fact:
    return {"t": t, "who": who, "what": what, **facts}


def call(t: float, attempt: str, call_id: str, until: float, what: str = "accepted", run: str = RUN) -> list[Fact]:
    facts: dict[str, object] = {"run": run, "step": "act", "attempt": attempt, "call": "plain", "call_id": call_id}
    return [fact(t, "worker", "began", **facts), fact(until, "worker", what, **facts)]


def lease(attempt: str, number: int, run: str = RUN) -> Fact:
    return fact(0, "worker", "lease", run=run, step="act", authority=7, lease=number, attempt=attempt)


def applied(t: float, run: str = RUN, slot: str = "plain") -> Fact:
    return fact(t, "provider", "applied", run=run, step="act", slot=slot, key=f"{run}-{slot}", place="plain")


def effect(run: str = RUN, state: str = "succeeded", slot: str = "plain") -> Fact:
    return fact(90, "final", "effect", run=run, step="act", slot=slot, state=state, dispatches=1)


def ended(run: str = RUN, outcome: str = "succeeded", epoch: int = EPOCH + 2, state: str = "") -> Fact:
    return fact(90, "final", "run", run=run, state=state or outcome, outcome=outcome, epoch=epoch)


def attempt(name: str, number: int, state: str, run: str = RUN) -> Fact:
    facts: dict[str, object] = {"run": run, "step": "act", "authority": 7, "lease": number}
    return fact(90, "final", "attempt", attempt=name, state=state, **facts)


def good() -> list[Fact]:
    """A run whose worker was lost and followed, one that a lost answer was looked up for, one that was cancelled."""
    return [
        lease("a1", 1),
        lease("a2", 3),
        fact(1, "client", "launched", request_id="q1", run=RUN, epoch=EPOCH + 1),
        fact(2, "client", "launched", request_id="q1", run=RUN, epoch=EPOCH + 1),
        fact(1, "client", "launched", request_id="q2", run=OTHER, epoch=EPOCH + 1),
        fact(1, "client", "launched", request_id="q3", run=CANCELLED, epoch=EPOCH + 1),
        *call(10, "a1", "c1", 11),
        applied(10.5),
        *call(20, "a2", "c2", 21),
        *call(30, "a1", "c3", 31, "refused"),
        applied(15, OTHER),
        fact(5, "client", "cancelled", run=CANCELLED, phase="ENFORCED", epoch=EPOCH + 2, outcome="cancelled",
             in_flight=[["act", "plain"]]),
        applied(6, CANCELLED),
        fact(40, "probe", "leader", shard=1, epoch=7, holder="s1"),
        fact(41, "probe", "leader", shard=1, epoch=9, holder="s2"),
        fact(50, "client", "seen", run=RUN, state="closing", outcome="succeeded", epoch=EPOCH + 2),
        effect(), effect(OTHER, "observed"), effect(CANCELLED, "observed"),
        attempt("a1", 1, "lost"), attempt("a2", 3, "succeeded"),
        ended(), ended(OTHER), ended(CANCELLED, "cancelled"),
        fact(91, "final", "ledger", account="spent", micros=0),
        fact(91, "final", "tenant", reserved=0, active=0),
        fact(91, "final", "outbox", service="launch", waiting=0, dead=0),
    ]  # fmt: skip


def test_a_good_history_is_green() -> None:
    assert check(good()) == []


def without(facts: list[Fact], **match: object) -> list[Fact]:
    return [f for f in facts if not all(f.get(key) == value for key, value in match.items())]


BAD: dict[str, tuple[str, Callable[[list[Fact]], list[Fact]]]] = {
    "applied twice": ("applied_once", lambda h: [*h, applied(60)]),
    "a success that never was": ("ledger_is_true", lambda h: without(h, what="applied", run=OTHER)),
    "absent, and it was applied": (
        "ledger_is_true",
        lambda h: [*without(h, what="effect", run=OTHER), effect(OTHER, "absent")],
    ),
    "applied, and in no ledger": ("ledger_is_true", lambda h: without(h, what="effect", run=OTHER)),
    "unknown in silence": ("ledger_is_true", lambda h: [*without(h, what="effect", run=OTHER), effect(OTHER, "unknown")]),
    "an effect after ENFORCED": (
        "nothing_after_enforced",
        lambda h: [*h, applied(8, CANCELLED, "keyed"), effect(CANCELLED, "succeeded", "keyed")],
    ),
    "a cancelled run that succeeded": ("enforced_stays", lambda h: [*without(h, what="run", run=CANCELLED), ended(CANCELLED)]),
    "a zombie's call": ("one_live_lease", lambda h: [*h, *call(30, "a1", "c9", 31)]),
    "two attempts succeeded": (
        "one_success",
        lambda h: [*without(h, what="attempt", attempt="a1"), attempt("a1", 1, "succeeded")],
    ),
    "one request, two runs": (
        "one_run_per_request",
        lambda h: [*h, fact(3, "client", "launched", request_id="q1", run=OTHER, epoch=EPOCH + 1)],
    ),
    "a run that never ends": (
        "one_outcome",
        lambda h: [*without(h, what="run", run=OTHER), ended(OTHER, "", EPOCH + 1, "running")],
    ),
    "a run that is gone": (
        "one_outcome",
        lambda h: [*without(h, what="run", run=OTHER), fact(90, "final", "unknown", run=OTHER)],
    ),
    "an outcome that changed": (
        "one_outcome",
        lambda h: [*h, fact(51, "client", "seen", run=OTHER, state="failed", outcome="failed", epoch=EPOCH + 2)],
    ),
    "an outcome that was taken back": (
        "outcomes_are_kept",
        lambda h: [*h, fact(60, "client", "seen", run=RUN, state="running", outcome="", epoch=EPOCH + 2)],
    ),
    "an epoch that fell": ("epochs_are_used_once", lambda h: [*without(h, what="run", run=RUN), ended(epoch=EPOCH + 1)]),
    "one epoch, two outcomes": (
        "epochs_are_used_once",
        lambda h: [*h, fact(52, "client", "seen", run=RUN, state="closing", outcome="cancelled", epoch=EPOCH + 2)],
    ),
    "a shard's epoch given twice": (
        "epochs_are_used_once",
        lambda h: [*h, fact(42, "probe", "leader", shard=1, epoch=9, holder="s3")],
    ),
    "a lease given twice": ("epochs_are_used_once", lambda h: [*h, lease("a3", 3)]),
    "money that does not add up": (
        "money_adds_up",
        lambda h: [*h, fact(91, "final", "ledger", account="run:reserved of run-1", micros=5)],
    ),
    "a child outlives its parent": ("no_orphans", lambda h: [*h, fact(91, "final", "orphan", run="child-1")]),
    "money still reserved": ("money_adds_up", lambda h: [*h, fact(91, "final", "tenant", reserved=5, active=1)]),
    "an outbox that does not drain": (
        "outboxes_drain",
        lambda h: [*h, fact(91, "final", "outbox", service="gateway", waiting=1, dead=0)],
    ),
    "a dead letter": ("outboxes_drain", lambda h: [*h, fact(91, "final", "outbox", service="gateway", waiting=0, dead=1)]),
}


@pytest.mark.requirement("ops.drills")
@pytest.mark.parametrize("forged", list(BAD))
def test_a_bad_history_is_red(forged: str) -> None:
    rule, forge = BAD[forged]
    facts = sorted(forge(good()), key=lambda f: float(f["t"]))
    assert rule in {violation.rule for violation in check(facts)}


def test_every_rule_has_a_bad_history() -> None:
    assert {rule for rule, _ in BAD.values()} == {rule.__name__ for rule in RULES}


def test_lost_launches_are_forgiven_only_where_commits_may_be_lost() -> None:
    facts = [
        *without(without(good(), what="run", run=OTHER), what="effect", run=OTHER),
        fact(90, "final", "unknown", run=OTHER),
    ]
    assert check(facts, lossy=True) == []
    assert {violation.rule for violation in check(facts)} == {"one_outcome", "ledger_is_true"}


def test_only_effects_applied_while_a_standby_heard_nothing_may_be_in_no_ledger_or_applied_once_more() -> None:
    promoted = fact(13, "drill", "forgotten", since=10)
    facts = [*(f for f in good() if f["what"] != "effect" or f["run"] != RUN), promoted]
    assert not check([*facts, applied(14)]), "lost with its intent, and made again"
    assert {v.rule for v in check([*facts, applied(14), applied(15)])} == {"applied_once"}
    before = [*(f for f in facts if f["what"] != "applied" or f["run"] != RUN), applied(9.5)]
    assert {v.rule for v in check(before)} == {"ledger_is_true"}, "the standby had its intent"
    assert {v.rule for v in check([*before, applied(14)])} == {"applied_once", "ledger_is_true"}
