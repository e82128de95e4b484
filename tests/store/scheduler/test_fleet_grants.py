"""A fleet's worker that waits: tickets of any tenant are granted to it in the commit that stores them, and marked as its own."""

import asyncio
from dataclasses import replace

from libs.testkit.waiting import wait_until
from services.scheduler.app.enqueue_tickets import enqueue_tickets
from services.scheduler.domain.asker import Asker
from tests.store.scheduler.harness import Field, Leader

FLEET = Asker("platform", "", fleet=True)


async def test_a_ticket_is_granted_to_a_waiting_fleet_as_it_comes(field_: Field, one: Leader) -> None:
    waiting = asyncio.create_task(one.desk.claim(replace(one.ask(), who=FLEET), 5_000))
    await wait_until(lambda: one.desk.waiting)
    ticket = field_.ticket(tenant="b")
    assert one.desk.scopes_to_lock([ticket]) == {("tenant", "b"), ("project", "b/p")}
    assert await enqueue_tickets(one.ports, one.book, [ticket], one.desk) == [""]
    (granted,) = await waiting
    assert (granted.lease.tenant, granted.lease.fleet) == ("b", "platform")
    row = await field_.row(ticket.run_id)
    assert (row["state"], row["fleet"], row["worker_id"]) == (2, "platform", "w1")


async def test_a_lease_that_passes_from_a_fleet_to_a_tenants_worker_is_marked_anew(field_: Field, one: Leader) -> None:
    ticket = field_.ticket()
    await one.enqueue(ticket)
    (first,) = await one.desk.claim(replace(one.ask(), who=FLEET), 0) or await one.desk.claim(replace(one.ask(), who=FLEET), 0)
    assert first.lease.fleet == "platform"
    await field_.hand.execute("UPDATE ticket SET state = 1, lease_epoch = lease_epoch + 1 WHERE run_id = $1", ticket.run_id)
    one.book.forget(ticket.key)
    one.book.put_row((await one.store.read_rows([ticket.key]))[ticket.key], None)
    (second,) = await one.claim()
    assert (second.lease.fleet, (await field_.row(ticket.run_id))["fleet"]) == ("", "")


async def test_a_claim_under_the_same_name_by_another_key_ends_nobodys_wait(field_: Field, one: Leader) -> None:
    ask = replace(one.ask(), who=FLEET)
    waiting = asyncio.create_task(one.desk.claim(ask, 5_000))
    await wait_until(lambda: one.desk.waiting)
    for who in (Asker("a", ""), Asker("platform", ""), Asker("other", "", fleet=True)):
        assert await one.desk.claim(replace(ask, who=who), 0) == []
    assert (one.desk.waiting, waiting.done()) == (1, False)
    ticket = field_.ticket(tenant="b")
    await enqueue_tickets(one.ports, one.book, [ticket], one.desk)
    (granted,) = await waiting
    assert granted.lease.run_id == ticket.run_id
