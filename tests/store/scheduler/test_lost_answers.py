"""Commits whose answers are lost: what was committed is found again, and memory is put right."""

import asyncio

import pytest

from libs.kernel.epochs import Mode
from libs.kernel.refusal import Reason, Refusal
from libs.testkit.waiting import wait_until
from services.scheduler.app.acknowledge_raises import look_at_awaited
from services.scheduler.app.end_attempts import end_attempts
from services.scheduler.app.enqueue_tickets import enqueue_tickets
from services.scheduler.app.obey_gates import obey_gates
from services.scheduler.domain.ending import LOST, Ending
from services.scheduler.domain.ticket import End
from tests.store.scheduler.harness import EPOCH, Field, Leader, failure, success


class Cut:
    """Loses the answer of the next commit: it happens, and we are told that nobody knows."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._watch = leader.store._watch
        leader.store._watch = self

    def deposed(self, shards: object) -> None:
        raise AssertionError

    def took(self, ms: float) -> None:
        self._leader.store._watch = self._watch
        raise Refusal(Reason.AUTHORITY_UNREACHABLE, "lost", detail={"commit": "unknown"})


async def test_a_grant_is_found_by_the_repeated_claim(field_: Field, one: Leader) -> None:
    ticket = field_.ticket()
    await one.enqueue(ticket)
    name = field_.ids.random128()
    Cut(one)
    with pytest.raises(Refusal):
        await one.claim(claim_id=name)
    assert (await field_.row(ticket.run_id))["state"] == 2
    (found,) = await one.claim(claim_id=name)
    assert found.lease.run_id == ticket.run_id
    assert await one.complete(success(found)) == [True]


async def test_a_ticket_is_found_by_its_redelivery(field_: Field, one: Leader) -> None:
    ticket = field_.ticket()
    Cut(one)
    with pytest.raises(Refusal):
        await one.enqueue(ticket)
    assert len(one.book.ready) == 0
    assert await one.enqueue(ticket) == [""]
    (granted,) = await one.claim()
    assert await one.enqueue(ticket) == [""]  # once more, while it is held: memory stays as it is
    assert one.book.leases[ticket.key] is granted.lease


async def test_an_end_is_found_by_the_next_sweep(field_: Field, one: Leader) -> None:
    ticket = field_.ticket(points=1)
    await one.enqueue(ticket)
    (granted,) = await one.claim()
    lost = Ending(ticket.run_id, "s", granted.lease.fence, End.LOST, LOST)
    Cut(one)
    with pytest.raises(Refusal):
        await end_attempts(one.ports, one.book, [lost])
    assert ticket.key in one.book.leases
    assert await end_attempts(one.ports, one.book, [lost]) == set()
    assert (ticket.key in one.book.leases, one.book.awaited) == (False, {ticket.key})


async def test_a_report_is_recorded_once_and_forgotten_in_memory(field_: Field, one: Leader) -> None:
    ticket = field_.ticket()
    await one.enqueue(ticket)
    (granted,) = await one.claim()
    Cut(one)
    with pytest.raises(Refusal):
        await one.complete(failure(granted))
    assert ticket.key in one.book.leases
    assert await one.complete(failure(granted)) == [True]
    assert ticket.key not in one.book.leases
    assert len(await field_.told("attempt_finished")) == 1


async def test_a_stop_is_found_when_the_gate_is_obeyed_again(field_: Field, one: Leader) -> None:
    ticket = field_.ticket()
    await one.enqueue(ticket)
    (granted,) = await one.claim()
    await one.raise_gate(ticket.run_id, EPOCH + 1, Mode.CLOSED)
    Cut(one)
    with pytest.raises(Refusal):
        await obey_gates(one.ports, one.book, [ticket.run_id])
    await obey_gates(one.ports, one.book, [ticket.run_id])
    assert ticket.key not in one.book.leases
    assert (ticket.key, granted.lease.fence.attempt_id) in one.book.stopped
    assert len(await field_.told("attempt_finished")) == 1


async def test_a_ticket_is_granted_as_it_comes_where_a_worker_waits(field_: Field, one: Leader) -> None:
    waiting = asyncio.create_task(one.desk.claim(one.ask(), 5_000))
    await wait_until(lambda: one.desk.waiting)
    first, second = field_.ticket(), field_.ticket()
    assert await enqueue_tickets(one.ports, one.book, [first, second], one.desk) == ["", ""]
    (granted,) = await waiting
    row = await field_.row(granted.lease.run_id)
    assert (row["state"], row["lease_epoch"], row["attempt_id"]) == (2, 1, granted.lease.fence.attempt_id)
    assert len(await field_.told("first_lease")) == 1
    assert len(one.book.ready) == 1
    assert await one.complete(success(granted)) == [True]
    (other,) = await one.claim()
    assert {granted.lease.run_id, other.lease.run_id} == {first.run_id, second.run_id}


async def test_a_ticket_does_not_overtake_an_older_one_that_fits(field_: Field, one: Leader) -> None:
    older, newer = field_.ticket(), field_.ticket()
    await one.enqueue(older)
    waiting = asyncio.create_task(one.desk.claim(one.ask(), 5_000))
    await wait_until(lambda: one.desk.waiting)
    await enqueue_tickets(one.ports, one.book, [newer], one.desk)
    await one.desk.cycle()
    (granted,) = await waiting
    assert granted.lease.run_id == older.run_id


async def test_a_direct_grant_obeys_gate_and_scope(field_: Field, one: Leader) -> None:
    await field_.hand.execute("INSERT INTO scope_fence VALUES ('tenant', 'a', 1, 1)")
    waiting = asyncio.create_task(one.desk.claim(one.ask(), 200))
    await wait_until(lambda: one.desk.waiting)
    ticket = field_.ticket()
    await enqueue_tickets(one.ports, one.book, [ticket], one.desk)
    assert await waiting == []
    assert (await field_.row(ticket.run_id))["state"] == 1
    assert one.book.ready.get(ticket.key) is not None


async def test_a_direct_grant_whose_answer_is_lost_is_found_again(field_: Field, one: Leader) -> None:
    name = field_.ids.random128()
    waiting = asyncio.create_task(one.desk.claim(one.ask(claim_id=name), 100))
    await wait_until(lambda: one.desk.waiting)
    ticket = field_.ticket()
    Cut(one)
    with pytest.raises(Refusal):
        await enqueue_tickets(one.ports, one.book, [ticket], one.desk)
    assert await waiting == []
    assert (await field_.row(ticket.run_id))["state"] == 2
    assert await enqueue_tickets(one.ports, one.book, [ticket], one.desk) == [""]
    (found,) = await one.claim(claim_id=name)
    assert await one.complete(success(found)) == [True]


async def test_what_was_lost_while_the_database_was_away_is_looked_up(field_: Field, one: Leader) -> None:
    ticket = field_.ticket()
    await one.enqueue(ticket)
    ready = one.book.ready.remove(ticket.key)
    assert ready is not None
    one.book.awaited.add(ticket.key)
    await look_at_awaited(one.ports, one.book)
    (granted,) = await one.claim()
    one.book.forget(ticket.key)
    one.book.awaited.add(ticket.key)
    await look_at_awaited(one.ports, one.book)
    assert one.book.leases[ticket.key].fence == granted.lease.fence
