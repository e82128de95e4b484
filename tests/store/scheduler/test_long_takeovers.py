"""A shard of many tickets is taken over by pages: what is leased before anything is led, what waits while the first of it is granted,
and never something old over something new."""

from collections.abc import Awaitable, Callable, Collection, Mapping

import pytest

from libs.kernel.epochs import Mode
from libs.kernel.refusal import Reason, Refusal
from services.scheduler.app import take_over as module
from services.scheduler.app.beat_attempts import beat_attempts
from services.scheduler.domain.lease import Answer, Beat
from services.scheduler.domain.ticket import Key, TicketRow
from tests.store.scheduler.harness import EPOCH, A, Field, Leader

LEASED, READY = 3, 5
Look = Callable[[set[Key]], Awaitable[None]]


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE", 2)


def looking(leader: Leader, look: Look) -> list[int]:
    """Calls `look` after each page was read and before it is in memory; sizes of the pages."""
    read, sizes = leader.store.read_rows, []

    async def wrapped(keys: Collection[Key]) -> Mapping[Key, TicketRow]:
        sizes.append(len(keys))
        found = await read(keys)
        await look(set(keys))
        return found

    leader.store.read_rows = wrapped  # type: ignore[method-assign]
    return sizes


async def filled(field_: Field, one: Leader) -> tuple[set[Key], set[Key]]:
    """Steps that are leased, and that wait."""
    tickets = [field_.ticket() for _ in range(LEASED + READY)]
    await one.enqueue(*tickets)
    leased = {granted.lease.key for granted in await one.claim(slots=LEASED)}
    assert len(leased) == LEASED
    return leased, {ticket.key for ticket in tickets} - leased


@pytest.mark.requirement("sched.authority")
async def test_what_is_leased_is_known_before_anything_is_led_and_pages_are_bounded(field_: Field, one: Leader) -> None:
    leased, ready = await filled(field_, one)
    new = await field_.leader("new")
    known: list[tuple[bool, set[Key]]] = []

    async def look(keys: set[Key]) -> None:
        known.append((bool(new.book.epochs), set(new.book.leases)))
        assert not keys & leased or not new.book.epochs, "led before its leases are known: their heartbeats would be fenced"
        assert not keys & ready or set(new.book.leases) == leased

    sizes = looking(new, look)
    assert len(await new.lead(6)) == 64
    assert max(sizes) == 2
    assert sum(sizes) == LEASED + READY
    assert {led for led, _ in known} == {False, True}
    assert set(new.book.leases) == leased
    assert {waits.candidate.key for waits in new.book.ready} == ready
    assert len(await new.claim(slots=20)) == READY, "all of it is granted in the end"


@pytest.mark.requirement("sched.authority")
async def test_heartbeats_and_claims_are_answered_while_the_rest_is_read(field_: Field, one: Leader) -> None:
    leased, ready = await filled(field_, one)
    new = await field_.leader("new")
    answers: list[Answer] = []
    granted: set[Key] = set()

    async def look(keys: set[Key]) -> None:
        if keys & ready:
            for lease in list(new.book.leases.values()):
                beat = Beat(lease.run_id, lease.step_key, lease.fence.attempt_id, lease.fence.lease_epoch)
                answers.extend(beaten.answer for beaten in beat_attempts(new.ports, new.book, "w1", A, [beat]))
            granted.update(lease.lease.key for lease in await new.claim(slots=1))

    looking(new, look)
    await new.lead(6)
    assert set(answers) == {Answer.LIVE}
    assert granted
    assert granted <= ready, "what waits is granted while the rest is read"
    assert set(new.book.leases) == leased | granted
    assert {waits.candidate.key for waits in new.book.ready} == ready - granted


@pytest.mark.requirement("sched.authority")
async def test_what_was_read_is_not_put_over_what_became_of_it_meanwhile(field_: Field, one: Leader) -> None:
    _, ready = await filled(field_, one)
    new = await field_.leader("new")
    newer: dict[Key, int] = {}

    async def look(keys: set[Key]) -> None:
        for key in sorted(keys & ready):
            await new.enqueue(field_.ticket(key[0], sequence=2))
            newer[key] = 2

    looking(new, look)
    await new.lead(6)
    assert {waits.candidate.key: waits.ticket_sequence for waits in new.book.ready} == newer
    assert len(await new.claim(slots=20)) == READY


@pytest.mark.requirement("sched.authority")
async def test_a_takeover_that_fails_half_way_leads_nothing(field_: Field, one: Leader) -> None:
    leased, ready = await filled(field_, one)
    new = await field_.leader("new")
    pages = 0

    async def look(keys: set[Key]) -> None:
        nonlocal pages
        pages += bool(keys & ready)
        if pages == 2:
            raise Refusal(Reason.AUTHORITY_UNREACHABLE, "the database is away")

    looking(new, look)
    with pytest.raises(Refusal):
        await new.lead(6)
    assert (new.book.epochs, new.book.leases, len(new.book.ready)) == ({}, {}, 0)
    pages = -9
    assert len(await new.lead(7)) == 64, "the next term begins anew"
    assert (set(new.book.leases), len(new.book.ready)) == (leased, READY)


@pytest.mark.requirement("sched.authority")
async def test_a_gate_that_was_raised_while_its_page_was_read_is_obeyed(field_: Field, one: Leader) -> None:
    _, ready = await filled(field_, one)
    new = await field_.leader("new")
    paused = min(ready)

    async def look(keys: set[Key]) -> None:
        if paused in keys:
            await new.raise_gate(paused[0], EPOCH + 1, Mode.DRAINING, "")

    looking(new, look)
    await new.lead(6)
    granted = {lease.lease.key for lease in await new.claim(slots=20)} | {
        lease.lease.key for lease in await new.claim(slots=20)
    }
    assert granted == ready - {paused}
