"""Tickets from readiness → rows, then memory; a whole delivery in one transaction.

The gate of a run that was not read in this incarnation is read from launch before the transaction, merged and stamped inside
it. Can go wrong: a late or repeated ticket (a lower or equal sequence changes nothing); a ticket of a closed run (dropped); a
newer ticket while an attempt still holds the step, or one of a tenant of which enough wait (not now: it comes again). Where
workers wait for nothing else, a ticket is granted in the transaction that stores it; a step's first is stored as leased.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from libs.kernel.epochs import Mode
from services.scheduler.app.book import Book
from services.scheduler.app.claim_attempts import ClaimDesk
from services.scheduler.app.claims import Direct
from services.scheduler.app.continue_runs import Under
from services.scheduler.domain.commits import GateState
from services.scheduler.domain.ticket import NO_FENCE, Key, Ticket, TicketRow, TicketState
from services.scheduler.ports import ColdGates, Ports, Tx

NO_LEADER = "no leader here"
HELD = "the step is still held or ending"


async def enqueue_tickets(ports: Ports, book: Book, tickets: Sequence[Ticket], desk: ClaimDesk | None = None) -> list[str]:
    """One answer per ticket: empty where it is applied (or news no more), else why it must come again."""
    if not tickets:
        return []
    epochs = book.led({ticket.shard for ticket in tickets})
    newest: dict[Key, Ticket] = {}
    for ticket in tickets:
        held = newest.get(ticket.key)
        if ticket.shard in epochs and (held is None or ticket.ticket_sequence > held.ticket_sequence):
            newest[ticket.key] = ticket
    known = {key for key in newest if book.knows(key)}
    away = book.room.turn_away(newest.values(), known)
    taken = [ticket for ticket in newest.values() if ticket.key not in away]
    again = away | await _store(ports, book, taken, epochs, desk) if taken else away
    return [NO_LEADER if t.shard not in epochs else again.get(t.key, "") for t in tickets]


@dataclass(slots=True)
class _Stored:
    """What one transaction did."""

    put: dict[Key, TicketRow] = field(default_factory=dict)
    missed: list[Ticket] = field(default_factory=list)
    rows: dict[Key, TicketRow] = field(default_factory=dict)
    gates: dict[UUID, GateState] = field(default_factory=dict)
    direct: Direct | None = None
    deposed: frozenset[int] = frozenset()


async def _store(
    ports: Ports, book: Book, tickets: list[Ticket], epochs: dict[int, int], desk: ClaimDesk | None
) -> dict[Key, str]:
    incarnation = book.incarnation
    unread = {ticket.run_id for ticket in tickets if ticket.run_id not in book.warm}
    cold = await ports.gates.read(unread) if unread else None
    if cold is not None and cold.has_scopes:  # scopes are locked before gates, so their merge is a transaction of its own
        async with ports.db.facts(()) as tx:
            await tx.merge_cold(cold)
    done = _Stored()
    committed = False
    try:
        await _commit(ports, book, tickets, epochs, desk, cold, done)
        committed = True
    finally:
        given: set[Key] = set()
        if done.direct is not None and desk is not None:
            given = desk.done_directly(done.direct, epochs, committed=committed)
    if cold is not None and cold.started_in == incarnation:
        for run_id in unread:
            book.warm.add(run_id)
    _remember(book, tickets, {key: row for key, row in done.put.items() if key not in given}, epochs)
    again = {ticket.key: NO_LEADER for ticket in tickets if ticket.shard in done.deposed}
    for ticket in done.missed:
        row = done.rows.get(ticket.key)
        if row is not None and row.ticket_sequence == ticket.ticket_sequence and not book.knows(ticket.key):
            book.put_row(row, done.gates.get(ticket.run_id))  # stored before, by a commit whose answer was lost
        why = _why_missed(ticket, done.rows.get(ticket.key), done.gates.get(ticket.run_id))
        if why:
            again[ticket.key] = why
            book.warm.discard(ticket.run_id)
    return again


async def _commit(
    ports: Ports,
    book: Book,
    tickets: list[Ticket],
    epochs: dict[int, int],
    desk: ClaimDesk | None,
    cold: ColdGates | None,
    done: _Stored,
) -> None:
    now_ms, incarnation = ports.clock.now_ms(), book.incarnation
    runs = {ticket.run_id for ticket in tickets}
    scopes = desk.scopes_to_lock(tickets) if desk is not None else set()
    async with ports.db.commit(epochs, runs, incarnation=incarnation, scopes=scopes) as tx:
        done.deposed = tx.deposed
        mine = [ticket for ticket in tickets if ticket.shard not in tx.deposed]
        if cold is not None and not cold.has_scopes:
            await tx.merge_cold(cold)
        first = incarnation if book.birth == incarnation else 0
        if desk is not None and scopes:
            fresh = {t.key: t for t in mine if t.ticket_sequence == 1 and t.wanted is None and not book.knows(t.key)}
            if len(fresh) == len(mine):  # else a ticket that is older, or was met before, would be overtaken
                done.put = await _put_leased(tx, desk, fresh, first, done, Under(scopes, epochs, now_ms))
        left = [ticket for ticket in mine if ticket.key not in done.put]
        if left:
            done.put |= await tx.put_tickets(left, now_ms, first)
        old = {key: row for key, row in done.put.items() if row.must_be_raised(incarnation)}
        if old:
            raised = await tx.rows(await tx.raise_anew(old, epochs))
            done.put |= raised
            notices = [n for row in raised.values() for n in ports.notices.raises(row.key, row.fence, row.raise_need)]
            await tx.send(notices, now_ms)
        done.missed = [ticket for ticket in mine if ticket.key not in done.put]
        if done.missed:
            done.rows = await tx.rows([ticket.key for ticket in done.missed])
            done.gates = await tx.gates({ticket.run_id for ticket in done.missed})
        if desk is not None and scopes and done.direct is None:
            done.direct = await desk.grant_directly(tx, list(done.put.values()), scopes, epochs, now_ms)


async def _put_leased(
    tx: Tx, desk: ClaimDesk, tickets: dict[Key, Ticket], first: int, done: _Stored, under: Under
) -> dict[Key, TicketRow]:
    """First tickets that somebody waits for: their rows are written once, where none was there."""
    if not tickets:
        return {}
    rows = {key: TicketRow.of(ticket, under.now_ms, NO_FENCE, first) for key, ticket in tickets.items()}
    done.direct = desk.plan_directly(list(rows.values()), under.scopes, under.epochs, tx.incarnation)
    if done.direct is None:
        return {}
    await desk.put_leased(tx, done.direct, tickets, under.now_ms, first)
    return {key: rows[key] for key in done.direct.granted}


def _remember(book: Book, tickets: list[Ticket], put: dict[Key, TicketRow], epochs: dict[int, int]) -> None:
    for ticket in tickets:
        row = put.get(ticket.key)
        if row is not None and book.still(row.shard, epochs[row.shard]):
            book.put_row(row, GateState(ticket.epoch, Mode.OPEN, book.incarnation, ""))


def _why_missed(ticket: Ticket, row: TicketRow | None, gate: GateState | None) -> str:
    """Why a ticket was not stored; empty where it need not come again."""
    if gate is not None and gate.mode is Mode.CLOSED:
        return ""
    if row is not None and row.ticket_sequence >= ticket.ticket_sequence:
        return ""
    if row is not None and row.state in (TicketState.LEASED, TicketState.ENDING):
        return HELD
    return "the run's gate was not read in this incarnation"
