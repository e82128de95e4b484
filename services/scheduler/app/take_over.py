"""Becoming a shard's leader: confirmed in its row, then its tickets into memory.

Tickets come by pages, each read and put into memory before the next: a hundred thousand at once would keep a transaction open
and the process from everything else for seconds, heartbeats and its own session at etcd included. What is leased comes first,
before anything is led: a heartbeat must never meet a leader that does not know its lease. What waits comes after it, while the
first of it is granted already.

Live leases keep the tuple they were granted under and get a full TTL of grace, within one incarnation of the database; what an
earlier one granted ends as lost, and every fence that it issued is raised again, whatever is noted of it.

Can go wrong: etcd was restored to the past, or emptied, so that its epochs are smaller than the row's. The row refuses;
the shard has no leader until an operator orders that its generation be raised (a setting does it in development).
"""

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing

from libs.kernel.epochs import Mode
from libs.kernel.values import value
from libs.telemetry.catalogue import SHARDS_LED, TAKEOVERS
from libs.telemetry.logs import get_logger
from services.scheduler.app.book import Book
from services.scheduler.app.ends import write_ends
from services.scheduler.domain.commits import GateState
from services.scheduler.domain.ending import SUPERSEDED, Ending
from services.scheduler.domain.ticket import End, Key, TicketRow, TicketState
from services.scheduler.ports import NewestRevision, Ports

log = get_logger(__name__)
BATCH = 500
PAGE = 1_000
"""Tickets read and put into memory at a time: some tens of milliseconds."""
Page = list[tuple[TicketRow, GateState | None]]


@value(frozen=True, slots=True)
class Candidacy:
    """As whom this process leads, and what it may do where etcd was lost."""

    holder: str
    address: str
    reset_lost_etcd: bool


async def take_over(ports: Ports, book: Book, won: Mapping[int, int], candidacy: Candidacy, newest: NewestRevision) -> set[int]:
    """Shards whose leadership the database confirmed; memory of them is whole."""
    now_ms = ports.clock.now_ms()
    epochs, incarnation = await ports.db.confirm(won, candidacy.holder, candidacy.address, now_ms)
    behind = sorted(set(won) - set(epochs))
    if behind:
        epochs |= await _reset(ports, {shard: won[shard] for shard in behind}, candidacy, newest, now_ms)
    if not epochs:
        return set()
    _enter(book, incarnation, await ports.db.birth())
    book.drop(epochs)
    async with ports.db.commit(epochs, (), incarnation=incarnation) as tx:
        acting, waiting = await tx.open_keys(set(epochs) - tx.deposed)
    epochs = {shard: epoch for shard, epoch in epochs.items() if shard not in tx.deposed}
    try:
        raised = await _load(ports, book, acting, waiting, epochs)
    except BaseException:  # a shard of which a part is known is not led
        give_up(book, epochs)
        raise
    book.wake.set()
    TAKEOVERS.labels("confirmed").inc(len(epochs))
    SHARDS_LED.set(len(book.epochs))
    log.info("shards taken over", shards=len(epochs), tickets=len(acting) + len(waiting), raised_again=raised)
    return set(epochs)


async def _load(ports: Ports, book: Book, acting: Sequence[Key], waiting: Sequence[Key], epochs: Mapping[int, int]) -> int:
    """Leads these shards, with every ticket in memory; how many fences were raised again."""
    old: list[TicketRow] = []
    gates: dict[object, GateState | None] = {}
    async with aclosing(_pages(ports, acting)) as pages:
        async for page in pages:
            _put(book, page, old, gates)
    book.epochs |= epochs
    async with aclosing(_pages(ports, waiting)) as pages:
        async for page in pages:
            # Led already: what became of a step meanwhile is known here, and later than what was read.
            _put(book, [(row, gate) for row, gate in page if book.still(row.shard, epochs.get(row.shard, -1))], old, gates)
    for start in range(0, len(old), BATCH):
        await _heal(ports, book, old[start : start + BATCH], dict(epochs), gates)
    return len(old)


async def _pages(ports: Ports, keys: Sequence[Key]) -> AsyncGenerator[Page, None]:
    """Page by page; the database reads the next while this process does with one what it must."""
    starts = range(0, len(keys), PAGE)
    reading = asyncio.create_task(_page(ports, keys[:PAGE]))
    try:
        for start in starts:
            page = await reading
            reading = asyncio.create_task(_page(ports, keys[start + PAGE : start + 2 * PAGE]))
            yield page
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _page(ports: Ports, keys: Sequence[Key]) -> Page:
    """Rows and their gates, in order. Only this process may change the rows by now; raises of gates are noticed."""
    if not keys:
        return []
    rows, gates = await asyncio.gather(ports.db.read_rows(keys), ports.db.read_gates({run_id for run_id, _ in keys}))
    return [(rows[key], gates.get(key[0])) for key in keys if key in rows]


def _put(
    book: Book,
    page: Page,
    old: list[TicketRow],
    gates: dict[object, GateState | None],
) -> None:
    """Into memory, but for what must be raised again first."""
    for row, gate in page:
        if _is_old(row, book.incarnation):
            old.append(row)
            gates[row.run_id] = gate
        elif not book.knows(row.key):
            book.put_row(row, gate)
            if gate is not None and gate.mode is not Mode.OPEN:
                book.obey.add(row.run_id)
                book.raised.set()


def _enter(book: Book, incarnation: int, birth: int) -> None:
    """Another incarnation of the database: nothing that was remembered of the former one counts."""
    book.birth = birth
    if book.incarnation == incarnation:
        return
    book.drop(list(book.epochs))
    book.warm.clear()
    book.incarnation = incarnation


def _is_old(row: TicketRow, incarnation: int) -> bool:
    if row.state is TicketState.LEASED:
        return row.incarnation != incarnation
    return row.must_be_raised(incarnation)


async def _heal(
    ports: Ports, book: Book, old: list[TicketRow], epochs: dict[int, int], gates: Mapping[object, GateState | None]
) -> None:
    now_ms = ports.clock.now_ms()
    async with ports.db.commit(epochs, {row.run_id for row in old}, incarnation=book.incarnation) as tx:
        mine = [row for row in old if row.shard in epochs and row.shard not in tx.deposed]
        live = [row for row in mine if row.state is TicketState.LEASED]
        endings = [Ending(row.run_id, row.step_key, row.fence, End.LOST, SUPERSEDED) for row in live]
        rows = await write_ends(ports, tx, endings, epochs, now_ms)
        raised = await tx.raise_anew([row.key for row in mine if row.state is not TicketState.LEASED], epochs)
        again = await tx.rows(raised)
        await tx.send([n for r in again.values() for n in ports.notices.raises(r.key, r.fence, r.raise_need)], now_ms)
    for row in (*rows.values(), *again.values()):
        if book.still(row.shard, epochs[row.shard]):
            book.put_row(row, gates.get(row.run_id))


async def _reset(
    ports: Ports, won: Mapping[int, int], candidacy: Candidacy, newest: NewestRevision, now_ms: int
) -> dict[int, int]:
    """Rows ahead of our election: another leader was faster, or etcd was lost. Only the second is a matter for a reset."""
    TAKEOVERS.labels("refused").inc(len(won))
    by = candidacy.holder if candidacy.reset_lost_etcd else await ports.db.reset_ordered(now_ms)
    if not by:
        log.error(
            "shards refuse this leader: their rows are ahead of etcd, which was restored or emptied, or another leader won",
            shards=sorted(won),
            remedy="if etcd was lost: runway shard reset --etcd-lost --reason …",
        )
        return {}
    raised = await ports.db.raise_generation(won, await newest(), by, now_ms)
    if not raised:
        return {}
    log.warning("etcd was lost: generations of shards raised", shards=sorted(raised), by=by)
    TAKEOVERS.labels("reset").inc(len(raised))
    again = {shard: won[shard] for shard in raised}
    return (await ports.db.confirm(again, candidacy.holder, candidacy.address, now_ms))[0]


def give_up(book: Book, shards: Collection[int]) -> None:
    """Leadership ended: memory of these shards is void."""
    book.drop(shards)
    SHARDS_LED.set(len(book.epochs))
