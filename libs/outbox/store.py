"""Authoritative for the outbox's rows: each function is one statement of `sql/outbox.sql`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from uuid import UUID

import asyncpg

from libs.outbox.model import RAISE_LANE, Outgoing
from libs.outbox.settings import RelaySettings
from libs.pg import Database, Queries, Tx

OUTBOX_SQL = Queries.load(Path(__file__).parent / "sql" / "outbox.sql")


async def append(tx: Tx, events: Sequence[Outgoing], now_ms: int) -> None:
    """Stores events at the end of the caller's transaction. After its commit: `Relay.offer`."""
    if not events:
        return
    tx.later(
        OUTBOX_SQL.append,
        [e.event_id for e in events],
        [e.receiver for e in events],
        [e.kind for e in events],
        [e.key for e in events],
        [e.payload for e in events],
        now_ms,
    )


async def claim(
    db: Database, settings: RelaySettings, now_ms: int, mark_ms: int, full_lanes: Iterable[tuple[str, str]], *, everything: bool
) -> list[Outgoing]:
    """One page of rows that nobody has; with `everything`, also those that another relay may have."""
    beyond = mark_ms + settings.claim_ms
    full = list(full_lanes)
    receivers, raises = [receiver for receiver, _ in full], [lane == RAISE_LANE for _, lane in full]
    handed_over_ms = now_ms - settings.hand_over_ms
    due_beyond = beyond + settings.aside_ms
    arguments = (now_ms, handed_over_ms, mark_ms, beyond, settings.page_rows, receivers, raises, everything, due_beyond)
    return [outgoing(row) for row in await db.fetch(OUTBOX_SQL.claim, *arguments)]


async def acknowledge(db: Database, settings: RelaySettings, delivered: Sequence[tuple[UUID, int]], now_ms: int) -> None:
    """Deletes or keeps what was delivered, each with the incarnation that acknowledged it."""
    ids = [event_id for event_id, _ in delivered]
    if settings.keep_ms:
        await db.fetch(OUTBOX_SQL.keep, ids, [incarnation for _, incarnation in delivered], now_ms)
    else:
        await db.fetch(OUTBOX_SQL.forget, ids)


async def put_aside(db: Database, events: Iterable[Outgoing], until_ms: int) -> None:
    """Leaves rows alone until then."""
    await db.fetch(OUTBOX_SQL.put_aside, [event.event_id for event in events], until_ms)


async def take_back(db: Database, event_ids: Sequence[UUID], until_ms: int) -> list[Outgoing]:
    """Those of these rows that are still there and free, taken until then."""
    return [outgoing(row) for row in await db.fetch(OUTBOX_SQL.take_back, list(event_ids), until_ms)]


async def bury(db: Database, refused: Sequence[tuple[Outgoing, str]], now_ms: int) -> None:
    """Moves refused events to the dead letters."""
    await db.fetch(OUTBOX_SQL.bury, [event.event_id for event, _ in refused], [reason for _, reason in refused], now_ms)


def outgoing(row: asyncpg.Record) -> Outgoing:
    """The event of a row."""
    return Outgoing(row["event_id"], row["receiver"], row["kind"], row["key"], row["payload"])
