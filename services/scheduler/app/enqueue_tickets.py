"""Tickets from readiness → rows, then memory; a whole delivery in one transaction.

The gate of a run that was not read in this incarnation is read from launch before the transaction, merged and stamped inside
it. Can go wrong: a late or repeated ticket (a lower or equal sequence changes nothing); a ticket of a closed run (dropped); a
newer ticket while an attempt still holds the step (not now: it comes again).
"""

from collections.abc import Sequence

from libs.kernel.epochs import Mode
from services.scheduler.app.book import Book
from services.scheduler.domain.ticket import Key, Ticket, TicketRow, TicketState
from services.scheduler.ports import GateState, Ports

NO_LEADER = "no leader here"
HELD = "the step is still held or ending"


async def enqueue_tickets(ports: Ports, book: Book, tickets: Sequence[Ticket]) -> list[str]:
    """One answer per ticket: empty where it is applied (or news no more), else why it must come again."""
    if not tickets:
        return []
    epochs = book.led({ticket.shard for ticket in tickets})
    newest: dict[Key, Ticket] = {}
    for ticket in tickets:
        held = newest.get(ticket.key)
        if ticket.shard in epochs and (held is None or ticket.ticket_sequence > held.ticket_sequence):
            newest[ticket.key] = ticket
    again: dict[Key, str] = {}
    if newest:
        again = await _store(ports, book, list(newest.values()), epochs)
    return [NO_LEADER if t.shard not in epochs else again.get(t.key, "") for t in tickets]


async def _store(ports: Ports, book: Book, tickets: list[Ticket], epochs: dict[int, int]) -> dict[Key, str]:
    incarnation, now_ms = book.incarnation, ports.clock.now_ms()
    runs = {ticket.run_id for ticket in tickets}
    unread = {run_id for run_id in runs if run_id not in book.warm}
    cold = await ports.gates.read(unread) if unread else None
    if cold is not None and cold.has_scopes:  # scopes are locked before gates, so their merge is a transaction of its own
        async with ports.db.facts(()) as tx:
            await tx.merge_cold(cold)
    async with ports.db.commit(epochs, runs, incarnation=incarnation) as tx:
        mine = [ticket for ticket in tickets if ticket.shard not in tx.deposed]
        if cold is not None and not cold.has_scopes:
            await tx.merge_cold(cold)
        put = await tx.put_tickets(mine, now_ms, incarnation if book.birth == incarnation else 0)
        old = {key: row for key, row in put.items() if row.must_be_raised(incarnation)}
        if old:
            raised = await tx.rows(await tx.raise_anew(old, epochs))
            put |= raised
            notices = [n for row in raised.values() for n in ports.notices.raises(row.key, row.fence, row.raise_need)]
            await tx.send(notices, now_ms)
        missed = [ticket for ticket in mine if ticket.key not in put]
        found = await tx.rows([ticket.key for ticket in missed]) if missed else {}
        gates = await tx.gates({ticket.run_id for ticket in missed}) if missed else {}
    if cold is not None and cold.started_in == incarnation:
        for run_id in unread:
            book.warm.add(run_id)
    _remember(book, tickets, put, epochs)
    again = {ticket.key: NO_LEADER for ticket in tickets if ticket.shard in tx.deposed}
    for ticket in missed:
        why = _why_missed(ticket, found.get(ticket.key), gates.get(ticket.run_id), incarnation)
        if why:
            again[ticket.key] = why
            book.warm.discard(ticket.run_id)
    return again


def _remember(book: Book, tickets: list[Ticket], put: dict[Key, TicketRow], epochs: dict[int, int]) -> None:
    for ticket in tickets:
        row = put.get(ticket.key)
        if row is not None and book.still(row.shard, epochs[row.shard]):
            book.put_row(row, GateState(ticket.epoch, Mode.OPEN, book.incarnation, ""))


def _why_missed(ticket: Ticket, row: TicketRow | None, gate: GateState | None, incarnation: int) -> str:
    """Why a ticket was not stored; empty where it need not come again."""
    if gate is not None and gate.mode is Mode.CLOSED:
        return ""
    if row is not None and row.ticket_sequence >= ticket.ticket_sequence:
        return ""
    if row is not None and row.state in (TicketState.LEASED, TicketState.ENDING):
        return HELD
    return "the run's gate was not read in this incarnation"
