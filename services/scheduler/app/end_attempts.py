"""End attempts that did not report: silent ones, timed-out ones, those of closed runs.

Can go wrong: the database is away. Nothing is ended then; the lease lives on in memory and is judged again by the next sweep.
"""

from collections.abc import Sequence

from libs.kernel.ids import shard_of
from libs.telemetry.catalogue import LEASES_ENDED
from services.scheduler.app.book import Book
from services.scheduler.app.ends import note_ends, tell_quiet, write_ends
from services.scheduler.domain.ending import Ending
from services.scheduler.domain.ticket import End, Key
from services.scheduler.ports import Ports


async def end_attempts(ports: Ports, book: Book, endings: Sequence[Ending], *, batch: int = 500) -> set[Key]:
    """Ends what is still exactly as it was judged; answers what was ended."""
    done: set[Key] = set()
    for start in range(0, len(endings), batch):
        done |= await _end(ports, book, endings[start : start + batch])
    return done


async def _end(ports: Ports, book: Book, endings: Sequence[Ending]) -> set[Key]:
    epochs = book.led({shard_of(ending.run_id) for ending in endings})
    mine = [ending for ending in endings if shard_of(ending.run_id) in epochs]
    if not mine:
        return set()
    now_ms = ports.clock.now_ms()
    async with ports.db.commit(epochs, {e.run_id for e in mine}, incarnation=book.incarnation) as tx:
        mine = [ending for ending in mine if shard_of(ending.run_id) not in tx.deposed]
        rows = await write_ends(ports, tx, mine, epochs, now_ms)
        missed = await tx.rows([ending.key for ending in mine if ending.key not in rows]) if len(rows) < len(mine) else {}
        await tell_quiet(ports, tx, {run_id for run_id, _ in rows}, now_ms)
    cancelled = {ending.key for ending in mine if ending.end is End.CANCELLED}
    note_ends(book, epochs, {key: row for key, row in rows.items() if key in cancelled}, stopped=True)
    note_ends(book, epochs, {key: row for key, row in rows.items() if key not in cancelled})
    for row in missed.values():
        book.correct(row)
    for row in rows.values():
        LEASES_ENDED.labels(row.end.name.lower()).inc()
    return set(rows)
