"""Readiness' rows ↔ domain, and its transactions. Method name = query name.

Can go wrong: a step written from a stale view. Every save is conditional on the version that was judged; if a row is missing
from its answer, the whole transaction is given up and the view forgotten.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from libs.kernel.ids import IdSource
from libs.kernel.refusal import Reason, Refusal
from libs.outbox import Outgoing, Relay, append
from libs.pg import Database, Queries, Tx
from services.readiness.domain.steps import RESOLVED, EffectFact, FailureFacts, Step, StepState
from services.readiness.ports import Notice, RunFacts
from services.readiness.store.due import DueSoon
from services.readiness.store.waits import WaitReads, WaitRows

_Q = Queries.load(Path(__file__).parent / "sql" / "steps.sql")
_NO_FAILURE = FailureFacts("", "", "")


def _step(row: asyncpg.Record) -> Step:
    failed = row["failure_class"]
    return Step(
        key=row["step_key"],
        state=StepState(row["state"]),
        ticket_sequence=row["ticket_sequence"],
        attempts=row["attempts"],
        version=row["version"],
        retry_at_ms=row["retry_at_ms"],
        wait_reason=row["wait_reason"],
        output=row["output"],
        failure=FailureFacts(failed, row["failure_message"], row["failure_type"]) if failed else None,
        pending=json.loads(row["pending"]) if row["pending"] else {},
        item=row["item"],
    )


def _run(row: asyncpg.Record) -> RunFacts:
    return RunFacts(*(row[name] for name in RunFacts.__dataclass_fields__))


def _failures(steps: Sequence[tuple[UUID, Step]]) -> tuple[list[str], list[str], list[str]]:
    """Their three columns; empty text where there is none."""
    told = [step.failure or _NO_FAILURE for _, step in steps]
    return [f.failure_class for f in told], [f.message for f in told], [f.type for f in told]


def _new_columns(steps: Sequence[tuple[UUID, Step]]) -> tuple[list[Any], ...]:
    return (
        [run_id for run_id, _ in steps],
        [step.key for _, step in steps],
        [int(step.state) for _, step in steps],
        [step.ticket_sequence for _, step in steps],
        [step.attempts for _, step in steps],
        [step.version for _, step in steps],
        *_failures(steps),
        [step.item for _, step in steps],
    )


class ReadinessTx(WaitRows):
    """One transaction; implements `ports.Tx`."""

    def __init__(self, tx: Tx, ids: IdSource) -> None:
        super().__init__(tx)
        self._ids = ids
        self.sent: list[Outgoing] = []
        self.retries_ms: list[int] = []

    async def add_runs(self, runs: Sequence[RunFacts]) -> set[UUID]:
        """Those that were not known."""
        rows = await self._tx.fetch(
            _Q.add_runs,
            [r.run_id for r in runs],
            [r.tenant for r in runs],
            [r.project for r in runs],
            [r.digest for r in runs],
            [r.build for r in runs],
            [r.run_class for r in runs],
            [r.priority for r in runs],
            [r.deadline_ms for r in runs],
            [r.epoch for r in runs],
            [r.input for r in runs],
            [r.traceparent for r in runs],
            [r.launched_by for r in runs],
            [r.root_run_id for r in runs],
        )
        return {row["run_id"] for row in rows}

    async def closed_early(self, run_ids: Sequence[UUID]) -> set[UUID]:
        """Those that launch closed before they were known here."""
        if not run_ids:
            return set()
        return {row["run_id"] for row in await self._tx.fetch(_Q.closed_early, list(run_ids))}

    async def add_steps(self, steps: Sequence[tuple[UUID, Step]]) -> None:
        """The steps of new runs, and new instances."""
        kept = [item for item in steps if item[1].output]
        fresh = [item for item in steps if not item[1].output] if kept else steps
        if fresh:
            self._tx.later(_Q.add_steps, *_new_columns(fresh))
        if kept:
            self._tx.later(_Q.add_kept_steps, *_new_columns(kept), [step.output for _, step in kept])

    async def lock_runs(self, run_ids: Sequence[UUID]) -> dict[UUID, RunFacts]:
        """Runs that are known, locked in order."""
        return {row["run_id"]: _run(row) for row in await self._tx.fetch(_Q.lock_runs, list(run_ids))}

    async def load_steps(self, run_ids: Sequence[UUID]) -> dict[UUID, dict[str, Step]]:
        """All steps of these runs."""
        found: dict[UUID, dict[str, Step]] = {run_id: {} for run_id in run_ids}
        for row in await self._tx.fetch(_Q.load_steps, list(run_ids)):
            found[row["run_id"]][row["step_key"]] = _step(row)
        return found

    async def save(self, runs: Sequence[RunFacts], steps: Sequence[tuple[UUID, Step]]) -> None:
        """Changed runs and steps."""
        if steps:
            self.retries_ms += [step.retry_at_ms for _, step in steps if step.retry_at_ms]
            saved = await self._tx.fetch(
                _Q.save_steps,
                [run_id for run_id, _ in steps],
                [step.key for _, step in steps],
                [int(step.state) for _, step in steps],
                [step.ticket_sequence for _, step in steps],
                [step.attempts for _, step in steps],
                [step.version for _, step in steps],
                [step.retry_at_ms for _, step in steps],
                [step.wait_reason for _, step in steps],
                [step.output for _, step in steps],
                *_failures(steps),
                [json.dumps(dict(step.pending)) if step.pending else "" for _, step in steps],
            )
            if len(saved) != len(steps):
                raise Refusal(Reason.VERSION_CONFLICT, "steps moved while their run was locked", remedy="apply the facts again")
        if runs:
            columns = [r.run_id for r in runs], [r.state for r in runs], [r.version for r in runs]
            self._tx.later(_Q.save_runs, *columns)

    async def wait_for_births(self) -> None:
        """Until every launch under way is committed."""
        await self._tx.fetch(_Q.wait_for_births)

    async def remember_closed(self, run_ids: Sequence[UUID], now_ms: int) -> None:
        """Closings that overtook their launch."""
        if run_ids:
            await self._tx.fetch(_Q.remember_closed, list(run_ids), now_ms)

    async def save_resolutions(self, effects: Sequence[tuple[UUID, EffectFact]]) -> None:
        """Outcomes of slots; of several in one delivery the newest."""
        newest: dict[tuple[UUID, str, str], EffectFact] = {}
        for run_id, effect in effects:
            key = (run_id, effect.step_key, effect.slot)
            if key not in newest or newest[key].version < effect.version:
                newest[key] = effect
        await self._tx.fetch(
            _Q.save_resolutions,
            [run_id for run_id, _, _ in newest],
            [step_key for _, step_key, _ in newest],
            [slot for _, _, slot in newest],
            [effect.version for effect in newest.values()],
            [effect.state for effect in newest.values()],
        )

    async def resolutions(self, steps: Sequence[tuple[UUID, str]]) -> dict[tuple[UUID, str], dict[str, int]]:
        """Newest version at which each slot of a step is resolved."""
        found: dict[tuple[UUID, str], dict[str, int]] = {}
        for row in await self._tx.fetch(_Q.resolutions, [run_id for run_id, _ in steps], [key for _, key in steps]):
            if row["state"] in RESOLVED:
                found.setdefault((row["run_id"], row["step_key"]), {})[row["slot"]] = row["version"]
        return found

    async def send(self, notices: Sequence[Notice], now_ms: int) -> None:
        """Outbox rows."""
        events = [Outgoing(self._ids.random128(), n.receiver, n.kind, n.run_id, n.payload, n.patient) for n in notices]
        if events:
            await append(self._tx, events, now_ms)
            self.sent.extend(events)


class ReadinessDatabase(WaitReads):
    """Where transactions begin, and reads outside of them; implements `ports.Database` and `ports.StepReads`."""

    def __init__(self, db: Database, relay: Relay, ids: IdSource) -> None:
        super().__init__(db)
        self._relay = relay
        self._ids = ids
        self._due = DueSoon()

    @property
    def incarnation(self) -> int:
        """Incarnation of the database."""
        return self._db.incarnation

    @asynccontextmanager
    async def tx(self) -> AsyncIterator[ReadinessTx]:
        """A transaction whose events leave after its commit."""
        async with self._db.tx() as tx:
            mine = ReadinessTx(tx, self._ids)
            yield mine
        self._due.note(mine.retries_ms)
        if mine.sent:
            self._relay.offer(mine.sent)

    def retry_may_be_due(self, now_ms: int, looked_before_ms: int) -> bool:
        """Whether some backoff or timer may have passed."""
        return self._due.look(now_ms, looked_before_ms)

    async def read_steps(self, run_id: UUID) -> tuple[RunFacts, dict[str, Step]] | None:
        """A run and its steps, for people."""
        async with self._db.tx() as tx:
            rows = await tx.fetch(_Q.lock_runs, [run_id])
            if not rows:
                return None
            steps = {row["step_key"]: _step(row) for row in await tx.fetch(_Q.load_steps, [run_id])}
        return _run(rows[0]), steps

    async def waiting_long(self, limit: int) -> list[tuple[UUID, str, str]]:
        """Steps that wait for an effect's outcome: run, step, slots."""
        return [(r["run_id"], r["step_key"], r["pending"]) for r in await self._db.fetch(_Q.waiting_long, limit)]

    async def waits(self, run_ids: Sequence[UUID]) -> dict[UUID, tuple[bool, tuple[str, ...]]]:
        """Whether every open step of a run waits, and for what."""
        rows = await self._db.fetch(_Q.waits, list(run_ids))
        return {row["run_id"]: (row["all_wait"], tuple((row["reasons"] or "").split())) for row in rows}

    async def forget_runs(self, before: UUID, limit: int) -> int:
        """Drops runs that are over and older than this id; how many."""
        return len(await self._db.fetch(_Q.forget_runs, before, limit))

    async def forget_closed(self, before_ms: int) -> None:
        """Drops old notes of closings that overtook their launch."""
        await self._db.fetch(_Q.forget_closed, before_ms)

    async def versions(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Specs that were kept."""
        return {row["digest"]: row["spec"] for row in await self._db.fetch(_Q.versions, list(digests))}

    async def add_versions(self, specs: Mapping[bytes, bytes]) -> None:
        """Keeps specs; they never change."""
        await self._db.fetch(_Q.add_versions, list(specs.keys()), list(specs.values()))
