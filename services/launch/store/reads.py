"""Launch's reads outside transactions; one statement each."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from libs.pg import Database, Queries, Statement
from services.launch.domain.closing import Limit
from services.launch.domain.facts import FirstReceipt, GateFacts, RunFilter, ScopeFacts
from services.launch.domain.run import Run, RunEventFacts, RunState, mode_of
from services.launch.store import rows

_Q = Queries.load(Path(__file__).parent / "sql" / "reads.sql")

_LAST = UUID(int=2**128 - 1)


class LaunchReads:
    """Implements `ports.Reads`, and what the leaf port and the hub read."""

    def __init__(self, db: Database, check: Callable[[int], None]) -> None:
        """`check` refuses the incarnation in which launch may not answer yet."""
        self._db = db
        self._check = check

    async def _fetch(self, statement: Statement, *args: Any) -> list[asyncpg.Record]:
        """A connection of a newer incarnation makes itself known before it answers, so looking afterwards is enough."""
        rows = await self._db.fetch(statement, *args)
        self._check(self._db.incarnation)
        return rows

    @property
    def incarnation(self) -> int:
        """Incarnation of the database."""
        return self._db.incarnation

    async def receipts(self, key_digests: Sequence[bytes]) -> dict[bytes, FirstReceipt]:
        """What stands under these request_ids."""
        if not key_digests:
            return {}
        found = await self._fetch(_Q.receipts, list(key_digests))
        return {r["key_digest"]: FirstReceipt(r["key_digest"], r["request_digest"], r["run_id"]) for r in found}

    async def runs(self, run_ids: Sequence[UUID]) -> dict[UUID, Run]:
        """Runs that exist."""
        if not run_ids:
            return {}
        return {row["run_id"]: rows.run(row) for row in await self._fetch(_Q.runs, list(run_ids))}

    async def list_runs(self, wanted: RunFilter, before: UUID | None, limit: int) -> list[Run]:
        """A page, newest first. Ids begin with the time of acceptance."""
        since = UUID(int=wanted.from_ms << 80)
        until = UUID(int=wanted.before_ms << 80) if wanted.before_ms else _LAST
        found = await self._fetch(
            _Q.list_runs,
            wanted.tenant,
            wanted.project,
            list(wanted.states),
            wanted.workflow,
            list(wanted.classes),
            wanted.labels,
            wanted.fork_of,
            since,
            min(until, before) if before else until,
            limit,
        )
        return [rows.run(row) for row in found]

    async def events(self, run_id: UUID, after: int, limit: int) -> list[RunEventFacts]:
        """Log entries in order."""
        return [rows.event(row) for row in await self._fetch(_Q.events, run_id, after, limit)]

    async def overdue_runs(self, now_ms: int, limit: int) -> list[tuple[UUID, Limit]]:
        """Implements the port."""
        return [(row["run_id"], Limit(row["passed"])) for row in await self._fetch(_Q.overdue_runs, now_ms, limit)]

    async def idle_runs(self, before_ms: int, limit: int) -> list[tuple[UUID, int]]:
        """Accepted, not begun."""
        return [(row["run_id"], row["since_ms"]) for row in await self._fetch(_Q.idle_runs, before_ms, limit)]

    async def unsettled_runs(self, before_ms: int, limit: int) -> list[tuple[UUID, int]]:
        """Decided, not terminal."""
        return [(row["run_id"], row["since_ms"]) for row in await self._fetch(_Q.unsettled_runs, before_ms, limit)]

    async def versions_of(self, run_ids: Sequence[UUID]) -> dict[UUID, tuple[int, int, int]]:
        """(version, sequence, state) of runs that exist."""
        found = await self._fetch(_Q.versions_of, list(run_ids))
        return {row["run_id"]: (row["version"], row["sequence"], row["state"]) for row in found}

    async def gates(self, run_ids: Sequence[UUID]) -> tuple[int, list[GateFacts], list[ScopeFacts]]:
        """The incarnation the read began in, every run's gate in the order asked (unknown ones closed), scopes not open."""
        incarnation = self._db.incarnation
        asked = list(run_ids)
        runs, stopped = await asyncio.gather(self._fetch(_Q.gates, asked), self._fetch(_Q.scopes, asked))
        found = {row["run_id"]: row for row in runs}
        gates = []
        for run_id in run_ids:
            row = found.get(run_id)
            if row is None:
                mode = mode_of(RunState.DENIED)
                gates.append(GateFacts(run_id, 0, mode, "", (), 0, "", ""))
                continue
            state = RunState(row["state"])
            gates.append(
                GateFacts(
                    run_id,
                    row["epoch"],
                    mode_of(state),
                    row["outcome"],
                    tuple(row["capabilities"]),
                    row["budget_micros"],
                    row["tenant"],
                    row["project"],
                    row["budget_sequence"],
                )
            )
        return incarnation, gates, [ScopeFacts(row["kind"], row["scope_id"], row["epoch"], row["mode"]) for row in stopped]

    async def owners(self, run_ids: Sequence[UUID]) -> dict[UUID, tuple[str, str]]:
        """(tenant, project) of runs that exist."""
        return {row["run_id"]: (row["tenant"], row["project"]) for row in await self._fetch(_Q.owners, list(run_ids))}
