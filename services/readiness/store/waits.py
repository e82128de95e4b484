"""Rows of waits ↔ domain, in a transaction of readiness. Method name = query name.

Can go wrong: a wait that ends twice. The run is locked, the update asks for an open row, and a trigger forbids the rest; a row
that is missing from the answer gives up the transaction.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

import asyncpg

from libs.kernel.refusal import Reason, Refusal
from libs.pg import Database, Queries, Tx
from services.readiness.domain.waits import Kept, Kind, Signal, Wait, WaitKey, WaitState
from services.readiness.ports import ACTIVE, Question, RunFacts

_Q = Queries.load(Path(__file__).parent / "sql" / "waits.sql")


def wait_of(row: asyncpg.Record) -> Wait:
    """A wait."""
    return Wait(
        step_key=row["step_key"],
        slot=row["slot"],
        kind=Kind(row["kind"]),
        state=WaitState(row["state"]),
        name=row["name"],
        correlation=row["correlation"],
        due_ms=row["due_ms"],
        payload=row["payload"],
        asked_ms=row["asked_ms"],
        result=row["result"],
        ended_ms=row["ended_ms"],
        ended_by=row["ended_by"],
        calls=row["calls"],
    )


class WaitRows:
    """Waits in one transaction."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def take_due(self, now_ms: int, limit: int) -> list[tuple[UUID, str]]:
        """Steps whose backoff or timer has passed, their runs locked."""
        return [(row["run_id"], row["step_key"]) for row in await self._tx.fetch(_Q.take_due, now_ms, limit)]

    async def lock_correlations(self, keys: Sequence[str]) -> None:
        """One transaction at a time for each of these."""
        await self._tx.fetch(_Q.lock_correlations, list(keys))

    async def add_waits(self, runs: Mapping[UUID, RunFacts], waits: Sequence[tuple[UUID, Wait]]) -> set[WaitKey]:
        """Those whose slot was free."""
        found = await self._tx.fetch(
            _Q.add_waits,
            [run_id for run_id, _ in waits],
            [wait.step_key for _, wait in waits],
            [wait.slot for _, wait in waits],
            [runs[run_id].tenant for run_id, _ in waits],
            [runs[run_id].project for run_id, _ in waits],
            [int(wait.kind) for _, wait in waits],
            [int(wait.state) for _, wait in waits],
            [wait.name for _, wait in waits],
            [wait.correlation for _, wait in waits],
            [wait.due_ms for _, wait in waits],
            [wait.payload for _, wait in waits],
            [wait.asked_ms for _, wait in waits],
            [wait.result for _, wait in waits],
            [wait.ended_ms for _, wait in waits],
            [wait.ended_by for _, wait in waits],
            [wait.calls for _, wait in waits],
            [runs[run_id].root_run_id for run_id, _ in waits],
        )
        return {(row["run_id"], row["step_key"], row["slot"]) for row in found}

    async def load_waits(self, keys: Sequence[WaitKey]) -> dict[WaitKey, Wait]:
        """Waits of these slots."""
        rows = await self._tx.fetch(
            _Q.load_waits, [run for run, _, _ in keys], [key for _, key, _ in keys], [slot for _, _, slot in keys]
        )
        return {(row["run_id"], row["step_key"], row["slot"]): wait_of(row) for row in rows}

    async def ended_waits(self, steps: Sequence[tuple[UUID, str]]) -> dict[tuple[UUID, str], list[Wait]]:
        """What these steps have waited for."""
        found: dict[tuple[UUID, str], list[Wait]] = {}
        for row in await self._tx.fetch(_Q.ended_waits, [run_id for run_id, _ in steps], [key for _, key in steps]):
            found.setdefault((row["run_id"], row["step_key"]), []).append(wait_of(row))
        return found

    async def waits_for_events(self, signals: Sequence[Signal], now_ms: int) -> list[list[tuple[UUID, Wait]]]:
        """Open waits that each of these fits, oldest first."""
        found: list[list[tuple[UUID, Wait]]] = [[] for _ in signals]
        rows = await self._tx.fetch(
            _Q.waits_for_events,
            list(range(len(signals))),
            [item.run_id for item in signals],
            [item.tenant for item in signals],
            [item.project for item in signals],
            [item.name for item in signals],
            len(signals),
            [item.correlation for item in signals],
            now_ms,
        )
        for row in rows:
            found[row["place"]].append((row["run_id"], wait_of(row)))
        return found

    async def signals_for_waits(
        self, runs: Mapping[UUID, RunFacts], waits: Sequence[tuple[UUID, Wait]]
    ) -> list[list[tuple[str, str, bytes, str]]]:
        """Events kept that each of these waits fits, oldest first: tenant, id, payload, who told."""
        found: list[list[tuple[str, str, bytes, str]]] = [[] for _ in waits]
        rows = await self._tx.fetch(
            _Q.signals_for_waits,
            list(range(len(waits))),
            [run_id for run_id, _ in waits],
            [runs[run_id].tenant for run_id, _ in waits],
            [runs[run_id].project for run_id, _ in waits],
            [wait.name for _, wait in waits],
            [wait.correlation for _, wait in waits],
            len(waits),
        )
        for row in rows:
            found[row["place"]].append((row["tenant"], row["event_id"], row["payload"], row["sent_by"]))
        return found

    async def add_signals(self, signals: Sequence[Signal], now_ms: int) -> set[tuple[str, str]]:
        """Those that were not told of before."""
        rows = await self._tx.fetch(
            _Q.add_signals,
            [item.tenant for item in signals],
            [item.event_id for item in signals],
            [item.project for item in signals],
            [item.run_id for item in signals],
            [item.name for item in signals],
            [item.correlation for item in signals],
            [item.payload for item in signals],
            [item.digest for item in signals],
            [now_ms for _ in signals],
            [item.by for item in signals],
        )
        return {(row["tenant"], row["event_id"]) for row in rows}

    async def read_signals(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Kept]:
        """Events as they stand."""
        rows = await self._tx.fetch(_Q.read_signals, [tenant for tenant, _ in keys], [event_id for _, event_id in keys])
        names = ("tenant", "event_id", "run_id", "digest", "used_step", "used_slot")
        return {(row["tenant"], row["event_id"]): Kept(*(row[name] for name in names)) for row in rows}

    async def use_signals(self, uses: Sequence[tuple[tuple[str, str], WaitKey]], now_ms: int) -> None:
        """Each for one wait."""
        used = await self._tx.fetch(
            _Q.use_signals,
            [tenant for (tenant, _), _ in uses],
            [event_id for (_, event_id), _ in uses],
            [run_id for _, (run_id, _, _) in uses],
            [step_key for _, (_, step_key, _) in uses],
            [slot for _, (_, _, slot) in uses],
            now_ms,
        )
        if len(used) != len(uses):
            raise Refusal(Reason.VERSION_CONFLICT, "events were used while they were judged", remedy="repeat the same call")

    async def inputs_of(self, run_ids: Sequence[UUID]) -> dict[UUID, list[Wait]]:
        """Questions of these runs."""
        found: dict[UUID, list[Wait]] = {}
        for row in await self._tx.fetch(_Q.inputs_of, list(run_ids)):
            found.setdefault(row["run_id"], []).append(wait_of(row))
        return found

    async def known_runs(self, run_ids: Sequence[UUID]) -> set[UUID]:
        """Which of these are known."""
        return {row["run_id"] for row in await self._tx.fetch(_Q.known_runs, list(run_ids))}

    async def save_waits(self, waits: Sequence[tuple[UUID, Wait]]) -> None:
        """Waits that ended."""
        saved = await self._tx.fetch(
            _Q.save_waits,
            [run_id for run_id, _ in waits],
            [wait.step_key for _, wait in waits],
            [wait.slot for _, wait in waits],
            [int(wait.state) for _, wait in waits],
            [wait.result for _, wait in waits],
            [wait.ended_ms for _, wait in waits],
            [wait.ended_by for _, wait in waits],
        )
        if len(saved) != len(waits):
            raise Refusal(Reason.VERSION_CONFLICT, "waits ended while their run was locked", remedy="apply the facts again")


class WaitReads:
    """Reads outside transactions."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def owner(self, run_id: UUID) -> tuple[str, str] | None:
        """(tenant, project) of a run that is known here."""
        rows = await self._db.fetch(_Q.owner, run_id)
        return (rows[0]["tenant"], rows[0]["project"]) if rows else None

    async def read_waits(self, run_id: UUID, slots: Sequence[tuple[str, str]]) -> list[Wait]:
        """What these steps wait for under these slots."""
        keys = [key for key, _ in slots], [slot for _, slot in slots]
        return [wait_of(row) for row in await self._db.fetch(_Q.load_waits, [run_id] * len(slots), *keys)]

    async def page_inputs(self, run_id: UUID, after: WaitKey, limit: int) -> list[Question]:
        """Questions of a run, and of all below it where it is a root, whatever their state."""
        return [_question(row) for row in await self._db.fetch(_Q.page_inputs, run_id, *after, limit)]

    async def open_below(self, root: UUID, now_ms: int, limit: int) -> list[Question]:
        """Open questions of all below a root."""
        return [_question(row) for row in await self._db.fetch(_Q.open_below, root, now_ms, limit)]

    async def page_open_inputs(self, tenant: str, project: str, after: WaitKey, limit: int, now_ms: int) -> list[Question]:
        """Open questions of a tenant, or of a project of it."""
        rows = await self._db.fetch(_Q.page_open_inputs, tenant, project, *after, limit, now_ms)
        return [_question(row) for row in rows]

    async def forget_signals(self, before_ms: int, limit: int) -> int:
        """Drops old events that named no run and that nobody used; how many."""
        return len(await self._db.fetch(_Q.forget_signals, before_ms, limit))


def _question(row: asyncpg.Record) -> Question:
    return Question(row["run_id"], wait_of(row), row["run_state"] == ACTIVE, row["root_run_id"])
