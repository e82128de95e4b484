"""Rows that explanations and recordings are made of. Authoritative for nothing: reads, on a pool of its own.

Can go wrong: a recording that is asked for while runs are forgotten. What is gone is missing, and nothing else.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from libs.kernel.epochs import Mode
from libs.pg import Database, Queries
from services.scheduler.domain.explain import StoppedScope, WorkerRow
from services.scheduler.domain.ticket import TicketRow
from services.scheduler.ports import GateState
from services.scheduler.store import rows

_FOLDER = Path(__file__).parent / "sql"
_Q = Queries.load(_FOLDER / "explain.sql")
_T = Queries.load(_FOLDER / "tickets.sql")


class ExplainStore:
    """Implements `app.explain_tickets.ExplainReads`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def tickets(self, run_id: UUID, step_keys: Collection[str], limit: int) -> list[TicketRow]:
        """Of these steps, or every open one of the run; by step."""
        if step_keys:
            found = await self._db.fetch(_T.read_tickets, [run_id] * len(step_keys), sorted(step_keys))
        else:
            found = await self._db.fetch(_T.read_open_of_runs, [run_id])
        return sorted((rows.ticket(row) for row in found), key=lambda row: row.step_key)[:limit]

    async def gate(self, run_id: UUID) -> GateState | None:
        """The run's gate."""
        found = await self._db.fetch(_T.read_gates, [run_id])
        return rows.gate(found[0]) if found else None

    async def stopped(self, tenant: str, project: str) -> list[StoppedScope]:
        """Scopes of a run that are not open, the tenant first."""
        found = await self._db.fetch(_Q.read_stopped, tenant, project)
        return [StoppedScope(row["kind"], row["scope_id"], Mode(row["mode"])) for row in found]

    async def workers(self, since_ms: int, handlers: Collection[str]) -> list[WorkerRow]:
        """Workers seen since then that carry one of these."""
        return [_worker(row) for row in await self._db.fetch(_Q.read_carriers, since_ms, sorted(handlers))]

    async def recorded(
        self, first: UUID, before: UUID, after: tuple[UUID, str, int], tenant: str, limit: int
    ) -> Sequence[Mapping[str, Any]]:
        """Tickets of runs from an id to before another, after a place."""
        return [dict(row) for row in await self._db.fetch(_Q.export_tickets, first, before, *after, tenant, limit)]


def _worker(row: asyncpg.Record) -> WorkerRow:
    names = frozenset(row["handlers"].split("\n")) - {""}
    labels = frozenset(row["capabilities"].split("\n")) - {""}
    return WorkerRow(row["tenant"], row["worker_id"], row["project"], names, labels, row["fleet"])
