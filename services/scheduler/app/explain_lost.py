"""Why tickets of a plan were not granted, and where they belong now.

A cold gate is read from launch; a paused run and a stopped scope are parked; a closed run is obeyed; the rest is as
its row says.
Can go wrong: the database is away while this is found out. The tickets are then looked at again in the table.
"""

from collections.abc import Collection, Sequence
from uuid import UUID

from libs.kernel.epochs import StepFence
from libs.kernel.refusal import Reason, Refusal
from libs.telemetry.logs import get_logger
from services.scheduler.app.book import Book
from services.scheduler.app.queue import Ready
from services.scheduler.app.read_gates import read_cold
from services.scheduler.domain.commits import Holder
from services.scheduler.domain.ticket import TicketState
from services.scheduler.ports import Ports

log = get_logger(__name__)


async def look_again(ports: Ports, book: Book, tickets: Collection[Ready]) -> None:
    """The commit failed or its answer was lost: the rows say what became of it. Unreadable: look later."""
    keys = [ready.candidate.key for ready in tickets]
    try:
        rows = await ports.db.read_rows(keys)
        gates = await ports.db.read_gates({run_id for run_id, _ in keys})
    except Refusal:
        book.awaited.update(keys)
        return
    for key in keys:
        row = rows.get(key)
        if row is not None and book.epoch(row.shard) is not None:
            book.put_row(row, gates.get(row.run_id))


async def explain(ports: Ports, book: Book, lost: Collection[Ready]) -> None:
    """Why tickets were not granted: cold gates are read, paused ones parked, the rest is as its row says."""
    keys = {ready.candidate.key: ready for ready in lost}
    epochs = book.led({ready.shard for ready in lost})
    runs = {key[0] for key in keys}
    nobody = StepFence(0, 0, UUID(int=0))
    holders = [Holder(*key, nobody, 0, ready.candidate.tenant, ready.candidate.project) for key, ready in keys.items()]
    async with ports.db.commit(epochs, runs, incarnation=book.incarnation) as tx:
        rows = await tx.rows(keys)
        judged = dict(zip(keys, await tx.judge(holders, "claim"), strict=True))
        gates = await tx.gates(runs)
    cold = {key[0] for key, verdict in judged.items() if verdict.cold}
    for key, ready in keys.items():
        row, refusal = rows.get(key), judged[key].refusal
        if row is None or row.state is not TicketState.READY or refusal is None:
            if row is not None and key[0] not in cold and book.epoch(row.shard) is not None:
                book.put_row(row, gates.get(key[0]))
        elif refusal.reason in (Reason.RUN_PAUSED, Reason.SCOPE_STOPPED):
            book.parked[key] = ready
        else:
            book.obey.add(key[0])
            book.raised.set()
    if cold:
        await _warm(ports, book, cold, [ready for key, ready in keys.items() if key[0] in cold])


async def _warm(ports: Ports, book: Book, runs: Collection[UUID], tickets: Sequence[Ready]) -> None:
    try:
        await read_cold(ports, book, runs)
    except Refusal as no:
        log.warning("gates cannot be read from launch now", runs=len(runs), message=no.message)
        for ready in tickets:
            book.parked[ready.candidate.key] = ready
        return
    for ready in tickets:
        if book.epoch(ready.shard) is not None:
            book.admit(ready)


def reconsider_parked(book: Book) -> None:
    """Scopes open without telling leaders: what is parked is tried again now and then, and parked again by its verdict."""
    book.unpark(book.parked)
