"""Shards, keys, workers, and reads outside transactions. Authoritative for who leads: the shard's row decides."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from libs.kernel.epochs import StepFence
from libs.kernel.ids import NIL
from libs.pg import Database, Queries
from services.scheduler.domain.commits import GateState
from services.scheduler.domain.ticket import Key, TicketRow, TicketState
from services.scheduler.store import rows
from services.scheduler.store.transaction import SchedulerDatabase

_Q = Queries.load(Path(__file__).parent / "sql" / "shards.sql")
_T = Queries.load(Path(__file__).parent / "sql" / "tickets.sql")


class SchedulerStore(SchedulerDatabase):
    """Implements `ports.Database`."""

    async def note_birth(self) -> None:
        """The incarnation in which this database was first used."""
        await self._db.fetch(_Q.note_birth, self._db.incarnation)

    async def birth(self) -> int:
        """See note_birth."""
        return int((await self._db.fetch(_Q.read_birth))[0]["incarnation"])

    async def confirm(self, won: Mapping[int, int], holder: str, address: str, now_ms: int) -> tuple[dict[int, int], int]:
        """Leadership in the shards' rows."""
        async with self._db.tx() as tx:
            found = await tx.fetch(_Q.confirm, list(won), list(won.values()), holder, address, now_ms)
            incarnation = tx.incarnation
        return {row["shard_id"]: row["authority_epoch"] for row in found}, incarnation

    async def raise_generation(self, shards: Collection[int], newest_revision: int, actor: str, now_ms: int) -> set[int]:
        """For shards whose row is ahead of etcd's newest revision."""
        found = await self._db.fetch(_Q.raise_generation, sorted(shards), newest_revision, now_ms, actor)
        return {row["shard_id"] for row in found}

    async def order_reset(self, actor: str, reason: str, now_ms: int, until_ms: int) -> None:
        """Lets leaders raise generations for a while."""
        await self._db.fetch(_Q.put_reset_order, now_ms, until_ms, actor, reason)

    async def reset_ordered(self, now_ms: int) -> str:
        """Who ordered it, and why; empty where no order holds."""
        found = await self._db.fetch(_Q.read_reset_order, now_ms)
        return f"{found[0]['actor']}: {found[0]['reason']}" if found else ""

    async def inputs(self, keys: Collection[Key]) -> dict[Key, tuple[bytes, str]]:
        """Input and trace of tickets."""
        ordered = sorted(keys)
        found = await self._db.fetch(_T.read_inputs, [run_id for run_id, _ in ordered], [step for _, step in ordered])
        return {(row["run_id"], row["step_key"]): (row["input"], row["traceparent"]) for row in found}

    async def gate_notices(self, shards: Collection[int], limit: int) -> list[UUID]:
        """Runs of these shards whose gate was raised."""
        return [row["run_id"] for row in await self._db.fetch(_T.read_notices, sorted(shards), limit)]

    async def read_rows(self, keys: Collection[Key]) -> dict[Key, TicketRow]:
        """Rows as they stand, unlocked."""
        ordered = sorted(keys)
        found = await self._db.fetch(_T.read_tickets, [run_id for run_id, _ in ordered], [step for _, step in ordered])
        return {(row["run_id"], row["step_key"]): rows.ticket(row) for row in found}

    async def read_gates(self, runs: Collection[UUID]) -> dict[UUID, GateState]:
        """Gates as they stand, unlocked."""
        return {row["run_id"]: rows.gate(row) for row in await self._db.fetch(_T.read_gates, sorted(runs))}

    async def put_key(self, key_id: bytes, public_key: bytes, now_ms: int) -> None:
        """The public half of this process' key."""
        await self._db.fetch(_Q.put_key, key_id, public_key, now_ms)

    async def forget_keys(self, before_ms: int) -> None:
        """Keys of processes that are gone."""
        await self._db.fetch(_Q.forget_keys, before_ms)

    async def put_workers(self, workers: Sequence[tuple[str, str, str, str, str, int, bool, str, str]]) -> None:
        """Workers seen lately: tenant, name, project, handlers, labels, when, whether of a fleet, resources, process."""
        if workers:
            await self._db.fetch(_Q.put_workers, *(list(column) for column in zip(*workers, strict=True)))

    async def leave_workers(self, workers: Sequence[tuple[str, str, int, str]]) -> None:
        """Workers (tenant, name, when, process) that claim nothing more."""
        if workers:
            await self._db.fetch(_Q.leave_workers, *(list(column) for column in zip(*workers, strict=True)))

    async def forget_workers(self, before_ms: int) -> None:
        """Not seen for long."""
        await self._db.fetch(_Q.forget_workers, before_ms)

    async def forget_runs(self, before: UUID, limit: int) -> int:
        """Drops what is left of closed runs that are older than this id; how many there were."""
        return len(await self._db.fetch(_Q.forget_runs, before, limit))


class SchedulerReads:
    """What people and points read; each instance on a pool of its own."""

    def __init__(self, db: Database) -> None:
        self._db = db

    @property
    def incarnation(self) -> int:
        """Newest incarnation seen."""
        return self._db.incarnation

    async def keys(self, key_ids: Sequence[bytes]) -> dict[bytes, bytes]:
        """Public halves by key id."""
        return {row["key_id"]: row["public_key"] for row in await self._db.fetch(_Q.read_keys, list(key_ids))}

    async def shards(self) -> list[Mapping[str, Any]]:
        """All shards."""
        return [dict(row) for row in await self._db.fetch(_Q.read_shards)]

    async def workers(self, tenant: str, project: str, after: str, limit: int, fleet: bool) -> list[Mapping[str, Any]]:
        """Workers of a tenant; those of its fleet where `fleet` says so."""
        return [dict(row) for row in await self._db.fetch(_Q.read_workers, tenant, project, after, limit, fleet)]

    async def owner(self, run_id: UUID) -> tuple[str, str] | None:
        """Whose run it is, where a ticket of it came."""
        found = await self._db.fetch(_Q.read_owner, run_id)
        return (found[0]["tenant"], found[0]["project"]) if found else None

    async def attempts(self, run_id: UUID, after_ms: int, after: UUID, limit: int) -> list[Mapping[str, Any]]:
        """Attempts of a run, oldest first."""
        return [dict(row) for row in await self._db.fetch(_Q.read_attempts, run_id, after_ms, after, limit)]

    async def carried(self, since_ms: int) -> set[str]:
        """Handlers that some worker seen since then carries."""
        return {row["handler"] for row in await self._db.fetch(_Q.read_carried, since_ms)}

    async def waiting_long(self, before_ms: int, limit: int) -> list[Mapping[str, Any]]:
        """Tickets that have waited for long."""
        return [dict(row) for row in await self._db.fetch(_Q.waiting_long, before_ms, limit)]

    async def ending_long(self, before_ms: int, limit: int) -> list[Mapping[str, Any]]:
        """Ends that wait for a point."""
        return [dict(row) for row in await self._db.fetch(_Q.ending_long, before_ms, limit)]

    async def step_fences(self, runs: Collection[UUID]) -> tuple[int, dict[Key, tuple[StepFence, bool]]]:
        """The incarnation that answers, and for each step of these runs its fence and whether it is a first grant that is live.
        A lease of an earlier incarnation is answered as held by nobody: it is not vouched for any more. The connection that
        reads says which incarnation it is of: what this process last heard may be from before a promotion."""
        async with self._db.tx() as tx:
            started_in, held = tx.incarnation, await tx.fetch(_T.step_fences, sorted(set(runs)))
        found: dict[Key, tuple[StepFence, bool]] = {}
        for row in held:
            current = row["incarnation"] == started_in
            attempt = row["attempt_id"] if current else NIL
            fence = StepFence(row["authority_epoch"], row["lease_epoch"], attempt)
            live_first = current and row["state"] == TicketState.LEASED and row["lease_epoch"] == 1
            found[(row["run_id"], row["step_key"])] = (fence, live_first)
        return started_in, found
