"""What receipts and findings do to an effect: the transition tables, money, duplicates."""

from dataclasses import replace
from uuid import UUID

import pytest

from services.gateway.app.adopt_tries import VOID
from services.gateway.domain.effect import (
    RESOLUTIONS,
    Effect,
    EffectName,
    Outcome,
    Receipt,
    ReplayClass,
    Resolution,
    State,
    Try,
    land,
    resolve,
)

NAME = EffectName(UUID(int=1), "s", "x")
NOW = 5_000


def effect(state: State = State.REQUESTED, *, dispatches: int = 1, answered: int = 0, held: int = 10) -> Effect:
    return Effect(
        name=NAME,
        tool="git.push",
        replay_class=ReplayClass.IDEMPOTENT,
        state=state,
        version=3,
        dispatches=dispatches,
        answered=answered,
        proposal=b"p",
        proposal_digest=b"d",
        result=b"old" if state in (State.SUCCEEDED, State.OBSERVED) else None,
        failure=None,
        evidence="",
        tenant="acme",
        project="web",
        held=held,
        cost=0,
        tokens=0,
        created_ms=1,
        changed_ms=1,
        resolved_ms=0,
    )


def attempt(state: State = State.REQUESTED, *, n: int = 1, held: int = 10, cost: int = 0) -> Try:
    return Try(NAME, n, UUID(int=n), UUID(int=7), 1, 1, UUID(int=9), state, held, cost, 0, 1, 0)


def receipt(state: State, *, n: int = 1, cost: int | None = None, tokens: int = 0) -> Receipt:
    result = b"new" if state is State.SUCCEEDED else None
    return Receipt(NAME, n, UUID(int=n), Outcome(state, result, cost=cost, tokens=tokens))


@pytest.mark.parametrize("said", [State.SUCCEEDED, State.FAILED, State.NOT_SENT])
@pytest.mark.parametrize("was", [State.REQUESTED, State.UNKNOWN, State.NEEDS_RECONCILIATION])
def test_a_receipt_resolves_whatever_waits_for_it(was: State, said: State) -> None:
    landed = land(effect(was), attempt(was), receipt(said), NOW)
    assert landed is not None
    assert (landed.effect.state, landed.effect.version, landed.effect.resolved_ms) == (said, 4, NOW)
    assert (landed.attempt.state, landed.attempt.held, landed.released) == (said, 0, 10)
    assert landed.used == (10 if said is State.SUCCEEDED else 0)


def test_an_unknown_outcome_keeps_its_hold_and_is_not_resolved() -> None:
    landed = land(effect(), attempt(), receipt(State.UNKNOWN), NOW)
    assert landed is not None
    assert (landed.effect.state, landed.effect.resolved_ms, landed.effect.held) == (State.UNKNOWN, 0, 10)
    assert (landed.released, landed.used) == (0, 0)
    assert landed.attempt.received_ms == NOW


@pytest.mark.parametrize("was", [State.SUCCEEDED, State.FAILED, State.NOT_SENT])
@pytest.mark.parametrize("said", list(State))
def test_a_repeated_receipt_changes_nothing(was: State, said: State) -> None:
    assert land(effect(was, answered=1), attempt(was, held=0), receipt(said), NOW) is None


def test_what_a_receipt_says_it_cost_is_used_and_the_hold_goes_back() -> None:
    landed = land(effect(), attempt(), receipt(State.SUCCEEDED, cost=4, tokens=70), NOW)
    assert landed is not None
    assert (landed.released, landed.used, landed.tokens) == (10, 4, 70)
    assert (landed.effect.held, landed.effect.cost, landed.effect.tokens) == (0, 4, 70)


def test_a_late_success_of_an_observed_effect_keeps_the_answer_and_corrects_the_money() -> None:
    seen = replace(effect(State.OBSERVED, answered=1, held=0), cost=10)
    landed = land(seen, attempt(State.OBSERVED, held=0, cost=10), receipt(State.SUCCEEDED, cost=4), NOW)
    assert landed is not None
    assert (landed.effect.state, landed.effect.result, landed.moved, landed.duplicate) == (State.OBSERVED, b"old", False, False)
    assert (landed.used, landed.effect.cost) == (-6, 4)


def test_an_effect_that_was_taken_for_absent_and_happened_has_happened() -> None:
    landed = land(effect(State.ABSENT, answered=1, held=0), attempt(State.ABSENT, held=0), receipt(State.SUCCEEDED), NOW)
    assert landed is not None
    assert (landed.effect.state, landed.effect.result, landed.duplicate) == (State.SUCCEEDED, b"new", False)


def test_two_successes_on_one_slot_keep_the_first_and_say_so() -> None:
    done = effect(State.SUCCEEDED, dispatches=2, answered=2, held=0)
    landed = land(done, attempt(State.ABSENT, n=1, held=0), receipt(State.SUCCEEDED, n=1), NOW)
    assert landed is not None
    assert landed.duplicate
    assert (landed.effect.state, landed.effect.result, landed.effect.answered) == (State.SUCCEEDED, b"old", 2)
    assert landed.effect.failure is not None
    assert landed.effect.failure.type == "DUPLICATE_EFFECT"
    assert "try 1" in landed.effect.evidence


def test_an_older_try_answers_a_slot_that_has_no_answer_and_its_failure_does_not() -> None:
    waiting = effect(State.REQUESTED, dispatches=2)
    landed = land(waiting, attempt(State.ABSENT, n=1, held=0), receipt(State.SUCCEEDED, n=1), NOW)
    assert landed is not None
    assert (landed.effect.state, landed.effect.answered) == (State.SUCCEEDED, 1)
    failed = land(waiting, attempt(State.UNKNOWN, n=1), receipt(State.FAILED, n=1), NOW)
    assert failed is not None
    assert not failed.moved
    assert failed.effect.state is State.REQUESTED


def finding(state: State, *, version: int = 3, actor: str = "lookup") -> Resolution:
    return Resolution(NAME, state, b"seen" if state is State.OBSERVED else None, "head", version, actor)


@pytest.mark.requirement("fx.unknown")
@pytest.mark.parametrize("was", list(State))
@pytest.mark.parametrize("target", list(RESOLUTIONS))
def test_only_doubt_is_resolved_and_a_persons_case_only_by_a_person(was: State, target: State) -> None:
    for actor in ("lookup", "ada"):
        landed = resolve(effect(was, answered=1), attempt(was), finding(target, actor=actor), NOW)
        allowed = was in RESOLUTIONS[target] and (was is State.UNKNOWN or actor == "ada")
        assert (landed is not None) == allowed
        if landed is not None:
            assert (landed.effect.state, landed.effect.version) == (target, 4)


def test_a_finding_about_an_older_version_loses() -> None:
    assert resolve(effect(State.UNKNOWN), attempt(State.UNKNOWN), finding(State.ABSENT, version=2), NOW) is None


@pytest.mark.parametrize(
    ("target", "released", "used"),
    [(State.OBSERVED, 10, 10), (State.ABSENT, 10, 0), (State.NEEDS_RECONCILIATION, 0, 0)],
)
def test_findings_settle_money(target: State, released: int, used: int) -> None:
    landed = resolve(effect(State.UNKNOWN), attempt(State.UNKNOWN), finding(target), NOW)
    assert landed is not None
    assert (landed.released, landed.used) == (released, used)
    assert landed.effect.held == 10 - released
    assert landed.effect.result == (b"seen" if target is State.OBSERVED else None)


@pytest.mark.requirement("fx.unknown")
@pytest.mark.parametrize("meanwhile", [state for state in State if state is not State.REQUESTED])
def test_a_try_that_was_thought_void_keeps_what_its_own_call_said_meanwhile(meanwhile: State) -> None:
    void = Receipt(NAME, 1, UUID(int=1), VOID)
    assert land(effect(meanwhile), attempt(meanwhile), void, NOW) is None
    landed = land(effect(), attempt(), void, NOW)
    assert landed is not None
    assert landed.effect.state is State.NOT_SENT
