"""Borrowed slots that are asked back: whose, how many, and when not."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.domain.lines import Candidate, queued
from services.scheduler.domain.planner import Standing, plan
from services.scheduler.domain.polls import Poll
from services.scheduler.domain.rank import AUTOMATION, INTERACTIVE, MIGRATION
from services.scheduler.domain.reclaim import Held, asked, borrowed, wanted
from services.scheduler.domain.shares import Part, Policy
from services.scheduler.domain.ticket import Key
from tests.unit.scheduler.test_claim_planner import polls_, standings_, ticket, tickets_

F = frozenset({"f"})


def held(number: int, *, asked: bool = False, handlers: frozenset[str] = F) -> Held:
    return Held((UUID(int=1_000 + number), "s"), number, asked, handlers, frozenset())


def standing_of(migrations: int, others: int = 0, cap: int = 200, reserve: int = 0) -> Standing:
    return Standing(policy=Policy(reserve, cap), shared_leases={MIGRATION: migrations, AUTOMATION: others})


def numbers(keys: Sequence[Key]) -> list[int]:
    return [key[0].int - 1_000 for key in keys]


TEN = [held(n) for n in range(10)]
"""All ten shared slots are held by migrations, whose cap is two."""


@pytest.mark.requirement("sched.migration")
def test_the_newest_are_asked_and_just_as_many_as_would_be_used() -> None:
    waiting = [ticket(n) for n in range(3)]
    assert numbers(wanted(TEN, [], queued(waiting), standing_of(10))) == [9, 8, 7]
    assert numbers(wanted(TEN, [], queued([ticket(n) for n in range(50)]), standing_of(10))) == [9, 8, 7, 6, 5, 4, 3, 2]
    assert wanted(TEN, [], queued([]), standing_of(10)) == []


@pytest.mark.requirement("sched.migration")
def test_migrations_that_wait_ask_nobody_and_what_is_free_is_used_first() -> None:
    assert wanted(TEN, [], queued([ticket(n, run_class=MIGRATION) for n in range(9)]), standing_of(10)) == []
    free = Poll(1, "", "", F, frozenset(), 1)
    assert numbers(wanted(TEN, [free], queued([ticket(n) for n in range(3)]), standing_of(10))) == [9, 8]
    own = Poll(1, "a", "", F, frozenset(), 3)
    assert wanted(TEN, [own], queued([ticket(n) for n in range(3)]), standing_of(10)) == []


@pytest.mark.requirement("sched.migration")
def test_nobody_is_asked_for_whom_it_would_not_help() -> None:
    waiting = queued([ticket(n) for n in range(3)])
    bounded = replace(standing_of(10), parts={"a": Part(most_leases=1)})
    assert numbers(wanted(TEN, [], waiting, bounded)) == [9]
    assert wanted([held(n, handlers=frozenset({"g"})) for n in range(10)], [], waiting, standing_of(10)) == []
    assert wanted(TEN, [], queued([ticket(1, resources=(("gpu", 1),))]), standing_of(10)) == []
    gpus = [*TEN[:9], Held(TEN[9].key, 9, False, F, frozenset(), (("gpu", 1),), (("gpu", 1),))]
    assert numbers(wanted(gpus, [], queued([ticket(1, resources=(("gpu", 1),))]), standing_of(10))) == [9]
    assert len(wanted(TEN, [], queued([ticket(n, run_class=INTERACTIVE) for n in range(9)]), standing_of(10, cap=0))) == 9


@pytest.mark.requirement("sched.migration")
def test_a_slot_of_the_reserve_is_not_taken_for_what_is_given_back() -> None:
    nine, free = TEN[:9], [Poll(1, "", "", F, frozenset(), 1)]
    kept = standing_of(9, reserve=100)
    assert len(wanted(nine, free, queued([ticket(1), ticket(2)]), kept)) == 2
    assert wanted(nine, free, queued([ticket(1, run_class=INTERACTIVE)]), kept) == []
    assert len(wanted(TEN, [], queued([ticket(1)]), standing_of(10, cap=0, reserve=800))) == 9, (
        "a reserve that was raised since"
    )


def test_an_ask_stays_where_it_is_while_the_need_is_there() -> None:
    some = [held(n, asked=n in (4, 5)) for n in range(10)]
    assert numbers(wanted(some, [], queued([ticket(n) for n in range(3)]), standing_of(10))) == [5, 4, 9]
    assert numbers(wanted(some, [], queued([ticket(0)]), standing_of(10))) == [5], "and goes with it"


@pytest.mark.requirement("sched.migration")
def test_who_does_not_hear_is_asked_still_and_another_too() -> None:
    some = [replace(one, asked=True, deaf=True) if one.granted_ms in (8, 9) else one for one in TEN]
    assert numbers(wanted(some, [], queued([ticket(1)]), standing_of(10))) == [9, 7]
    assert numbers(wanted(some, [], queued([ticket(n) for n in range(2)]), standing_of(10))) == [9, 8, 7, 6]
    everybody = [replace(one, asked=True, deaf=True) for one in TEN]
    assert len(wanted(everybody, [], queued([ticket(n) for n in range(9)]), standing_of(10))) == 8, "never below the cap"
    assert wanted(some, [], queued([]), standing_of(10)) == []


def test_a_need_counts_as_far_as_it_was_there_a_look_before() -> None:
    now = [held(n).key for n in range(5)]
    assert asked(now, 0) == frozenset()
    assert asked(now, 2) == set(now[:2])
    assert asked(now[:1], 9) == set(now[:1])


held_ = st.lists(
    st.builds(
        lambda at, asked, handlers, labels, takes: (at, asked, handlers, labels, takes),
        st.integers(0, 9),
        st.booleans(),
        st.frozensets(st.sampled_from(["f", "g"]), min_size=1),
        st.frozensets(st.sampled_from(["gpu", "big"])),
        st.sampled_from([(), (("gpu", 1),), (("gpu", 2), ("memory_mb", 3))]),
    ),
    max_size=8,
).map(lambda found: [Held((UUID(int=1_000 + n), "s"), *one, total=one[-1]) for n, one in enumerate(found)])  # type: ignore[call-arg]


@pytest.mark.requirement("sched.migration")
@settings(max_examples=200)
@given(held_, polls_, tickets_, standings_)
def test_it_is_lawful(leases: list[Held], polls: list[Poll], tickets: list[Candidate], standing: Standing) -> None:
    held_now = {**standing.shared_leases, MIGRATION: len(leases)}
    standing = replace(standing, shared_leases=held_now)
    found = wanted(leases, polls, queued(tickets), standing)
    capacity = sum(held_now.values()) + sum(p.slots for p in polls if not p.tenant)
    cap = capacity * standing.policy.migration_permille // 1000
    over = sum(n for c, n in held_now.items() if c != INTERACTIVE) - capacity + standing.policy.reserve(capacity)
    waiting = sum(t.run_class != MIGRATION for t in tickets)
    assert len(set(found)) == len(found) <= (waiting + max(0, over) if waiting else 0)
    assert not found or len(leases) - len(found) >= cap, "never below the cap"
    assert set(found) <= {one.key for one in borrowed(leases, polls, standing)}
    if found:  # once they gave back, somebody gets a slot who gets none now
        others = queued([t for t in tickets if t.run_class != MIGRATION])
        by_key = {one.key: one for one in leases}
        slots = [
            Poll(100 + at, "", "", by_key[key].handlers, by_key[key].labels, 1, free=by_key[key].takes, total=by_key[key].total)
            for at, key in enumerate(found)
        ]
        gone = replace(standing, shared_leases={**held_now, MIGRATION: len(leases) - len(found)})
        now = {grant.key for grant in plan(polls, others, standing)}
        assert {grant.key for grant in plan([*polls, *slots], others, gone)} - now
