"""What a look-up does to a case, as a table."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.reconciler.domain.cases import (
    Case,
    CaseState,
    Change,
    Finding,
    Inspection,
    Policy,
    Resolve,
    backoff,
    judge,
    recorded,
    resolved,
)

NOW = 1_000_000
POLICY = Policy(100, 5_000, 4, 60_000)
CASE = Case(UUID(int=1), UUID(int=2), "s", "slot", 1, "t", "p", "git.push", CaseState.OPEN, 0, 0, "", NOW, 0, "", "", NOW, 2, 1)


def said(finding: Finding, *, settle_ms: int = 0, state: str = "unknown") -> Inspection:
    return Inspection(finding, b"r", "why", settle_ms, 7, state)


@pytest.mark.requirement("fx.unknown")
@given(st.sampled_from(list(Finding)), st.integers(0, 10), st.integers(0, 120_000), st.integers(0, 10_000))
def test_only_what_the_gateway_proved_is_recorded_as_done_or_not_done(
    finding: Finding, failures: int, age_ms: int, settle_ms: int
) -> None:
    case = replace(CASE, failures=failures)
    verdict = judge(case, said(finding, settle_ms=settle_ms), NOW + age_ms, POLICY)
    if isinstance(verdict, Resolve):
        assert verdict.expected_version == 7
        assert (verdict.state is CaseState.ABSENT) == (finding is Finding.ABSENT)
        assert (verdict.state is CaseState.OBSERVED) == (finding is Finding.OBSERVED)
        assert bool(verdict.result) == (finding is Finding.OBSERVED)
    else:
        assert verdict.state is CaseState.OPEN
        assert finding not in (Finding.OBSERVED, Finding.ABSENT, Finding.UNDECIDABLE)
        if finding is not Finding.RESOLVED:
            assert NOW + age_ms < verdict.next_ms <= NOW + age_ms + POLICY.longest_backoff_ms
            assert age_ms < POLICY.give_up_ms, "waiting ends"


def test_not_yet_is_asked_again_after_the_settle_time_and_forgets_failures() -> None:
    again = judge(replace(CASE, failures=3), said(Finding.NOT_YET, settle_ms=1_500), NOW, POLICY)
    assert again == Change(CaseState.OPEN, NOW + 1_500, 0, "why", 7)


def test_a_provider_that_cannot_be_asked_is_given_up_after_so_many() -> None:
    pauses = []
    case = CASE
    while isinstance(verdict := judge(case, said(Finding.UNREACHABLE), NOW, POLICY), Change):
        pauses.append(verdict.next_ms - NOW)
        case = replace(case, failures=verdict.failures, lookups=case.lookups + 1)
    assert pauses == [100, 200, 400]
    assert verdict.state is CaseState.NEEDS_RECONCILIATION
    assert "in 4 tries" in verdict.evidence
    assert backoff(POLICY, 500) == 5_000


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("succeeded", CaseState.SELF_RESOLVED),
        ("failed", CaseState.SELF_RESOLVED),
        ("not_sent", CaseState.SELF_RESOLVED),
        ("requested", CaseState.SELF_RESOLVED),
        ("observed", CaseState.OBSERVED),
        ("absent", CaseState.ABSENT),
        ("needs_reconciliation", CaseState.NEEDS_RECONCILIATION),
        ("unknown", CaseState.OPEN),
        ("", CaseState.NEEDS_RECONCILIATION),
    ],
)
def test_an_effect_that_moved_takes_its_case_along(state: str, expected: CaseState) -> None:
    asked = Resolve(CaseState.ABSENT, b"", "nothing there", 2)
    change = recorded(CASE, asked, done=False, state=state, version=3, now_ms=NOW, policy=POLICY)
    assert change.state is expected
    assert judge(CASE, said(Finding.RESOLVED, state=state), NOW, POLICY).state is expected
    done = recorded(CASE, asked, done=True, state="absent", version=3, now_ms=NOW, policy=POLICY)
    assert done == Change(CaseState.ABSENT, 0, 0, "nothing there", 3)


def test_an_effect_that_keeps_moving_is_not_asked_in_a_circle() -> None:
    first = resolved(CASE, "unknown", 3, "", NOW, POLICY)
    assert (first.next_ms, first.failures) == (NOW, 1)
    second = resolved(replace(CASE, failures=1), "unknown", 4, "", NOW, POLICY)
    assert (second.next_ms, second.failures) == (NOW + 100, 2)
