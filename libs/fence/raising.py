"""Authoritative for the leaf RPCs of a point: merging raised fences, and saying what is unresolved afterwards.

What nobody holds is raised in one transaction, committed; each remaining run then has a transaction of its own, bounded in
time, so one busy run never holds back the others and two raises never wait for each other in a circle. Within a
transaction the fence is written *first*, and a second statement then lists what is unresolved: an intent that committed
before the raise is in that list, one that did not will be refused.

Can go wrong: calling out or waiting for a handler from here (the pool is small on purpose; nothing here awaits anything but
its own database); leaving out runs that the point does not know (a zombie's first intent may still be on its way).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar
from uuid import UUID

from runway.internal.fence.v1 import fence_pb2

from libs.fence.store import FenceStore
from libs.fence.values import GateRow, GateValue, ScopeValue, StepValue
from libs.fence.wire import gate_from, gate_to, scope_from, scope_to, step_from, step_to
from libs.kernel.epochs import NO_FENCE, Mode
from libs.kernel.ids import uuid_from_bytes
from libs.kernel.refusal import Reason, Refusal, invalid_field
from libs.kernel.values import value
from libs.pg import Database, Tx


@value(frozen=True, slots=True)
class Unresolved:
    """An effect that is not resolved yet."""

    step_key: str
    slot: str
    state: str
    tool: str
    version: int = 0


@value(frozen=True, slots=True)
class Standing:
    """What a point says of a run behind its raised gate."""

    unresolved: tuple[Unresolved, ...] = ()
    live_leases: int = 0
    quiesced: bool = False
    used_micros: int = 0
    used_tokens: int = 0
    usage_sequence: int = 0


class Point(Protocol):
    """What a point knows beyond fences. Called in the transaction of the raise, after the write; must not call out."""

    async def standing(self, tx: Tx, gates: Sequence[GateRow]) -> Mapping[UUID, Standing]:
        """What is unresolved, live or held of each run now; may append to the outbox in the same transaction."""
        ...


class NothingPending:
    """A point without effects, leases or holds: quiet as soon as the gate is not open."""

    async def standing(self, tx: Tx, gates: Sequence[GateRow]) -> Mapping[UUID, Standing]:
        """Quiet, every one."""
        return {row.value.run_id: Standing(quiesced=row.value.mode is not Mode.OPEN) for row in gates}


@dataclass(slots=True)
class _Raise:
    gates: list[GateValue] = field(default_factory=list)
    steps: list[StepValue] = field(default_factory=list)


@value(frozen=True, slots=True)
class _Done:
    row: GateRow
    standing: Standing
    incarnation: int


class _Late:
    """Not committed, as far as we know."""


_LATE = _Late()
T = TypeVar("T")


class FencePoint:
    """RaiseFences and GetFences of one point; satisfies `FencesHandler` of the runtime. `db` is the leaf pool alone."""

    def __init__(
        self, db: Database, point: Point, *, keeps_steps: bool = True, statement_timeout_ms: int = 500, at_once: int = 2
    ) -> None:
        self._db = db
        self._point = point
        self._keeps_steps = keeps_steps
        self._timeout_ms = statement_timeout_ms
        self._slots = asyncio.Semaphore(at_once)

    async def raise_fences(self, request: fence_pb2.RaiseFencesRequest) -> fence_pb2.RaiseFencesResponse:
        """Merges by maximum; an answer per item, in order. What was not committed in time says so and is to be repeated."""
        gates = [gate_from(gate) for gate in request.gates]
        steps = [step_from(step) for step in request.steps]
        if steps and not self._keeps_steps:
            raise invalid_field(
                "steps", "cannot be raised here: this service issues them", "send them to the gateway and checkpoint"
            )
        scopes_raised = await self._raise_scopes([scope_from(scope) for scope in request.scopes])
        runs: dict[UUID, _Raise] = {}
        for gate in gates:
            runs.setdefault(gate.run_id, _Raise()).gates.append(gate)
        for step in steps:
            runs.setdefault(step.run_id, _Raise()).steps.append(step)
        done = await self._raise_runs(runs)
        lowest = min((d.incarnation for d in done.values()), default=self._db.incarnation)
        return fence_pb2.RaiseFencesResponse(
            gates=[_answer(done.get(gate.run_id), None) for gate in gates],
            steps=[_answer(done.get(step.run_id), step.step_key) for step in steps],
            scopes=[fence_pb2.RaiseAnswer(committed=ok) for ok in scopes_raised],
            incarnation=min(lowest, self._db.incarnation),
        )

    async def get_fences(self, request: fence_pb2.GetFencesRequest) -> fence_pb2.GetFencesResponse:
        """What this point holds, for an authority that was promoted. A run unknown here is (0, open): below everything."""
        runs = [uuid_from_bytes(raw, "run_ids") for raw in request.run_ids]
        names = [(uuid_from_bytes(name.run_id, "steps.run_id"), name.step_key) for name in request.steps]
        async with self._db.tx() as tx:
            store = FenceStore(tx)
            gates, steps, scopes = await store.gates(runs), await store.steps(names), await store.scopes()
            page = request.open_runs
            opened = await store.open_gates(uuid_from_bytes(page.after, "open_runs.after"), page.limit) if page.limit else {}
            incarnation = tx.incarnation
        held = [gates[run_id].value if run_id in gates else GateValue(run_id, 0, Mode.OPEN) for run_id in runs]
        return fence_pb2.GetFencesResponse(
            gates=[gate_to(gate) for gate in (*held, *(row.value for row in opened.values()))],
            steps=[step_to(StepValue(run_id, step_key, steps.get((run_id, step_key), NO_FENCE))) for run_id, step_key in names],
            scopes=[scope_to(scope) for scope in scopes],
            incarnation=incarnation,
        )

    async def _raise_scopes(self, scopes: Sequence[ScopeValue]) -> list[bool]:
        return list(await asyncio.gather(*[self._raise_scope(scope) for scope in scopes]))

    async def _raise_scope(self, scope: ScopeValue) -> bool:
        async def write(tx: Tx) -> None:
            await FenceStore(tx).limit_statements(self._timeout_ms)
            await FenceStore(tx).raise_scopes([scope])

        return await self._in_time(write) is not _LATE

    async def _raise_runs(self, runs: Mapping[UUID, _Raise]) -> dict[UUID, _Done]:
        done: dict[UUID, _Done] = {}
        if len(runs) > 1:
            done |= await self._raise_free(runs)
        rest = [run_id for run_id in sorted(runs) if run_id not in done]
        for one in await asyncio.gather(*[self._raise_one(run_id, runs[run_id]) for run_id in rest]):
            done |= one
        return done

    async def _raise_free(self, runs: Mapping[UUID, _Raise]) -> dict[UUID, _Done]:
        """The runs that nobody holds, together and without waiting."""

        async def write(tx: Tx) -> dict[UUID, _Done]:
            await FenceStore(tx).limit_statements(self._timeout_ms)
            free = await FenceStore(tx).lock_free_gates(runs)
            return await self._write(tx, {run_id: runs[run_id] for run_id in free}) if free else {}

        done = await self._in_time(write)
        return {} if isinstance(done, _Late) else done

    async def _raise_one(self, run_id: UUID, ask: _Raise) -> dict[UUID, _Done]:
        """One run, waiting its turn for at most the timeout."""

        async def write(tx: Tx) -> dict[UUID, _Done]:
            await FenceStore(tx).limit_statements(self._timeout_ms)
            return await self._write(tx, {run_id: ask})

        done = await self._in_time(write)
        return {} if isinstance(done, _Late) else done

    async def _in_time(self, write: Callable[[Tx], Awaitable[T]]) -> "T | _Late":
        """Out of time or without a database: not committed, as far as we know. Anything else is a fault."""
        async with self._slots:
            try:
                return await self._db.run(write)
            except Refusal as no:
                if no.reason is not Reason.AUTHORITY_UNREACHABLE:
                    raise
                return _LATE

    async def _write(self, tx: Tx, runs: Mapping[UUID, _Raise]) -> dict[UUID, _Done]:
        store = FenceStore(tx)
        await store.lock_gates_to_raise(runs)
        if gates := [gate for ask in runs.values() for gate in ask.gates]:
            await store.raise_gates(gates)
        if steps := [step for ask in runs.values() for step in ask.steps]:
            await store.raise_steps(steps)
        rows = await store.gates(runs)
        standings = await self._point.standing(tx, [rows[run_id] for run_id in sorted(rows)])
        return {run_id: _Done(row, standings.get(run_id, Standing()), tx.incarnation) for run_id, row in rows.items()}


def _answer(done: _Done | None, step_key: str | None) -> fence_pb2.RaiseAnswer:
    if done is None:
        return fence_pb2.RaiseAnswer(committed=False)
    return fence_pb2.RaiseAnswer(
        committed=True,
        gate=gate_to(done.row.value),
        quiesced=done.standing.quiesced,
        unresolved=_unresolved(done.standing.unresolved, step_key),
        live_leases=done.standing.live_leases,
        used_micros=done.standing.used_micros,
        used_tokens=done.standing.used_tokens,
        usage_sequence=done.standing.usage_sequence,
    )


def _unresolved(effects: Iterable[Unresolved], step_key: str | None) -> list[fence_pb2.UnresolvedEffect]:
    return [
        fence_pb2.UnresolvedEffect(step_key=e.step_key, slot=e.slot, state=e.state, tool=e.tool, version=e.version)
        for e in effects
        if step_key is None or e.step_key == step_key
    ]
