"""What every end of an attempt has in common: the rows it changes, and what is told when.

Success raises beside its event. Any other end of a step that touches points raises first and tells nothing: its event
is written when each point has acknowledged (`acknowledge_raises`). Steps that touch no point cost no raise.
"""

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from services.scheduler.app.book import Book
from services.scheduler.domain.commits import Notice
from services.scheduler.domain.ending import Ending, finished, told
from services.scheduler.domain.ticket import Key, TicketRow, TicketState
from services.scheduler.ports import Ports, Tx


async def write_ends(
    ports: Ports, tx: Tx, endings: Sequence[Ending], epochs: Mapping[int, int], now_ms: int
) -> dict[Key, TicketRow]:
    """Ends leases that are exactly these; their rows as they stand now. Raises or events go into the outbox."""
    if not endings:
        return {}
    ended = await tx.end_leases(endings, epochs, now_ms)
    if not ended:
        return {}
    rows = await tx.rows(ended)
    notices = [n for row in rows.values() if row.raise_need for n in ports.notices.raises(row.key, row.fence, row.raise_need)]
    notices += await close_ends(ports, tx, [row for row in rows.values() if row.state is TicketState.DONE], now_ms)
    await tx.send(notices, now_ms)
    return rows


async def close_ends(ports: Ports, tx: Tx, rows: Sequence[TicketRow], now_ms: int) -> list[Notice]:
    """Ends that wait for nothing any more: into the history, and told to readiness."""
    if not rows:
        return []
    closed = await tx.finish([(row, told(row.end, row.unresolved)) for row in rows])
    return [ports.notices.finished(finished(row), now_ms) for row in rows if row.key in closed]


async def tell_quiet(ports: Ports, tx: Tx, runs: Collection[UUID], now_ms: int) -> None:
    """Runs that are not open and hold nothing live here any more: launch is told once per epoch."""
    if runs:
        quiet = await tx.quiet_runs(runs)
        await tx.send([ports.notices.quiesced(run_id, epoch, tx.incarnation, now_ms) for run_id, epoch in quiet], now_ms)


def note_ends(book: Book, epochs: Mapping[int, int], rows: Mapping[Key, TicketRow], *, stopped: bool = False) -> None:
    """Memory after the commit."""
    for key, row in rows.items():
        if stopped:
            book.stopped.add((key, row.ended_attempt))
        if book.still(row.shard, epochs[row.shard]):
            book.forget(key)
            if row.state is TicketState.ENDING:
                book.awaited.add(key)
