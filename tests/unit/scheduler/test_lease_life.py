"""What a heartbeat means, when silence means lost, and how an end is told. No clock of anybody but the test."""

from dataclasses import replace
from uuid import UUID

import pytest

from libs.kernel.epochs import Mode, StepFence
from libs.kernel.ids import NIL
from services.scheduler.domain.asker import Asker
from services.scheduler.domain.ending import Ending, told
from services.scheduler.domain.expiry import Evidence, Hold, sweep
from services.scheduler.domain.lease import Answer, Beat, Lease, beat
from services.scheduler.domain.ticket import Contract, End

CALM = Evidence(loop_lag_ms=0, database_ms=0, etcd_ms=0, heard=1)
TTL = 9_000
FIRST = 5_000
A = Asker("a", "")


def lease(number: int = 1, *, worker: str = "w", heard_ms: int = 0, beaten: bool = True, ends_ms: int | None = None) -> Lease:
    return Lease(
        run_id=UUID(int=number),
        step_key="s",
        shard=0,
        fence=StepFence(7, 1, UUID(int=100 + number)),
        ticket_sequence=1,
        tenant="a",
        project="p",
        worker_id=worker,
        claim_id=NIL,
        contract=Contract("f", 0, 0, (), (), frozenset(), 0),
        workflow_digest=b"",
        attempt_number=1,
        run_class=2,
        deadline_ms=0,
        epoch=1,
        mode=Mode.OPEN,
        ttl_ms=TTL,
        granted_ms=0,
        heard_ms=heard_ms,
        beaten=beaten,
        ends_ms=ends_ms,
        renew_ms=0,
    )


def said(held: Lease) -> Beat:
    return Beat(held.run_id, held.step_key, held.fence.attempt_id, held.fence.lease_epoch)


def ended(endings: list[Ending]) -> list[tuple[int, End]]:
    return [(ending.run_id.int, ending.end) for ending in endings]


def test_a_beat_of_the_holder_is_heard() -> None:
    held = lease(beaten=False)
    assert beat(held, said(held), A, "w", 500) is Answer.LIVE
    assert (held.heard_ms, held.beaten) == (500, True)
    assert beat(held, said(held), Asker("a", "p"), "other", 600) is Answer.LIVE


@pytest.mark.requirement("attempt.fenced")
def test_a_beat_of_anybody_else_changes_nothing() -> None:
    held = lease(beaten=False)
    good = said(held)
    strangers = [
        (replace(good, attempt_id=UUID(int=5)), A),
        (replace(good, lease_epoch=3), A),
        (good, Asker("b", "")),
        (good, Asker("a", "q")),
        (good, Asker("a", "", fleet=True)),
    ]
    for stranger, who in strangers:
        assert beat(held, stranger, who, "w", 500) is Answer.FENCED
    assert beat(None, good, A, "w", 500) is Answer.FENCED
    held.stopping = True
    assert beat(held, good, A, "w", 500) is Answer.CANCELLED
    assert (held.heard_ms, held.beaten) == (0, False)


@pytest.mark.requirement("attempt.fenced")
def test_the_very_worker_of_a_fleet_keeps_its_leases_of_any_tenant_and_nobody_else_does() -> None:
    held = replace(lease(beaten=False), fleet="platform")
    good = said(held)
    strangers = [
        (Asker("platform", "", fleet=True), "w2"),
        (Asker("platform2", "", fleet=True), "w"),
        (Asker("a", "", fleet=True), "w"),
        (Asker("platform", ""), "w"),
        (A, "w"),
    ]
    for who, worker in strangers:
        assert beat(held, good, who, worker, 500) is Answer.FENCED
    assert not held.beaten
    assert beat(held, good, Asker("platform", "", fleet=True), "w", 500) is Answer.LIVE


def test_silence_is_lost_at_the_ttl_and_not_before() -> None:
    held = lease(heard_ms=1_000)
    assert sweep([held], 1_000 + TTL - 1, FIRST, TTL, CALM, Hold()).endings == []
    assert ended(sweep([held], 1_000 + TTL, FIRST, TTL, CALM, Hold()).endings) == [(1, End.LOST)]


def test_a_grant_that_is_not_taken_up_is_lost_sooner() -> None:
    held = lease(beaten=False)
    assert sweep([held], FIRST - 1, FIRST, TTL, CALM, Hold()).endings == []
    (ending,) = sweep([held], FIRST, FIRST, TTL, CALM, Hold()).endings
    assert (ending.end, ending.fence) == (End.LOST, held.fence)
    assert ending.failure is not None
    assert "never reported" in ending.failure.message


def test_a_long_lease_outlives_the_default() -> None:
    held = lease()
    held.ttl_ms = 60_000
    assert sweep([held], 59_999, FIRST, TTL, CALM, Hold()).endings == []
    assert len(sweep([held], 60_000, FIRST, TTL, CALM, Hold()).endings) == 1


@pytest.mark.parametrize(
    "evidence",
    [
        replace(CALM, loop_lag_ms=TTL / 4 + 1),
        replace(CALM, database_ms=TTL / 4 + 1),
        replace(CALM, etcd_ms=TTL / 4 + 1),
    ],
)
def test_evidence_against_ourselves_holds_one_sweep_for_one_ttl(evidence: Evidence) -> None:
    held = lease()
    first = sweep([held], TTL, FIRST, TTL, evidence, Hold())
    assert (first.endings, first.held, first.hold.until_ms) == ([], True, 2 * TTL)
    during = sweep([held], 2 * TTL - 1, FIRST, TTL, CALM, first.hold)
    assert (during.endings, during.held) == ([], True)
    after = sweep([held], 2 * TTL, FIRST, TTL, evidence, during.hold)
    assert ended(after.endings) == [(1, End.LOST)]  # once: the evidence does not buy a second hold
    assert sweep([], 3 * TTL, FIRST, TTL, CALM, after.hold).hold == Hold()


def test_nobody_heard_is_evidence_only_with_many_leases_of_several_workers() -> None:
    nobody = replace(CALM, heard=0)
    many = [lease(n, worker=f"w{n % 3}") for n in range(21)]
    assert sweep(many, TTL, FIRST, TTL, nobody, Hold()).held
    assert not sweep(many[:20], TTL, FIRST, TTL, nobody, Hold()).held
    assert not sweep([lease(n, worker=f"w{n % 2}") for n in range(21)], TTL, FIRST, TTL, nobody, Hold()).held
    assert not sweep(many, TTL, FIRST, TTL, CALM, Hold()).held


def test_time_limits_are_not_held_and_stopping_leases_are_left_alone() -> None:
    late = lease(1, heard_ms=TTL, ends_ms=TTL)
    stopping = lease(2)
    stopping.stopping = True
    found = sweep([late, stopping, lease(3)], TTL, FIRST, TTL, replace(CALM, loop_lag_ms=TTL), Hold())
    assert ended(found.endings) == [(1, End.TIMED_OUT)]


@pytest.mark.parametrize("end", [End.LOST, End.FAILED, End.TIMED_OUT, End.YIELDED])
def test_an_end_in_doubt_is_told_as_uncertain(end: End) -> None:
    assert told(end, {"push": 3}) is End.UNCERTAIN
    assert told(end, {}) is end


@pytest.mark.parametrize("end", [End.SUCCEEDED, End.CANCELLED])
def test_success_and_cancellation_are_told_as_they_are(end: End) -> None:
    assert told(end, {"push": 3}) is end
