"""Cases on real PostgreSQL: replicas never double a look-up, late changes lose, what is decided stays."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from libs.pg import Database
from libs.testkit import ManualClock
from libs.testkit.databases import prepare_all
from services.reconciler.domain.cases import Case, CaseState, Change, Name, Opening, Resolved
from services.reconciler.store.cases import CASES, CaseStore

RUN = UUID(int=7)
NOW = 1_800_000_000_000


def name(number: int = 0) -> Name:
    return Name(RUN, "publish", f"slot {number}")


def opening(number: int = 0, dispatch: int = 1) -> Opening:
    return Opening(name(number), dispatch, "acme", "web", "git.push", "idempotent", "process_died", NOW)


class Room:
    def __init__(self, store: CaseStore, hand: asyncpg.Connection, url: str) -> None:
        self.store, self.hand, self.url, self._made = store, hand, url, 100

    async def open(self, *openings: Opening) -> int:
        self._made += len(openings)
        return await self.store.open([(UUID(int=self._made + place), one) for place, one in enumerate(openings)], NOW)

    async def claim(self, lease: int, *, now: int = NOW, limit: int = 100) -> list[Case]:
        return await self.store.claim(UUID(int=lease), now, now + 1000, limit, 60_000)

    async def all(self) -> list[Case]:
        return [case for _, case in await self.store.page("acme", "", [], None, 0, 1000)]

    async def change(self, lease: int, case: Case, state: CaseState, *, next_ms: int = 0, version: int = 3) -> Case:
        await self.store.change(UUID(int=lease), [(case.case_id, Change(state, next_ms, 0, "found", version))], NOW + 5)
        found = await self.store.find(case.case_id, "acme")
        assert found is not None
        return found


@pytest.fixture
async def room(database: Any, clock: ManualClock) -> AsyncIterator[Room]:
    url = await database("reconciler")
    db = Database(url, name="reconciler", size=6)
    await db.open()
    hand = await asyncpg.connect(url)
    yield Room(CaseStore(db), hand, url)
    await hand.close()
    await db.close()


async def test_every_statement_fits_the_schema(room: Room) -> None:
    await prepare_all(room.url, [CASES])


@pytest.mark.requirement("fx.unknown")
async def test_replicas_share_the_due_cases(room: Room) -> None:
    assert await room.open(*[opening(number) for number in range(60)]) == 60
    claimed = await asyncio.gather(*[room.claim(lease, limit=20) for lease in range(1, 7)])
    names = [case.name for batch in claimed for case in batch]
    assert len(names) == len(set(names))
    assert len(names) + len(await room.claim(9)) == 60
    assert await room.claim(10) == []


@pytest.mark.requirement("fx.unknown")
async def test_a_lease_that_has_passed_is_anothers_and_the_late_change_loses(room: Room) -> None:
    await room.open(opening())
    [case] = await room.claim(1)
    [again] = await room.claim(2, now=NOW + 1000)
    assert again.case_id == case.case_id
    assert (await room.change(1, case, CaseState.NEEDS_RECONCILIATION)).state is CaseState.OPEN
    assert (await room.change(2, case, CaseState.OBSERVED)).state is CaseState.OBSERVED


@pytest.mark.parametrize("told", [CaseState.OBSERVED, CaseState.SELF_RESOLVED, CaseState.NEEDS_RECONCILIATION])
@pytest.mark.parametrize("found", list(CaseState))
async def test_what_an_event_decided_no_look_up_changes(room: Room, told: CaseState, found: CaseState) -> None:
    words = {
        CaseState.OBSERVED: "observed",
        CaseState.SELF_RESOLVED: "succeeded",
        CaseState.NEEDS_RECONCILIATION: "needs_reconciliation",
    }
    await room.open(opening())
    [case] = await room.claim(1)
    await room.store.resolve([Resolved(name(), 1, words[told], 3)], NOW)
    after = await room.change(1, case, found, next_ms=NOW)
    expected = found if told is CaseState.NEEDS_RECONCILIATION and found is not CaseState.OPEN else told
    assert after.state is expected
    if told is CaseState.OBSERVED:
        assert after.decided_by == ("lookup" if found is told else "gateway")


async def test_events_in_any_order_and_number(room: Room) -> None:
    await room.store.resolve([Resolved(name(), 1, "observed", 3)], NOW)
    assert await room.open(opening(), opening(), opening(1)) == 2
    assert await room.open(opening(), opening(1)) == 0
    facts = [
        Resolved(name(), 1, "observed", 4),
        Resolved(name(), 1, "needs_reconciliation", 3),
        Resolved(name(5), 1, "absent", 3),
    ]
    await room.store.resolve(facts, NOW)
    await room.store.resolve([Resolved(name(), 1, "absent", 5)], NOW)
    assert [case.state for case in await room.all()] == [CaseState.OBSERVED, CaseState.OPEN]
    assert await room.open(opening()) == 0


async def test_a_later_try_while_the_case_is_undecided_is_the_same_case(room: Room) -> None:
    await room.open(opening())
    await room.open(opening(dispatch=2))
    [case] = await room.all()
    assert case.dispatch == 2
    await room.store.resolve([Resolved(name(), 1, "absent", 9)], NOW + 50)
    [after] = await room.all()
    assert (after.state, after.next_ms) == (CaseState.OPEN, NOW + 50), "an older try's event only makes it due"
    await room.store.resolve([Resolved(name(), 2, "absent", 9)], NOW)
    assert [one.state for one in await room.all()] == [CaseState.ABSENT]
    assert await room.open(replace(opening(), dispatch=0)) == 1, "the sweep may not know the number"
    assert [one.dispatch for one in await room.all()] == [2, 3]


async def test_put_off_is_for_ones_own_open_cases(room: Room) -> None:
    await room.open(opening(), opening(1))
    first, second = await room.claim(1)
    await room.store.resolve([Resolved(second.name, 1, "observed", 3)], NOW)
    await room.store.put_off(UUID(int=2), [first.case_id], NOW + 9, "not mine")
    await room.store.put_off(UUID(int=1), [first.case_id, second.case_id], NOW + 7, "away")
    by_name = {case.name: case for case in await room.all()}
    assert (by_name[first.name].next_ms, by_name[first.name].evidence, by_name[first.name].lookups) == (NOW + 7, "away", 0)
    assert by_name[second.name].state is CaseState.OBSERVED
    assert [case.case_id for case in await room.claim(3, now=NOW + 7)] == [first.case_id]


@pytest.mark.requirement("fx.unknown")
async def test_two_people_at_once_have_one_decision_and_it_stays(room: Room) -> None:
    await room.open(opening())
    [case] = await room.all()
    both = await asyncio.gather(
        room.store.decide(case.case_id, CaseState.OBSERVED, "ada", "saw it", 4, NOW),
        room.store.decide(case.case_id, CaseState.ABSENT, "bob", "not there", 4, NOW),
    )
    assert sum(one is not None for one in both) == 1
    assert await room.store.decide(case.case_id, CaseState.OBSERVED, "eve", "me too", 4, NOW) is None
    with pytest.raises(asyncpg.IntegrityConstraintViolationError):
        await room.hand.execute("UPDATE effect_case SET reason = 'another'")


async def test_another_tenants_case_is_none(room: Room) -> None:
    await room.open(opening())
    [case] = await room.all()
    assert await room.store.find(case.case_id, "other") is None
    assert await room.store.page("other", "", [], None, 0, 10) == []
    assert await room.store.page("acme", "ops", [], None, 0, 10) == []
    assert await room.store.undecided([name(), name(1)]) == {name()}
    assert await room.store.counts() == {CaseState.OPEN: 1, CaseState.NEEDS_RECONCILIATION: 0}


HOUR = 3_600_000


@pytest.mark.requirement("fx.unknown")
async def test_what_a_clock_that_stood_ahead_put_off_or_took_is_due_once_it_is_right_again(room: Room) -> None:
    await room.open(opening(), opening(1))
    first, second = await room.claim(1)
    await room.store.put_off(UUID(int=1), [first.case_id], NOW + 2 * HOUR, "away, says a clock two hours ahead")
    await room.store.put_off(UUID(int=1), [second.case_id], NOW + 60_000, "away for as long as anything is put off")
    assert [case.case_id for case in await room.claim(2)] == [first.case_id]
    assert [case.case_id for case in await room.claim(3, now=NOW + 60_000)] == [second.case_id, first.case_id]
    assert await room.claim(4, now=NOW + 60_000) == [], "both are left to somebody, for as long as anything is"
    again = await room.claim(5, now=NOW + 60_000 - 2 * HOUR)
    assert {case.case_id for case in again} == {first.case_id, second.case_id}, (
        "a clock that went back two hours waits for none"
    )
