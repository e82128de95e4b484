"""Points committed raises of ends: what waited for them goes on.

Any process may be told (whichever relay sent the raise), so this records facts, behind the same locks but without comparing
an epoch; the leader of the shard finds the change in its memory at once when it is this process, else by looking.

Can go wrong: a receipt of an earlier incarnation of our database. It counts for nothing: the statement compares.
"""

from collections.abc import Sequence
from uuid import UUID

from libs.kernel.ids import shard_of
from services.scheduler.app.book import Book
from services.scheduler.app.ends import close_ends, tell_quiet
from services.scheduler.domain.commits import Acknowledgement, GateState
from services.scheduler.domain.ticket import Key, TicketRow, TicketState
from services.scheduler.ports import Ports


async def acknowledge_raises(ports: Ports, book: Book, acks: Sequence[Acknowledgement]) -> None:
    """Notes receipts; tells the ends that nothing is awaited for any more."""
    merged = _merge(acks)
    if not merged:
        return
    now_ms = ports.clock.now_ms()
    rows: dict[Key, TicketRow] = {}
    gates: dict[UUID, GateState] = {}
    async with ports.db.facts({ack.run_id for ack in merged}) as tx:
        news = await tx.acknowledge(merged)
        if not news:
            return
        rows = await tx.rows(news)
        over = [row for row in rows.values() if row.state is TicketState.ENDING and row.raise_need == 0]
        await tx.send(await close_ends(ports, tx, over, now_ms), now_ms)
        if over:
            await tell_quiet(ports, tx, {row.run_id for row in over}, now_ms)
        ready = {row.run_id for row in rows.values() if row.state is TicketState.READY}
        gates = dict(await tx.gates(ready)) if ready else {}
    finished = {row.key for row in over}
    for row in rows.values():
        if book.epoch(shard_of(row.run_id)) is None or row.raise_need:
            continue
        if row.key in finished:
            book.awaited.discard(row.key)
        elif row.key in book.awaited and row.state is TicketState.READY:
            book.put_row(row, gates.get(row.run_id))


async def look_at_awaited(ports: Ports, book: Book) -> None:
    """Ends and tickets that wait for receipts which another process may have recorded."""
    await _look_at_unsure(ports, book)
    keys = list(book.awaited)
    if not keys:
        return
    for start in range(0, len(keys), 1000):
        rows = await ports.db.read_rows(keys[start : start + 1000])
        moved = {run_id for (run_id, _), row in rows.items() if row.state is not TicketState.ENDING}
        gates = await ports.db.read_gates(moved) if moved else {}
        for key in keys[start : start + 1000]:
            row = rows.get(key)
            if key not in book.awaited or (row is not None and row.state is TicketState.ENDING):
                continue
            book.awaited.discard(key)
            if row is None or book.epoch(row.shard) is None:
                continue
            if row.state is TicketState.READY or (row.state is TicketState.LEASED and key not in book.leases):
                book.put_row(row, gates.get(row.run_id))


async def _look_at_unsure(ports: Ports, book: Book) -> None:
    """Behind the locks of the commit that may still be under way: before it ends, a look would find nothing and forget."""
    keys = list(book.unsure)
    if not keys:
        return
    runs = {run_id for run_id, _ in keys}
    async with ports.db.facts(runs) as tx:
        rows, gates = await tx.rows(keys), await tx.gates(runs)
    for key in keys:
        book.unsure.discard(key)
        row = rows.get(key)
        if row is not None and not book.knows(key) and book.epoch(row.shard) is not None:
            book.put_row(row, gates.get(row.run_id))


def _merge(acks: Sequence[Acknowledgement]) -> list[Acknowledgement]:
    """One item per end: a statement changes a row once."""
    merged: dict[tuple[Key, object], Acknowledgement] = {}
    for ack in acks:
        held = merged.get((ack.key, ack.fence))
        if held is None:
            merged[(ack.key, ack.fence)] = ack
            continue
        unresolved = dict(held.unresolved)
        for slot, version in ack.unresolved.items():
            unresolved[slot] = max(version, unresolved.get(slot, 0))
        merged[(ack.key, ack.fence)] = Acknowledgement(
            ack.run_id, ack.step_key, ack.fence, held.points | ack.points, unresolved
        )
    return sorted(merged.values(), key=lambda ack: ack.key)
