"""Successors that are ticketed in the commit of a success: what may be continued, what is told, and what is left to readiness."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import asyncpg
import pytest
from google.protobuf import struct_pb2
from runway_sdk.values import from_value, to_value

from libs.kernel.epochs import Mode
from libs.kernel.refusal import Reason, Refusal
from libs.runtime import faults
from libs.testkit.waiting import wait_until
from services.scheduler.app.acknowledge_raises import look_at_awaited
from services.scheduler.app.claims import GrantedLease
from services.scheduler.app.enqueue_tickets import enqueue_tickets
from services.scheduler.app.revoke_tickets import revoke_tickets
from services.scheduler.domain.rank import APPROVAL_RESUME
from services.scheduler.domain.ticket import Contract, Successor, Ticket
from tests.store.scheduler.harness import EPOCH, HANDLER, Field, Leader, failure, success, waits_for_a_lock
from tests.store.scheduler.test_lost_answers import Cut

INPUT = to_value({"run": 7, "steps": {"before": 1}}).SerializeToString()
OUTPUT = to_value("out").SerializeToString()


def teach(leader: Leader, *, points: int = 0, limit: int = 1_000) -> None:
    """s is followed by t and u, t by nothing."""
    contract = Contract(HANDLER, 0, 0, (), (), frozenset(), points)
    leader.book.learn(b"d", {"s": (Successor("t", contract, limit), Successor("u", contract, limit)), "t": ()})


async def held(field_: Field, leader: Leader) -> tuple[Ticket, GrantedLease]:
    """A live attempt of s."""
    ticket = replace(field_.ticket(), input=INPUT)
    await leader.enqueue(ticket)
    (granted,) = await leader.claim()
    return ticket, granted


async def state(field_: Field, ticket: Ticket, step_key: str) -> int | None:
    found = await field_.hand.fetchval("SELECT state FROM ticket WHERE run_id = $1 AND step_key = $2", ticket.run_id, step_key)
    return None if found is None else int(found)


async def continued(field_: Field) -> list[list[str]]:
    return [sorted(fact.continued) for fact in await field_.told("attempt_finished")]


async def test_what_follows_is_leased_in_the_commit_of_the_success(field_: Field, one: Leader) -> None:
    teach(one)
    ticket, granted = await held(field_, one)
    waiting = asyncio.create_task(one.desk.claim(one.ask(slots=2), 5_000))
    await wait_until(lambda: one.desk.waiting)
    assert await one.complete(success(granted, OUTPUT)) == [True]
    leases = await waiting
    assert sorted(item.lease.step_key for item in leases) == ["t", "u"]
    assert {item.lease.run_id for item in leases} == {ticket.run_id}
    given = from_value(struct_pb2.Value.FromString(leases[0].input))
    assert given == {"run": 7, "steps": {"s": "out"}}
    assert await continued(field_) == [["t", "u"]]
    assert [await state(field_, ticket, key) for key in "stu"] == [4, 2, 2]
    assert await one.complete(*(success(item) for item in leases)) == [True, True]
    assert sorted(await continued(field_)) == [[], [], ["t", "u"]]


async def test_what_follows_a_step_that_a_person_answered_is_ticketed_by_readiness_in_its_run_s_class(
    field_: Field, one: Leader
) -> None:
    teach(one)
    ticket = replace(field_.ticket(), input=INPUT, run_class=APPROVAL_RESUME)
    await one.enqueue(ticket)
    (granted,) = await one.claim()
    assert await one.complete(success(granted, OUTPUT)) == [True]
    assert await continued(field_) == [[]]
    assert [await state(field_, ticket, key) for key in "tu"] == [None, None]


async def test_without_a_worker_that_waits_it_is_ready(field_: Field, one: Leader) -> None:
    teach(one)
    ticket, granted = await held(field_, one)
    assert await one.complete(success(granted, OUTPUT)) == [True]
    assert [await state(field_, ticket, key) for key in "tu"] == [1, 1]
    assert len(await one.claim(slots=2)) == 2


async def test_a_ticket_of_readiness_for_the_same_step_changes_nothing(field_: Field, one: Leader) -> None:
    teach(one)
    ticket, granted = await held(field_, one)
    await one.complete(success(granted, OUTPUT))
    (second,) = await one.claim()
    again = replace(ticket, step_key=second.lease.step_key)
    assert await enqueue_tickets(one.ports, one.book, [again], one.desk) == [""]
    assert one.book.leases[again.key] is second.lease
    assert await one.complete(success(second)) == [True]


async def test_only_a_success_that_stands_continues(field_: Field, one: Leader) -> None:
    teach(one)
    ticket, granted = await held(field_, one)
    await one.raise_gate(ticket.run_id, EPOCH + 1, Mode.CLOSED)
    (outcome,) = await one.complete(success(granted, OUTPUT))
    assert isinstance(outcome, Refusal)
    assert outcome.reason is Reason.RUN_CANCELLED
    assert [await state(field_, ticket, key) for key in "tu"] == [None, None]

    other, failing = await held(field_, one)
    assert await one.complete(failure(failing)) == [True]
    assert [await state(field_, other, key) for key in "tu"] == [None, None]
    assert await continued(field_) == [[]]


async def test_a_paused_run_gets_its_ticket_and_no_lease(field_: Field, one: Leader) -> None:
    teach(one)
    ticket, granted = await held(field_, one)
    waiting = asyncio.create_task(one.desk.claim(one.ask(slots=2), 300))
    await wait_until(lambda: one.desk.waiting)
    await one.raise_gate(ticket.run_id, EPOCH, Mode.DRAINING)
    assert await one.complete(success(granted, OUTPUT)) == [True]
    assert await waiting == []
    assert [await state(field_, ticket, key) for key in "tu"] == [1, 1]
    assert await continued(field_) == [["t", "u"]]


async def test_what_is_not_known_or_too_large_is_left_to_readiness(field_: Field, one: Leader) -> None:
    ticket, granted = await held(field_, one)
    assert await one.complete(success(granted, OUTPUT)) == [True]
    teach(one, limit=10)
    large, second = await held(field_, one)
    assert await one.complete(success(second, OUTPUT)) == [True]
    assert await continued(field_) == [[], []]
    assert [await state(field_, run, "t") for run in (ticket, large)] == [None, None]


async def test_fences_that_an_earlier_incarnation_may_have_lost_are_raised_first_so_readiness_does_it(field_: Field) -> None:
    await field_.leader("born")  # the database is first used in its first incarnation
    later = await field_.leader("later", counter=1)
    await later.lead(2, newest=2)
    teach(later, points=1)
    ticket, granted = await held(field_, later)
    assert await later.complete(success(granted, OUTPUT)) == [True]
    assert await state(field_, ticket, "t") is None
    assert await continued(field_) == [[]]


async def test_a_withdrawal_that_came_first_stands(field_: Field, one: Leader) -> None:
    teach(one)
    ticket, granted = await held(field_, one)
    assert await revoke_tickets(one.ports, one.book, [((ticket.run_id, "t"), 1, "not wanted")]) == [""]
    assert await one.complete(success(granted, OUTPUT)) == [True]
    assert await state(field_, ticket, "t") == 5
    assert ["u"] in await continued(field_)


async def test_a_lease_stored_with_its_ticket_is_as_one_granted_afterwards(field_: Field, one: Leader) -> None:
    teach(one)
    first, granted = await held(field_, one)
    await one.complete(success(granted, OUTPUT))
    await one.claim(slots=2)  # ticketed, then granted
    second, granted = await held(field_, one)
    waiting = asyncio.create_task(one.desk.claim(one.ask(slots=2), 5_000))
    await wait_until(lambda: one.desk.waiting)
    await one.complete(success(granted, OUTPUT))
    leases = await waiting
    its_own = ("run_id", "shard_id", "attempt_id", "claim_id", "enqueued_ms", "leased_ms", "authority_epoch")

    async def rows(ticket: Ticket) -> list[dict[str, object]]:
        found = await field_.hand.fetch(
            "SELECT * FROM ticket WHERE run_id = $1 AND step_key <> 's' ORDER BY 1, 2", ticket.run_id
        )
        return [{name: value for name, value in row.items() if name not in its_own} for row in found]

    assert await rows(first) == await rows(second)
    assert {item.lease.fence.lease_epoch for item in leases} == {1}
    assert all(item.lease.fence.authority_epoch == one.book.epochs[second.shard] for item in leases)


async def test_a_stopped_scope_gets_its_ticket_and_no_lease(field_: Field, one: Leader) -> None:
    teach(one)
    ticket, granted = await held(field_, one)
    waiting = asyncio.create_task(one.desk.claim(one.ask(slots=2), 300))
    await wait_until(lambda: one.desk.waiting)
    await field_.hand.execute(
        "INSERT INTO scope_fence (kind, scope_id, epoch, mode) VALUES ('tenant', $1, 1, 1)", ticket.tenant
    )
    assert await one.complete(success(granted, OUTPUT)) == [True]
    assert await waiting == []
    assert [await state(field_, ticket, key) for key in "tu"] == [1, 1]


async def test_a_withdrawal_that_came_first_stands_although_a_worker_waits(field_: Field, one: Leader) -> None:
    teach(one)
    ticket, granted = await held(field_, one)
    assert await revoke_tickets(one.ports, one.book, [((ticket.run_id, "t"), 1, "not wanted")]) == [""]
    waiting = asyncio.create_task(one.desk.claim(one.ask(slots=2), 5_000))
    await wait_until(lambda: one.desk.waiting)
    assert await one.complete(success(granted, OUTPUT)) == [True]
    assert [item.lease.step_key for item in await waiting] == ["u"]
    assert [await state(field_, ticket, key) for key in "tu"] == [5, 2]


async def test_a_batch_continues_each_run_by_itself(field_: Field, one: Leader) -> None:
    teach(one)
    runs = [await held(field_, one) for _ in range(3)]
    await one.raise_gate(runs[1][0].run_id, EPOCH + 1, Mode.CLOSED)
    outcomes = await one.complete(*(success(granted, OUTPUT) for _, granted in runs))
    assert [outcome is True for outcome in outcomes] == [True, False, True]
    assert [await state(field_, ticket, "t") for ticket, _ in runs] == [1, None, 1]


async def test_a_commit_whose_answer_is_lost_is_found_again(field_: Field, one: Leader) -> None:
    teach(one)
    ticket, granted = await held(field_, one)
    waiting = asyncio.create_task(one.desk.claim(one.ask(), 5_000))
    await wait_until(lambda: one.desk.waiting)
    Cut(one)
    with pytest.raises(Refusal):
        await one.complete(success(granted, OUTPUT))
    assert one.book.unsure == {(ticket.run_id, "t"), (ticket.run_id, "u")}
    await look_at_awaited(one.ports, one.book)
    states = sorted([await state(field_, ticket, "t") or 0, await state(field_, ticket, "u") or 0])
    assert states == [1, 2], "one was leased to the poll, whose answer was lost with the commit"
    assert len(one.book.ready) == 1
    await one.desk.cycle()
    (found,) = await waiting
    assert found.lease.run_id == ticket.run_id
    assert await one.complete(success(granted, OUTPUT)) == [True]
    assert await continued(field_) == [["t", "u"]]


async def test_a_commit_that_may_still_be_under_way_is_waited_for(field_: Field, one: Leader) -> None:
    ticket, _ = await held(field_, one)
    one.book.unsure.add((ticket.run_id, "t"))
    other = await asyncpg.connect(field_.url)
    try:
        async with other.transaction():
            await other.execute("SELECT 1 FROM run_gate WHERE run_id = $1 FOR UPDATE", ticket.run_id)
            looking = asyncio.create_task(look_at_awaited(one.ports, one.book))
            await wait_until(lambda: waits_for_a_lock(field_), what="a look that waits for the commit")
            await other.execute(
                'INSERT INTO ticket SELECT (jsonb_populate_record(t, \'{"step_key": "t", "state": 1}\')).* FROM ticket AS t'
                " WHERE t.run_id = $1 AND t.step_key = 's'",
                ticket.run_id,
            )
        await looking
    finally:
        await other.close()
    assert one.book.ready.get((ticket.run_id, "t")) is not None
    assert not one.book.unsure


class Unsigned:
    """A token that cannot be made."""

    def sign_many(self, leases: Sequence[object]) -> list[Refusal]:
        return [Refusal(Reason.TOO_LARGE, "too large") for _ in leases]


async def test_a_token_that_cannot_be_made_leaves_no_poll_waiting(field_: Field, one: Leader) -> None:
    teach(one)
    _, granted = await held(field_, one)
    ask = one.ask(slots=2)
    waiting = asyncio.create_task(one.desk.claim(ask, 300))
    await wait_until(lambda: one.desk.waiting)
    one.desk.ports = replace(one.ports, tokens=Unsigned())  # type: ignore[arg-type]
    assert await one.complete(success(granted, OUTPUT)) == [True]
    assert await asyncio.wait_for(waiting, 5) == []
    assert one.desk.waiting == 0
    assert len(one.book.leases) == 2, "they are not taken up, and end by themselves"


async def test_what_is_committed_and_did_not_get_into_memory_is_looked_at_again(field_: Field, one: Leader) -> None:
    teach(one)
    ticket, granted = await held(field_, one)
    waiting = asyncio.create_task(one.desk.claim(one.ask(), 300))
    await wait_until(lambda: one.desk.waiting)
    faults.arm({"RUNWAY_FAULTS_ARMED": "development", "RUNWAY_FAULTS": "scheduler.after_complete=raise"})
    try:
        with pytest.raises(faults.FaultInjected):
            await one.complete(success(granted, OUTPUT))
    finally:
        faults.arm({})
    assert await asyncio.wait_for(waiting, 5) == [], "the poll's lease was not handed out, and it does not hang"
    assert one.book.unsure == {(ticket.run_id, "t"), (ticket.run_id, "u")}
    await look_at_awaited(one.ports, one.book)
    assert len(one.book.ready) + sum(key[1] in "tu" for key in one.book.leases) == 2
