"""Taking over shards, and how long a lease may be silent: by whose clock, from when, and what an earlier leader left."""

import asyncio

import pytest

from libs.kernel.epochs import Mode
from libs.testkit.waiting import wait_until
from services.scheduler.app.beat_attempts import beat_attempts
from services.scheduler.app.expire_leases import Expiry
from services.scheduler.domain.commits import GrantAsk
from services.scheduler.domain.lease import Answer, Beat
from services.scheduler.domain.ticket import End
from tests.store.scheduler.harness import EPOCH, A, Calm, Field, Leader, success, waits_for_a_lock


async def test_a_taken_over_lease_gets_a_full_ttl_whatever_the_wall_clock_says(field_: Field, one: Leader) -> None:
    ticket = field_.ticket()
    await one.enqueue(ticket)
    (granted,) = await one.claim()
    field_.clock.jump(-3_600_000)
    new = await field_.leader("new")
    await new.lead(6)
    lease = new.book.leases[ticket.key]
    assert (lease.fence, lease.heard_ms, lease.beaten) == (granted.lease.fence, field_.clock.monotonic_ms(), True)
    field_.clock.jump(7_200_000)
    said = Beat(ticket.run_id, "s", lease.fence.attempt_id, lease.fence.lease_epoch)
    field_.clock.advance(100)
    (beaten,) = beat_attempts(new.ports, new.book, "w1", A, [said])
    assert beaten.answer is Answer.LIVE
    assert lease.heard_ms == field_.clock.monotonic_ms()


async def test_silence_is_judged_by_our_own_monotonic_clock_alone(field_: Field, one: Leader) -> None:
    expiry = Expiry(one.ports, one.book, Calm(), 1_000)
    ticket = field_.ticket()
    await one.enqueue(ticket)
    (granted,) = await one.claim()
    said = Beat(ticket.run_id, "s", granted.lease.fence.attempt_id, 1)
    assert beat_attempts(one.ports, one.book, "w1", A, [said])[0].answer is Answer.LIVE
    for jump_ms in (-3_600_000, 7_200_000):
        field_.clock.jump(jump_ms)
        await expiry.run()
    for _ in range(8):
        field_.clock.advance(1_000)
        await expiry.run()
    assert (await field_.row(ticket.run_id))["state"] == 2
    field_.clock.advance(1_000)
    await expiry.run()
    assert [fact.end for fact in await field_.told("attempt_finished")] == [End.LOST]
    assert beat_attempts(one.ports, one.book, "w1", A, [said])[0].answer is Answer.FENCED


async def test_a_process_that_was_late_itself_calls_nobody_late(field_: Field, one: Leader) -> None:
    expiry = Expiry(one.ports, one.book, Calm(), 1_000)
    ticket = field_.ticket()
    await one.enqueue(ticket)
    (granted,) = await one.claim()
    await expiry.run()
    field_.clock.advance(20_000)  # paused: beats of that time are still to be read
    await expiry.run()
    assert (await field_.row(ticket.run_id))["state"] == 2
    said = Beat(ticket.run_id, "s", granted.lease.fence.attempt_id, 1)
    assert beat_attempts(one.ports, one.book, "w1", A, [said])[0].answer is Answer.LIVE


@pytest.mark.requirement("sched.authority")
async def test_a_new_leader_waits_for_the_commit_under_way_and_finds_it(field_: Field, one: Leader) -> None:
    ticket = field_.ticket()
    await one.enqueue(ticket)
    new = await field_.leader("new")
    async with one.store.commit(dict(one.book.epochs), [ticket.run_id], incarnation=one.book.incarnation) as tx:
        taking = asyncio.create_task(new.lead(6))
        await wait_until(lambda: waits_for_a_lock(field_), what="the new leader waits")
        ask = GrantAsk(ticket.key, 1, 0, one.book.epochs[ticket.shard], field_.ids.random128(), "w", field_.ids.random128())
        assert await tx.grant([ask], 0)
        assert not taking.done()
    assert len(await taking) == 64
    assert new.book.leases[ticket.key].fence.attempt_id == ask.attempt_id


async def test_old_closed_runs_are_forgotten_and_open_ones_are_not(field_: Field, one: Leader) -> None:
    done, open_ = field_.ticket(), field_.ticket()
    await one.enqueue(done, open_)
    granted = await one.claim(slots=2)
    by_run = {g.lease.run_id: g for g in granted}
    assert await one.complete(success(by_run[done.run_id])) == [True]
    for ticket in (done, open_):
        await one.raise_gate(ticket.run_id, EPOCH + 1, Mode.CLOSED, "succeeded")
    assert await one.store.forget_runs(done.run_id, 500) == 0
    field_.clock.advance(1)
    assert await one.store.forget_runs(field_.ids.uuid7(), 500) == 1
    for table in ("ticket", "attempt", "run_gate"):
        rows = await field_.hand.fetch(f"SELECT run_id FROM {table}")
        assert [row["run_id"] for row in rows] == ([] if table == "attempt" else [open_.run_id])


async def test_sixty_four_shards_with_thousands_of_tickets_are_taken_over_quickly(field_: Field, one: Leader) -> None:
    for _ in range(4):
        await one.enqueue(*[field_.ticket() for _ in range(500)])
    new = await field_.leader("new")
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert len(await new.lead(6)) == 64
    assert loop.time() - began < 1.0
    assert len(new.book.ready) == 2000
