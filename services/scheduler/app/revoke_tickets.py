"""Withdrawals of tickets: what waits is dropped, what is live is stopped, what did not come yet will find its place taken,
also where the step had an earlier ticket.

Readiness is told CANCELLED in each case, so that it never waits for an attempt that was not there.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from libs.kernel.ids import NIL, shard_of
from services.scheduler.app.book import Book
from services.scheduler.app.ends import note_ends, tell_quiet, write_ends
from services.scheduler.domain.ending import Ending, Finished
from services.scheduler.domain.ticket import End, Failure, Key, TicketRow, TicketState
from services.scheduler.ports import Ports

NO_LEADER = "no leader here"


async def revoke_tickets(ports: Ports, book: Book, asks: Sequence[tuple[Key, int, str]]) -> list[str]:
    """(step, sequence, why) → empty where it is done, else why it must come again."""
    if not asks:
        return []
    epochs = book.led({shard_of(key[0]) for key, _, _ in asks})
    newest: dict[Key, tuple[int, str]] = {}
    for key, sequence, why in asks:
        if shard_of(key[0]) in epochs and sequence > newest.get(key, (0, ""))[0]:
            newest[key] = (sequence, why)
    if newest:
        await _revoke(ports, book, newest, epochs)
    return ["" if book.epoch(shard_of(key[0])) is not None and key in newest else NO_LEADER for key, _, _ in asks]


async def _revoke(ports: Ports, book: Book, asks: Mapping[Key, tuple[int, str]], epochs: dict[int, int]) -> None:
    now_ms = ports.clock.now_ms()
    runs: set[UUID] = {run_id for run_id, _ in asks}
    async with ports.db.commit(epochs, runs, incarnation=book.incarnation) as tx:
        mine = {key: ask for key, ask in asks.items() if shard_of(key[0]) not in tx.deposed}
        rows = await tx.rows(mine)
        unknown = {key: sequence for key, (sequence, _) in mine.items() if key not in rows}
        first = book.incarnation if book.birth == book.incarnation else 0
        noted = await tx.note_revoked(unknown, now_ms, first) if unknown else set()
        ready = {key: sequence for key, (sequence, _) in mine.items() if key in rows and _waits(rows[key], sequence)}
        dropped = await tx.drop_ready(ready) if ready else set()
        live = [_ending(rows[key], mine[key][1]) for key in mine if key in rows and _live(rows[key], mine[key][0])]
        ended = await write_ends(ports, tx, live, epochs, now_ms)
        told = [_never_ran(key, mine[key], rows.get(key), now_ms) for key in sorted(noted | dropped)]
        await tx.send([ports.notices.finished(fact, now_ms) for fact in told], now_ms)
        await tell_quiet(ports, tx, {run_id for run_id, _ in ended}, now_ms)
    note_ends(book, epochs, ended, stopped=True)
    for row in rows.values():
        book.correct(row)
    for key in dropped:
        if book.still(shard_of(key[0]), epochs[shard_of(key[0])]):
            book.forget(key)


def _waits(row: TicketRow, sequence: int) -> bool:
    if row.state is TicketState.READY:
        return row.ticket_sequence <= sequence
    return row.state in (TicketState.DONE, TicketState.REVOKED) and row.ticket_sequence < sequence


def _live(row: TicketRow, sequence: int) -> bool:
    return row.state is TicketState.LEASED and row.ticket_sequence <= sequence


def _ending(row: TicketRow, why: str) -> Ending:
    return Ending(row.run_id, row.step_key, row.fence, End.CANCELLED, Failure("attempt", why or "withdrawn", "REVOKED"))


def _never_ran(key: Key, ask: tuple[int, str], row: TicketRow | None, now_ms: int) -> Finished:
    """The end of an attempt that never was."""
    return Finished(
        run_id=key[0],
        step_key=key[1],
        ticket_sequence=row.ticket_sequence if row is not None and row.state is TicketState.READY else ask[0],
        attempt_id=NIL,
        lease_epoch=0,
        authority_epoch=0,
        end=End.CANCELLED,
        failure=Failure("attempt", ask[1] or "withdrawn", "REVOKED"),
        output=b"",
        unresolved={},
        worker_id="",
        ended_ms=now_ms,
    )
