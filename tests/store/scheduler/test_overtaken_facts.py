"""Facts that come early, late or were lost: withdrawals before their tickets, runs that launch does not know any more."""

import asyncio
from dataclasses import replace

import pytest

from libs.fence.values import GateValue
from libs.kernel.epochs import Mode, StepFence
from libs.kernel.ids import NIL
from libs.pg import Database
from libs.testkit.waiting import wait_until
from services.scheduler.app.enqueue_tickets import enqueue_tickets
from services.scheduler.app.revoke_tickets import revoke_tickets
from services.scheduler.domain.ticket import End
from services.scheduler.store.shards import SchedulerReads
from tests.store.scheduler.harness import EPOCH, Field, Leader, failure


async def test_a_run_that_launch_does_not_know_any_more_is_closed_whatever_epoch_is_held(field_: Field, one: Leader) -> None:
    ticket = field_.ticket()
    await one.enqueue(ticket)
    field_.launch.gates[ticket.run_id] = GateValue(
        ticket.run_id, 0, Mode.CLOSED
    )  # its commit was lost with a promotion of launch
    await field_.hand.execute("UPDATE run_gate SET stamp = 1")
    assert await one.claim() == []
    gate = await field_.hand.fetchrow("SELECT epoch, mode FROM run_gate WHERE run_id = $1", ticket.run_id)
    assert gate is not None
    assert (gate["epoch"] >= EPOCH, gate["mode"]) == (True, 2)


async def test_a_withdrawal_that_overtakes_a_later_ticket_of_a_step_is_remembered(field_: Field, one: Leader) -> None:
    ticket = field_.ticket()
    await one.enqueue(ticket)
    (granted,) = await one.claim()
    assert await one.complete(failure(granted)) == [True]
    assert await revoke_tickets(one.ports, one.book, [(ticket.key, 2, "not needed")]) == [""]
    assert await one.enqueue(field_.ticket(ticket.run_id, sequence=2)) == [""]
    assert await one.claim() == []
    ends = sorted((fact.ticket_sequence, fact.end) for fact in await field_.told("attempt_finished"))
    assert ends == [(1, End.FAILED), (2, End.CANCELLED)]
    assert await revoke_tickets(one.ports, one.book, [(ticket.key, 2, "not needed")]) == [""]
    assert len(await field_.told("attempt_finished")) == 2


async def test_a_step_that_was_met_by_its_withdrawal_is_raised_too_where_grants_may_be_lost(field_: Field, one: Leader) -> None:
    new = await field_.leader("new", counter=1)
    await new.lead(6)
    ticket = field_.ticket(points=1, sequence=2)
    assert await revoke_tickets(new.ports, new.book, [(ticket.key, 1, "not needed")]) == [""]
    await new.enqueue(ticket)
    assert await new.claim() == []
    await new.acknowledge(ticket.run_id, StepFence(6, 2, NIL))
    (granted,) = await new.claim()
    assert granted.lease.fence.lease_epoch == 3


async def test_fences_are_answered_by_the_incarnation_of_the_connection_that_reads(field_: Field, one: Leader) -> None:
    ticket = field_.ticket(points=1)
    await one.enqueue(ticket)
    (granted,) = await one.claim()
    key = ticket.key
    assert (await one.reads.step_fences([ticket.run_id]))[1][key] == (granted.lease.fence, True)
    promoted = await field_.leader("promoted", counter=1)
    stale = SchedulerReads(StaleIncarnation(promoted.db, one.book.incarnation))  # type: ignore[arg-type]
    answered_in, found = await stale.step_fences([ticket.run_id])
    fence = granted.lease.fence
    assert answered_in == promoted.db.incarnation
    assert found[key] == (StepFence(fence.authority_epoch, fence.lease_epoch, NIL), False)


class StaleIncarnation:
    """A database whose promotion this process has not heard of: only its connections know."""

    def __init__(self, db: Database, heard: int) -> None:
        self.incarnation = heard
        self.tx = db.tx
        self.fetch = db.fetch


@pytest.mark.requirement("sched.fair")
async def test_a_first_ticket_does_not_pass_a_better_one_of_its_delivery(field_: Field, one: Leader) -> None:
    again = replace(field_.ticket(sequence=2), run_class=1)
    first = replace(field_.ticket(), run_class=3)
    poll = asyncio.create_task(one.desk.claim(one.ask(slots=1), 3_000))
    await wait_until(lambda: one.desk.waiting)
    assert await enqueue_tickets(one.ports, one.book, [first, again], one.desk) == ["", ""]
    assert [granted.lease.run_id for granted in await poll] == [again.run_id]
