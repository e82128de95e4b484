"""Authoritative for whether launch may answer: only in the incarnation of its database in which it has adopted its runs.

Every transaction and read of runs passes `check`. Can go wrong: an answer from a promoted database that has not asked its
points: it would take back what launch told before. It is refused as UNAVAILABLE until `app/adopt_runs.py` is through.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

from libs.kernel.epochs import make_epoch
from libs.kernel.ids import IdSource
from libs.kernel.refusal import unreachable
from libs.outbox import Relay
from libs.pg import Database, Queries
from services.launch.store.transaction import LaunchTx

_Q = Queries.load(Path(__file__).parent / "sql" / "promotion.sql")


class LaunchPromotion:
    """Implements `ports.Promotion`. `databases`: every pool of launch; the first is written through."""

    def __init__(self, databases: Sequence[Database], relay: Relay, ids: IdSource) -> None:
        self._databases = databases
        self._relay = relay
        self._ids = ids
        self._adopted = 0
        self._changed = asyncio.Event()
        for database in databases:
            database.on_incarnation_changed(lambda _: self._changed.set())

    @property
    def incarnation(self) -> int:
        """The newest that any pool has met."""
        return max(database.incarnation for database in self._databases)

    @property
    def settled(self) -> bool:
        """Whether launch may answer in the newest incarnation."""
        return self._adopted == self.incarnation

    async def changed(self) -> None:
        """Returns once a pool meets another incarnation than was adopted."""
        while self.settled:
            self._changed.clear()
            if self.settled:
                await self._changed.wait()

    def check(self, incarnation: int) -> None:
        """Refuses what another incarnation than the adopted one would answer."""
        if incarnation != self._adopted:
            raise unreachable("launch, whose database was promoted and whose points are being read,")

    async def stored(self) -> int | None:
        """The incarnation adopted last, by whichever replica; None in a database that never was."""
        rows = await self._databases[0].fetch(_Q.adopted)
        return rows[0]["incarnation"] if rows else None

    async def unadopted(self, incarnation: int, limit: int) -> list[UUID]:
        """Open runs of earlier incarnations."""
        return [row["run_id"] for row in await self._databases[0].fetch(_Q.unadopted, make_epoch(incarnation, 0), limit)]

    async def known(self, run_ids: Sequence[UUID]) -> set[UUID]:
        """Those that have a row."""
        return {row["run_id"] for row in await self._databases[0].fetch(_Q.known, list(run_ids))}

    @asynccontextmanager
    async def tx(self, incarnation: int) -> AsyncIterator[LaunchTx]:
        """A transaction in this incarnation; refused where the database is in another by now."""
        async with self._databases[0].tx() as tx:
            if tx.incarnation != incarnation:
                raise unreachable("launch's database in one incarnation")
            mine = LaunchTx(tx, self._ids)
            yield mine
        if mine.sent:
            self._relay.offer(mine.sent)

    async def done(self, incarnation: int) -> None:
        """Answers from now on."""
        await self._databases[0].fetch(_Q.note_adopted, incarnation)
        self._adopted = incarnation
