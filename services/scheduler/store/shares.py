"""Shares in the database. Authoritative for what was decided about them; what leaders say of use is advice.

Can go wrong: two operators at once. Changes lock the policy's row, so each has a version of its own, and the later
sees the earlier.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import asyncpg

from libs.pg import Database, Queries, Tx
from services.scheduler.domain.shares import Change, Decided, Part, Policy, Project, Report, StoredPart

_Q = Queries.load(Path(__file__).parent / "sql" / "shares.sql")


class ShareStore:
    """Implements `decide_shares.Shares`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def version(self) -> int:
        """Of everything about shares."""
        return int((await self._db.fetch(_Q.read_policy))[0]["version"])

    async def decided(self) -> Decided:
        """All of it, at one version or a later one."""
        row = (await self._db.fetch(_Q.read_policy))[0]
        parts: dict[str, Part] = {}
        projects: dict[Project, Part] = {}
        for found in await self.parts():
            if found.project:
                projects[(found.tenant, found.project)] = found.part
            else:
                parts[found.tenant] = found.part
        return Decided(row["version"], _policy(row), parts, projects)

    async def parts(self) -> list[StoredPart]:
        """Every row, by tenant and project."""
        found = await self._db.fetch(_Q.read_parts)
        return [StoredPart(row["tenant"], row["project"], _part(row), row["version"], row["changed_ms"]) for row in found]

    async def put_policy(self, decide: Callable[[Policy, int], Policy], change: Change, now_ms: int) -> tuple[Policy, int]:
        """The policy that `decide` makes of the present one and its version, stored with who and why."""

        async def work(tx: Tx) -> tuple[Policy, int]:
            row = (await tx.fetch(_Q.lock_policy))[0]
            former = _policy(row)
            policy = decide(former, row["version"])
            columns = (
                policy.reserve_permille,
                policy.migration_permille,
                policy.half_life_ms,
                policy.entry_penalty_ms,
                policy.most_waiting,
            )
            version = int((await tx.fetch(_Q.put_policy, *columns))[0]["version"])
            await _note(tx, version, "", "", asdict(former), asdict(policy), change, now_ms)
            return policy, version

        return await self._db.run(work)

    async def put_part(
        self, tenant: str, project: str, decide: Callable[[Part, int], Part], change: Change, now_ms: int
    ) -> StoredPart:
        """The part that `decide` makes of the present one and its version (0: none yet), stored with who and why."""

        async def work(tx: Tx) -> StoredPart:
            await tx.fetch(_Q.lock_policy)
            found = await tx.fetch(_Q.read_part, tenant, project)
            former, standing = (_part(found[0]), found[0]["version"]) if found else (Part(), 0)
            part = decide(former, standing)
            stored = await tx.fetch(_Q.put_part, tenant, project, part.weight, part.most_leases, now_ms, part.most_waiting)
            version = int(stored[0]["version"])
            await _note(tx, version, tenant, project, asdict(former), asdict(part), change, now_ms)
            return StoredPart(tenant, project, part, version, now_ms)

        return await self._db.run(work)

    async def changes(self, before: int, limit: int) -> list[Mapping[str, Any]]:
        """The newest changes before a version."""
        return [dict(row) for row in await self._db.fetch(_Q.read_changes, before, limit)]

    async def exchange(self, holder: str, beat: int, mine: Sequence[Report] | None) -> tuple[list[Report], set[Project]]:
        """Says what this process sees (None: nothing, as before), and reads what the others said last; and of what is said that
        for which no row was there."""
        fresh: Sequence[asyncpg.Record] = ()
        if mine is not None:
            names, numbers = (
                [[r.tenant for r in mine], [r.project for r in mine]],
                [[r.running for r in mine], [r.average for r in mine]],
            )
            more = [r.waiting for r in mine], [r.extra for r in mine]
            fresh = await self._db.fetch(_Q.put_use, holder, *names, *numbers, beat, *more)
        said = [_report(row) for row in await self._db.fetch(_Q.read_use, holder)]
        return said, {(row["tenant"], row["project"]) for row in fresh}

    async def holders(self) -> Collection[str]:
        """Who leads some shard, as the shards' rows say."""
        return {row["holder"] for row in await self._db.fetch(_Q.read_holders)}

    async def inherit(self, silent: Mapping[str, int]) -> list[Report]:
        """What these processes said last, if it is still at this beat: once, for whoever asks first."""
        found = await self._db.fetch(_Q.inherit_use, list(silent), list(silent.values()))
        return [_report(row) for row in found]


async def _note(
    tx: Tx,
    version: int,
    tenant: str,
    project: str,
    former: Mapping[str, object],
    became: Mapping[str, object],
    change: Change,
    now_ms: int,
) -> None:
    texts = json.dumps(former), json.dumps(became)
    await tx.fetch(_Q.note_change, version, tenant, project, now_ms, change.actor, change.reason, *texts)


def _policy(row: asyncpg.Record) -> Policy:
    return Policy(
        row["reserve_permille"], row["migration_permille"], row["half_life_ms"], row["entry_penalty_ms"], row["most_waiting"]
    )


def _part(row: asyncpg.Record) -> Part:
    return Part(row["weight"], row["most_leases"], row["most_waiting"])


def _report(row: asyncpg.Record) -> Report:
    said = row["holder"], row["beat"], row["waiting"], row["extra"]
    return Report(row["tenant"], row["project"], row["running"], row["average"], *said)
