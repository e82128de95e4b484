"""Rows that explanations and recordings are made of. Authoritative for nothing: reads, on a pool of its own.

Can go wrong: a recording that is asked for while runs are forgotten. What is gone is missing, and nothing else.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from uuid import UUID

import asyncpg

from libs.kernel.epochs import Mode
from libs.pg import Database, Queries
from services.scheduler.domain.commits import GateState
from services.scheduler.domain.explain import StoppedScope, WorkerRow
from services.scheduler.domain.resources import parse
from services.scheduler.domain.ticket import Key, Recorded, TicketRow, TicketState
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
        self, first: UUID, before: UUID, after: Key, tenant: str, limit: int
    ) -> tuple[Sequence[Recorded], Key | None]:
        """Tickets of so many steps of runs from an id to before another, after a step; the last step, where there are more."""
        found = await self._db.fetch(_Q.export_tickets, first, before, *after, tenant, limit + 1)
        page, keys = found[:limit], [(row["run_id"], row["step_key"]) for row in found[:limit]]
        ended = await self._db.fetch(_Q.export_attempts, [k[0] for k in keys], [k[1] for k in keys]) if keys else []
        attempts: dict[Key, list[asyncpg.Record]] = {}
        for row in ended:
            attempts.setdefault((row["run_id"], row["step_key"]), []).append(row)
        tickets = [one for key, row in zip(keys, page, strict=True) for one in _recorded(row, attempts.get(key, []))]
        return tickets, keys[-1] if len(found) > limit else None


def _worker(row: asyncpg.Record) -> WorkerRow:
    names = frozenset(row["handlers"].split("\n")) - {""}
    labels = frozenset(row["capabilities"].split("\n")) - {""}
    told = names, labels, row["fleet"], parse(row["resources"]), bytes.fromhex(row["process"])
    return WorkerRow(row["tenant"], row["worker_id"], row["project"], *told)


def _recorded(row: asyncpg.Record, attempts: Sequence[asyncpg.Record]) -> list[Recorded]:
    """A step's attempts, and its newest ticket where that is not among them. Of earlier ones nobody keeps when they were ready,
    nor whose worker had them."""
    state, newest = TicketState(row["state"]), row["enqueued_ms"]
    found = []
    for attempt in attempts:
        last = state is TicketState.DONE and attempt["lease_epoch"] == row["ended_lease"]
        times = newest if last else 0, attempt["leased_ms"], attempt["ended_ms"]
        fleet = row["fleet"] if last else ""
        found.append(_one(row, attempt["attempt_number"], times, attempt["worker_id"], fleet))
    if state is TicketState.READY:
        found.append(_one(row, row["attempt_number"], (newest, 0, 0), "", ""))
    elif state in (TicketState.LEASED, TicketState.ENDING):
        times = newest, row["leased_ms"], row["ended_ms"] if state is TicketState.ENDING else 0
        found.append(_one(row, row["attempt_number"], times, row["worker_id"], row["fleet"]))
    return found


def _one(row: asyncpg.Record, number: int, times_ms: tuple[int, int, int], worker_id: str, fleet: str) -> Recorded:
    return Recorded(
        run_id=row["run_id"],
        step_key=row["step_key"],
        attempt_number=number,
        tenant=row["tenant"],
        project=row["project"],
        run_class=row["run_class"],
        priority=row["priority"],
        deadline_ms=row["deadline_ms"],
        handler=row["handler"],
        requires=tuple(row["requires"].split("\n")) if row["requires"] else (),
        ready_ms=times_ms[0],
        leased_ms=times_ms[1],
        ended_ms=times_ms[2],
        worker_id=worker_id,
        fleet=fleet,
        resources=parse(row["resources"]),
        launched_by=row["launched_by"],
    )
