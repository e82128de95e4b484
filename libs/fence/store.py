"""Authoritative for how fences are locked, judged, raised and read in a transaction of the point's database.

Can go wrong: judging without `lock` before it in the same transaction (the snapshot may then be older than a raise that was
already answered), or an order of locks other than scopes, then gates, each sorted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import asyncpg

from libs.fence.values import NEEDS, Admission, GateRow, GateValue, Judgement, ScopeValue, StepValue, Verdict
from libs.kernel.epochs import Gate, Mode, StepFence
from libs.pg import Queries, Tx

SCHEMA_SQL = (Path(__file__).parent / "sql" / "schema.sql").read_text()
"""What the migrations of a point execute."""

QUERIES = Queries.load(Path(__file__).parent / "sql" / "fences.sql")
"""The statements, for points that judge in statements of their own."""

V = TypeVar("V")


class FenceStore:
    """The fences of a point, inside one transaction."""

    def __init__(self, tx: Tx, *, keeps_steps: bool = True) -> None:
        self._tx = tx
        self._keeps_steps = keeps_steps

    async def lock(self, items: Sequence[Admission]) -> None:
        """Takes the locks of a batch: its scopes shared, then its gates."""
        scopes = sorted({scope for item in items for scope in item.scopes})
        await self._tx.fetch(QUERIES.lock_scopes, [kind for kind, _ in scopes], [scope_id for _, scope_id in scopes])
        await self._tx.fetch(QUERIES.lock_gates, sorted({item.asked.run_id for item in items}))

    async def judge(self, items: Sequence[Admission]) -> list[Judgement]:
        """One judgement per item, in order. Behind `lock`; first grants make their step fences here."""
        needs = [NEEDS[item.operation] for item in items]
        asked = [item.asked for item in items]
        rows = await self._tx.fetch(
            QUERIES.judge,
            [a.run_id for a in asked],
            [a.step_key for a in asked],
            [a.epoch for a in asked],
            [a.fence.authority_epoch for a in asked],
            [a.fence.lease_epoch for a in asked],
            [a.fence.attempt_id for a in asked],
            [item.tenant for item in items],
            [dict(item.scopes).get("project", "") for item in items],
            [item.tool for item in items],
            [item.provider for item in items],
            [int(need.scope_most) for need in needs],
            [int(need.run_most) for need in needs],
            [need.epoch_equal for need in needs],
            [need.step_equal and self._keeps_steps for need in needs],
            self._tx.incarnation,
        )
        return [
            Judgement(
                Verdict(row["verdict"]),
                None if row["gate_epoch"] is None else Gate(row["gate_epoch"], Mode(row["mode"])),
                row["outcome"] or "",
                tuple(row["capabilities"] or ()),
                row["scope"] or "",
            )
            for row in rows
        ]

    async def raise_gates(self, gates: Iterable[GateValue]) -> None:
        """Merges by maximum. Never stamps: a raise says what is newest, not that nothing was missed."""
        await self._merge_gates(gates, stamp=0)

    async def merge_cold(
        self, gates: Sequence[GateValue], steps: Sequence[StepValue], scopes: Sequence[ScopeValue], *, started_in: int
    ) -> None:
        """Merges what the authorities answered and stamps the gates with the incarnation in which that read *began*."""
        await self.merge_scopes(scopes)
        await self._merge_gates(gates, stamp=started_in)
        if steps:
            await self.raise_steps(steps)

    async def merge_scopes(self, scopes: Sequence[ScopeValue]) -> None:
        """Merges what launch answered, taking locks only where it will write. Before any gate is locked."""
        behind = await self._tx.fetch(QUERIES.scopes_behind, *_scope_columns(scopes)) if scopes else ()
        if behind:
            await self.raise_scopes([scopes[row["ord"] - 1] for row in behind])

    async def _merge_gates(self, gates: Iterable[GateValue], stamp: int) -> None:
        merged = _by_run(gates)
        await self._tx.fetch(
            QUERIES.merge_gates,
            [g.run_id for g in merged],
            [g.epoch for g in merged],
            [int(g.mode) for g in merged],
            [g.outcome for g in merged],
            ["\n".join(g.capabilities) for g in merged],
            [g.granted_micros for g in merged],
            [g.envelope_sequence for g in merged],
            [g.tenant for g in merged],
            [g.project for g in merged],
            stamp,
        )

    async def raise_steps(self, steps: Sequence[StepValue]) -> None:
        """Merges by maximum, holding the gates of the runs (made where they are unknown)."""
        greatest: dict[tuple[UUID, str], StepFence] = {}
        for step in steps:
            name = (step.run_id, step.step_key)
            greatest[name] = max(step.fence, greatest.get(name, step.fence))
        await self.lock_gates_to_raise(run_id for run_id, _ in greatest)
        names = sorted(greatest)
        await self._tx.fetch(
            QUERIES.raise_steps,
            [run_id for run_id, _ in names],
            [step_key for _, step_key in names],
            [greatest[name].authority_epoch for name in names],
            [greatest[name].lease_epoch for name in names],
            [greatest[name].attempt_id for name in names],
        )

    async def raise_scopes(self, scopes: Sequence[ScopeValue]) -> None:
        """Merges by maximum, waiting for the admissions under these scopes. Before any gate is locked."""
        greatest: dict[tuple[str, str], ScopeValue] = {}
        for scope in scopes:
            held = greatest.get((scope.kind, scope.scope_id), scope)
            greatest[(scope.kind, scope.scope_id)] = max(scope, held, key=lambda s: (s.epoch, s.mode))
        columns = _scope_columns([greatest[name] for name in sorted(greatest)])
        await self._tx.fetch(QUERIES.lock_scopes_to_raise, columns[0], columns[1])
        await self._tx.fetch(QUERIES.raise_scopes, *columns)

    async def lock_gates_to_raise(self, runs: Iterable[UUID]) -> None:
        """The one lock of each run, made where the run is unknown here."""
        await self._tx.fetch(QUERIES.lock_gates_to_raise, sorted(set(runs)))

    async def lock_free_gates(self, runs: Iterable[UUID]) -> set[UUID]:
        """The one lock of those runs that nobody holds now."""
        rows = await self._tx.fetch(QUERIES.lock_free_gates, sorted(set(runs)))
        return {row["run_id"] for row in rows}

    async def limit_statements(self, timeout_ms: int) -> None:
        """Bounds every later statement of this transaction."""
        await self._tx.fetch(QUERIES.limit_statements, str(timeout_ms))

    async def gates(self, runs: Iterable[UUID]) -> dict[UUID, GateRow]:
        """What the point holds; runs it does not know are left out."""
        return _gate_rows(await self._tx.fetch(QUERIES.read_gates, sorted(set(runs))))

    async def open_gates(self, after: UUID, limit: int) -> dict[UUID, GateRow]:
        """A page, in order of ids, of what is not closed here."""
        return _gate_rows(await self._tx.fetch(QUERIES.open_gates, after, limit))

    async def steps(self, names: Iterable[tuple[UUID, str]]) -> dict[tuple[UUID, str], StepFence]:
        """What the point holds; steps it does not know are left out."""
        asked = sorted(set(names))
        rows = await self._tx.fetch(QUERIES.read_steps, [run_id for run_id, _ in asked], [step_key for _, step_key in asked])
        return {(r["run_id"], r["step_key"]): StepFence(r["authority_epoch"], r["lease_epoch"], r["attempt_id"]) for r in rows}

    async def scopes(self) -> list[ScopeValue]:
        """Every scope that the point holds a fence of."""
        rows = await self._tx.fetch(QUERIES.read_scopes)
        return [ScopeValue(row["kind"], row["scope_id"], row["epoch"], Mode(row["mode"])) for row in rows]

    async def mark_quiesced(self, gates: Iterable[GateValue]) -> set[UUID]:
        """Claims the report that these runs are quiet at these epochs; a run comes back once per epoch. Behind their locks."""
        asked = _by_run(gates)
        rows = await self._tx.fetch(QUERIES.mark_quiesced, [g.run_id for g in asked], [g.epoch for g in asked])
        return {row["run_id"] for row in rows}


def _gate_rows(rows: Sequence[asyncpg.Record]) -> dict[UUID, GateRow]:
    return {
        row["run_id"]: GateRow(
            GateValue(
                row["run_id"],
                row["epoch"],
                Mode(row["mode"]),
                row["outcome"],
                tuple(row["capabilities"]),
                row["granted"],
                row["envelope_sequence"],
                row["tenant"],
                row["project"],
            ),
            row["stamp"],
            row["held"],
            row["used"],
            row["quiesced_epoch"],
        )
        for row in rows
    }


def _scope_columns(scopes: Sequence[ScopeValue]) -> tuple[list[str], list[str], list[int], list[int]]:
    return [s.kind for s in scopes], [s.scope_id for s in scopes], [s.epoch for s in scopes], [int(s.mode) for s in scopes]


def _by_run(gates: Iterable[GateValue]) -> list[GateValue]:
    """One value per run, by maximum, as the statement would merge them one after the other; sorted by run."""
    merged: dict[UUID, GateValue] = {}
    for gate in gates:
        held = merged.get(gate.run_id)
        if held is None:
            merged[gate.run_id] = gate
            continue
        greater = gate if gate.gate > held.gate else held
        envelope = gate if gate.envelope_sequence > held.envelope_sequence else held
        merged[gate.run_id] = replace(
            greater,
            granted_micros=envelope.granted_micros,
            envelope_sequence=envelope.envelope_sequence,
            tenant=greater.tenant or held.tenant or gate.tenant,
            project=greater.project or held.project or gate.project,
        )
    return [merged[run_id] for run_id in sorted(merged)]
