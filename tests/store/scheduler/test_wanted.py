"""Tickets that wait for capacity: how the wait ended is told in the grant's commit, and is the same for whoever asks later."""

from dataclasses import replace

import pytest

from services.scheduler.domain.buckets import View
from services.scheduler.domain.ticket import Ticket, Wanted
from tests.store.scheduler.harness import Field, Leader

WANTED = Wanted("w", "x", 5, 0)


def wanting(field_: Field, until_ms: int) -> Ticket:
    ticket = field_.ticket()
    return replace(ticket, contract=replace(ticket.contract, tools=("x",)), wanted=replace(WANTED, until_ms=until_ms))


def see(leader: Leader, level: float) -> None:
    leader.book.usage.gauges.see(
        [View("b", frozenset({"x"}), 10.0, 0.0, level, 1.0, 0.0, frozenset(), leader.book.clock.monotonic_ms())]
    )


async def ends(field_: Field) -> list[tuple[str, bool]]:
    return [(fact.slot, fact.timed_out) for fact in await field_.told("command_answered")]


@pytest.mark.requirement("step.wait")
@pytest.mark.requirement("sched.buckets")
async def test_what_a_ticket_waits_for_is_kept_told_and_the_same_after_a_takeover(field_: Field, one: Leader) -> None:
    see(one, 3.0)
    there = wanting(field_, 0)
    await one.enqueue(there)
    assert await one.claim() == [], "three calls are not five"
    see(one, 5.0)
    (granted,) = await one.claim()
    assert (granted.lease.wants, granted.lease.lapsed) == ((("x", 5),), False)
    assert await ends(field_) == [("w", False)]
    see(one, 5.0)
    other = field_.ticket()
    other = replace(other, contract=replace(other.contract, tools=("x",)))
    await one.enqueue(other)
    assert await one.claim() == [], "the five calls that were waited for are that lease's"
    new = await field_.leader("new")
    await new.lead(6)
    lease = new.book.leases[there.key]
    assert (lease.wants, lease.lapsed) == ((("x", 5),), False)


@pytest.mark.requirement("step.wait")
async def test_a_ticket_whose_time_passes_goes_without_and_says_so_to_everybody(field_: Field, one: Leader) -> None:
    see(one, 0.0)
    late = wanting(field_, field_.clock.now_ms() + 1_000)
    await one.enqueue(late)
    assert await one.claim() == []
    one.book.lapse()
    assert await one.claim() == []
    field_.clock.advance(1_000)
    one.book.lapse()
    (granted,) = await one.claim()
    assert (granted.lease.wants, granted.lease.lapsed) == ((), True)
    assert await ends(field_) == [("w", True)]
    new = await field_.leader("new")
    await new.lead(6)
    assert new.book.leases[late.key].lapsed


@pytest.mark.requirement("step.wait")
async def test_a_leader_that_takes_over_lapses_what_waited_before_it(field_: Field, one: Leader) -> None:
    see(one, 0.0)
    late = wanting(field_, field_.clock.now_ms() + 1_000)
    await one.enqueue(late)
    new = await field_.leader("new")
    see(new, 0.0)
    await new.lead(6)
    assert await new.claim() == []
    field_.clock.advance(1_000)
    new.book.lapse()
    (granted,) = await new.claim()
    assert granted.lease.lapsed
