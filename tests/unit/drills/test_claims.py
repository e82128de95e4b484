"""What a change of leaders may cost, against forged histories: each figure is told, and each fault is found."""

from typing import Any

import pytest

from libs.drills import claims
from libs.drills.history import Fact

HERE, ELSEWHERE = "01890000-0000-7000-8000-000000000005", "01890000-0000-7000-8000-000000000006"
"""Runs of shards 5 and 6."""
FAULT_T, FAULT_MS = 100.0, 1_000_000


def attempt(leased_ms: int, ended_ms: int = 0, *, run: str = HERE, lease: int = 1, authority: int = 7, **more: Any) -> Fact:
    facts: Fact = {"t": 900.0, "who": "final", "what": "attempt", "run": run, "step": "act", "lease": lease}
    return facts | {"authority": authority, "leased_at": leased_ms, "ended_at": ended_ms, "state": "succeeded"} | more


def leader(t: float, epoch: int, shard: int = 5) -> Fact:
    return {"t": t, "who": "probe", "what": "leader", "shard": shard, "epoch": epoch, "holder": f"s{epoch}"}


def changed() -> list[Fact]:
    """Shard 5 changed hands after the fault, shard 6 did not."""
    return [leader(1, 7), leader(1, 7, 6), leader(150, 9)]


@pytest.mark.requirement("ops.drills")
def test_the_first_claim_is_of_a_shard_that_changed_hands_and_under_its_new_leader() -> None:
    facts = [
        *changed(),
        attempt(FAULT_MS + 100, run=ELSEWHERE),
        attempt(FAULT_MS + 200, authority=7),
        attempt(FAULT_MS + 5_000, authority=9),
        attempt(FAULT_MS + 6_000, authority=9),
    ]
    assert claims.moved(facts, FAULT_T) == {5: 7}
    assert claims.first_claim_ms(facts, FAULT_T, FAULT_MS) == 5_000


@pytest.mark.requirement("ops.drills")
def test_where_no_shard_changed_hands_there_is_no_first_claim() -> None:
    facts = [leader(1, 7), leader(50, 9), attempt(FAULT_MS + 10, authority=9)]
    assert claims.moved(facts, FAULT_T) == {}
    assert claims.first_claim_ms(facts, FAULT_T, FAULT_MS) is None
    assert claims.first_claim_ms(changed(), FAULT_T, FAULT_MS) is None, "changed hands, and nobody claimed of it"


@pytest.mark.requirement("ops.drills")
def test_the_longest_gap_counts_from_the_spans_edges_and_only_these_shards() -> None:
    facts = [attempt(1_100), attempt(1_300), attempt(1_900, run=ELSEWHERE), attempt(2_200)]
    assert claims.longest_gap_ms(facts, {5}, 1_000, 2_400) == 900
    assert claims.longest_gap_ms(facts, {5, 6}, 1_000, 2_400) == 600
    assert claims.longest_gap_ms(facts, {5}, 1_000, 9_000) == 6_800, "nothing until the end is a gap"
    assert claims.longest_gap_ms([], {5}, 1_000, 2_400) == 1_400


@pytest.mark.requirement("ops.drills")
def test_a_later_lease_before_the_earlier_one_ended_is_two_live_leases() -> None:
    sound = [attempt(1_000, 2_000), attempt(2_000, 3_000, lease=3), attempt(1_500, 1_600, run=ELSEWHERE)]
    assert claims.two_live_leases(sound) == []
    overlapping = [attempt(1_000, 2_000), attempt(1_999, 3_000, lease=3)]
    assert claims.two_live_leases(overlapping) == [f"{HERE}/act"]
    never_ended = [attempt(1_000, 0), attempt(5_000, 6_000, lease=3)]
    assert claims.two_live_leases(never_ended) == [f"{HERE}/act"]
    of_an_older_leader = [attempt(1_000, 5_000, authority=7, lease=3), attempt(4_000, 6_000, authority=9, lease=1)]
    assert claims.two_live_leases(of_an_older_leader) == [f"{HERE}/act"]


@pytest.mark.requirement("ops.drills")
def test_what_was_launched_and_never_ended_is_lost() -> None:
    facts: list[Fact] = [{"t": 1.0, "who": "client", "what": "launched", "run": run} for run in (HERE, ELSEWHERE)]
    facts.append({"t": 900.0, "who": "final", "what": "run", "run": HERE, "state": "succeeded"})
    assert claims.lost_tickets(facts) == [ELSEWHERE]
    facts.append({"t": 900.0, "who": "final", "what": "run", "run": ELSEWHERE, "state": "running"})
    assert claims.lost_tickets(facts) == [ELSEWHERE]


@pytest.mark.requirement("ops.drills")
@pytest.mark.parametrize("state", ["lost", "timed_out", "uncertain"])
def test_an_attempt_ended_for_its_silence_is_a_false_expiry_where_its_worker_lived(state: str) -> None:
    facts = [attempt(1, 2, state=state), attempt(1, 2, run=ELSEWHERE, state=state), attempt(3, 4, lease=3)]
    assert claims.false_expiries(facts, {HERE}) == [f"{HERE} {state}"]


@pytest.mark.requirement("ops.drills")
def test_what_was_claimed_within_a_span() -> None:
    facts = [attempt(1_000), attempt(1_500, run=ELSEWHERE), attempt(2_000)]
    assert claims.claimed_within(facts, 1_000, 2_000) == [f"{ELSEWHERE}/act"]
