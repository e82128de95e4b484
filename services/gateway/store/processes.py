"""Rows of gateway processes. Method name = query name, where there is one."""

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from libs.pg import Database, Queries
from services.gateway.domain.effect import ReplayClass
from services.gateway.domain.process import ProcessIdentity
from services.gateway.ports import Left
from services.gateway.store import rows

PROCESSES = Queries.load(Path(__file__).parent / "sql" / "processes.sql")


class ProcessStore:
    """Implements `ports.Processes`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def register(self, me: ProcessIdentity, now_ms: int) -> None:
        """Says that this process may have tries."""
        await self._db.fetch(PROCESSES.register, me.process, me.host, me.boot, me.pid_space, me.pid, me.start, now_ms)

    async def others(self, me: UUID) -> list[ProcessIdentity]:
        """Other processes that have tries under way."""
        found = await self._db.fetch(PROCESSES.with_tries, me)
        return [
            ProcessIdentity(
                row["process"], row["host"], row["boot"], row["pid_space"], row["pid"], row["pid_start"], row["ended"]
            )
            for row in found
        ]

    async def tries_of(self, processes: Sequence[UUID], limit: int) -> list[Left]:
        """Their tries under way."""
        found = await self._db.fetch(PROCESSES.tries_of, list(processes), limit)
        return [Left(rows.attempt(row), ReplayClass(row["replay_class"]), row["tool"]) for row in found]

    async def end(self, processes: Sequence[UUID], now_ms: int) -> None:
        """They are over."""
        await self._db.fetch(PROCESSES.end_processes, list(processes), now_ms)

    async def forget(self, before_ms: int) -> None:
        """Drops old rows."""
        await self._db.fetch(PROCESSES.forget_processes, before_ms)
