"""What operators ask of an outbox: what is not delivered, what was refused, and to try or drop the latter."""

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from libs.kernel.values import value
from libs.outbox.store import OUTBOX_SQL
from libs.pg import Database


@value(frozen=True, slots=True)
class Stuck:
    """An event that did not arrive; `reason` is the receiver's, empty while it is still tried. Never its payload."""

    event_id: UUID
    receiver: str
    kind: str
    key: UUID
    created_ms: int
    reason: str


async def undelivered(db: Database, before_ms: int, limit: int = 100) -> list[Stuck]:
    """Events committed before `before_ms` that are still tried, oldest first."""
    return [_stuck(row) for row in await db.fetch(OUTBOX_SQL.list_undelivered, before_ms, limit)]


async def dead_letters(db: Database, limit: int = 100) -> list[Stuck]:
    """Events that a receiver refused, oldest first."""
    return [_stuck(row) for row in await db.fetch(OUTBOX_SQL.list_dead_letters, limit)]


async def requeue(db: Database, event_ids: Sequence[UUID]) -> list[UUID]:
    """Tries dead letters again, at the next sweep; returns those that were there."""
    return [row["event_id"] for row in await db.fetch(OUTBOX_SQL.requeue, list(event_ids))]


async def discard(db: Database, event_ids: Sequence[UUID]) -> list[UUID]:
    """Drops dead letters for good; returns those that were there."""
    return [row["event_id"] for row in await db.fetch(OUTBOX_SQL.discard, list(event_ids))]


def _stuck(row: asyncpg.Record) -> Stuck:
    return Stuck(row["event_id"], row["receiver"], row["kind"], row["key"], row["created_ms"], row["reason"])
