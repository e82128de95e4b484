"""Spawns that wait for money: rows ↔ domain, in transactions and for reads. Method name = query name.

Can go wrong: a spawn that waits behind one that is gone. Whoever drops the first of a run wakes the next in the same
transaction.
"""

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import asyncpg

from libs.pg import Database, Queries, Tx
from services.launch.domain.spawning import HeldSpawn, SpawnAsk, SpawnKey

_Q = Queries.load(Path(__file__).parent / "sql" / "held_spawns.sql")
FIRST_MS, LAST_MS = 250, 5_000
"""How soon a spawn that waits is judged again, and how seldom at last: what is free at the gateway may grow unheard."""


def spawn_columns(keys: Sequence[SpawnKey]) -> tuple[list[UUID], list[str], list[str]]:
    """Names of commands as the arrays that `unnest` takes."""
    return [run_id for run_id, _, _ in keys], [step for _, step, _ in keys], [slot for _, _, slot in keys]


def _held(row: asyncpg.Record) -> HeldSpawn:
    key = (row["run_id"], row["step_key"], row["slot"])
    return HeldSpawn(key, row["children"], row["micros"], row["why"], row["payload"], row["held_ms"])


class HeldStatements:
    """What of a transaction is about them."""

    _tx: Tx

    async def held_known(self, keys: Sequence[SpawnKey]) -> set[SpawnKey]:
        """Which of these commands wait."""
        return {(r["run_id"], r["step_key"], r["slot"]) for r in await self._tx.fetch(_Q.held_known, *spawn_columns(keys))}

    async def held_counts(self, run_ids: Sequence[UUID]) -> dict[UUID, int]:
        """How many wait of each run."""
        return {row["run_id"]: row["held"] for row in await self._tx.fetch(_Q.held_counts, list(run_ids))}

    async def put_held(self, held: Sequence[tuple[SpawnAsk, str]], now_ms: int) -> None:
        """They wait from now on, with why."""
        asks = [ask for ask, _ in held]
        if asks:
            await self._tx.fetch(
                _Q.put_held,
                *spawn_columns([ask.key for ask in asks]),
                [len(ask.children) for ask in asks],
                [ask.micros for ask in asks],
                [why for _, why in held],
                [ask.payload for ask in asks],
                now_ms,
                now_ms + FIRST_MS,
            )

    async def put_off(self, held: Sequence[tuple[SpawnAsk, str]], now_ms: int) -> None:
        """They still cannot be."""
        if held:
            keys = spawn_columns([ask.key for ask, _ in held])
            await self._tx.fetch(_Q.put_off, *keys, [why for _, why in held], FIRST_MS, LAST_MS, now_ms)

    async def drop_held(self, keys: Sequence[SpawnKey], now_ms: int) -> None:
        """They have been judged; the next of each run is."""
        if keys:
            await self._tx.fetch(_Q.drop_held, *spawn_columns(keys))
            await self.wake_held(sorted({run_id for run_id, _, _ in keys}), now_ms)

    async def wake_held(self, run_ids: Sequence[UUID], now_ms: int) -> None:
        """Something of these runs may be free again."""
        if run_ids:
            await self._tx.fetch(_Q.wake_held, list(run_ids), now_ms)


class HeldReads:
    """Implements `ports.HeldReads`: one statement each."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def known(self, keys: Sequence[SpawnKey]) -> set[SpawnKey]:
        """Which of these commands wait."""
        return {(r["run_id"], r["step_key"], r["slot"]) for r in await self._db.fetch(_Q.held_known, *spawn_columns(keys))}

    async def counts(self, run_ids: Sequence[UUID]) -> dict[UUID, int]:
        """How many wait of each run."""
        return {row["run_id"]: row["held"] for row in await self._db.fetch(_Q.held_counts, list(run_ids))}

    async def of_run(self, run_id: UUID, limit: int) -> list[HeldSpawn]:
        """What waits of a run, in order."""
        return [_held(row) for row in await self._db.fetch(_Q.held_of, run_id, limit)]

    async def due(self, now_ms: int, limit: int) -> list[HeldSpawn]:
        """Those to be judged again."""
        return [_held(row) for row in await self._db.fetch(_Q.due_spawns, now_ms, limit)]
