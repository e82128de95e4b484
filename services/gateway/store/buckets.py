"""Buckets in the database. Authoritative for what was decided about them and for what is in them.

A take locks the rows of its buckets, in order, decides over what it finds there, and writes levels and uses back: processes
never take the same unit twice. Can go wrong: two operators at once. Changes lock the version's row, so that each has a
version of its own.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import asyncpg

from libs.pg import Database, Queries, Tx
from services.gateway.domain.bucket_changes import BucketAsk, Change, check_version, next_bucket, no_bucket
from services.gateway.domain.buckets import Bucket, Name, Standing, Use

_Q = Queries.load(Path(__file__).parent / "sql" / "buckets.sql")

Decide = Callable[[dict[Name, Standing], Mapping[Name, Mapping[str, int]]], dict[Name, Standing]]
"""From buckets and weights as they are to buckets as they become."""


class BucketStore:
    """Implements `draw_buckets.Rows`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def version(self) -> int:
        """Of everything about buckets."""
        return int((await self._db.fetch(_Q.read_version))[0]["version"])

    async def buckets(self) -> list[Bucket]:
        """Every bucket, by name."""
        return [_bucket(row) for row in await self._db.fetch(_Q.read_buckets)]

    async def weights(self) -> dict[Name, dict[str, int]]:
        """Every weight."""
        return _by_tenant(await self._db.fetch(_Q.read_weights), lambda row: int(row["weight"]))

    async def uses(self, since_ms: int) -> dict[Name, dict[str, Use]]:
        """What tenants took, of those that wanted something since."""
        return _by_tenant(await self._db.fetch(_Q.read_uses, since_ms), _use)

    async def change(self, names: Sequence[Name], since_ms: int, decide: Decide) -> None:
        """One decision over these buckets, stored. A name without a bucket is left out."""
        arrays = _columns(sorted(set(names)))

        async def work(tx: Tx) -> None:
            found = {bucket.name: bucket for bucket in map(_bucket, await tx.fetch(_Q.lock_buckets, *arrays))}
            uses = _by_tenant(await tx.fetch(_Q.uses_of, *arrays, since_ms), _use)
            weights = _by_tenant(await tx.fetch(_Q.weights_of, *arrays), lambda row: int(row["weight"]))
            before = {name: Standing(bucket, uses.get(name, {})) for name, bucket in found.items()}
            after = decide(dict(before), weights)
            await _save(tx, before, after)

        await self._db.run(work)

    async def forget_uses(self, before_ms: int) -> None:
        """Of who wants nothing any more."""
        await self._db.fetch(_Q.forget_uses, before_ms)

    async def put_bucket(self, name: Name, ask: BucketAsk, change: Change, steady_ms: int, now_ms: int) -> Bucket:
        """As decided, with who and why."""

        async def work(tx: Tx) -> Bucket:
            await tx.fetch(_Q.lock_version)
            former = await _locked(tx, name)
            check_version(ask.expected_version, former.version if former else 0)
            version = await _next(tx)
            became = next_bucket(former, name, ask, version, steady_ms, now_ms)
            columns = became.capacity, became.per_minute, became.level, became.at_ms, became.version, became.changed_ms
            await tx.fetch(_Q.put_bucket, *name, *columns)
            await _note(tx, version, name, "", now_ms, change, _told(former), _told(became))
            return became

        return await self._db.run(work)

    async def remove_bucket(self, name: Name, expected: int | None, change: Change, now_ms: int) -> int:
        """Gone, with who and why."""

        async def work(tx: Tx) -> int:
            await tx.fetch(_Q.lock_version)
            former = await _locked(tx, name)
            if former is None:
                raise no_bucket(name)
            check_version(expected, former.version)
            version = await _next(tx)
            await tx.fetch(_Q.remove_bucket, *name)
            await _note(tx, version, name, "", now_ms, change, _told(former), "")
            return version

        return await self._db.run(work)

    async def put_weight(self, name: Name, tenant: str, weight: int, change: Change, now_ms: int) -> Bucket:
        """A tenant's weight, with who and why."""

        async def work(tx: Tx) -> Bucket:
            await tx.fetch(_Q.lock_version)
            bucket = await _locked(tx, name)
            if bucket is None:
                raise no_bucket(name)
            found = await tx.fetch(_Q.read_weight, *name, tenant)
            version = await _next(tx)
            await tx.fetch(_Q.put_weight, *name, tenant, weight)
            former = json.dumps({"weight": found[0]["weight"]}) if found else ""
            await _note(tx, version, name, tenant, now_ms, change, former, json.dumps({"weight": weight}))
            return bucket

        return await self._db.run(work)

    async def changes(self, before: int, limit: int) -> list[Mapping[str, Any]]:
        """The newest changes before a version."""
        return [dict(row) for row in await self._db.fetch(_Q.read_changes, before, limit)]


async def _save(tx: Tx, before: Mapping[Name, Standing], after: Mapping[Name, Standing]) -> None:
    moved = sorted(name for name, standing in after.items() if standing.bucket != before[name].bucket)
    if moved:
        buckets = [after[name].bucket for name in moved]
        await tx.fetch(_Q.save_levels, *_columns(moved), [b.level for b in buckets], [b.at_ms for b in buckets])
    uses = [
        (name, tenant, use)
        for name, standing in sorted(after.items())
        for tenant, use in sorted(standing.uses.items())
        if before[name].uses.get(tenant) != use
    ]
    if uses:
        numbers = [u.taken for _, _, u in uses], [u.at_ms for _, _, u in uses], [u.wanted_ms for _, _, u in uses]
        await tx.fetch(_Q.save_uses, *_columns([n for n, _, _ in uses]), [t for _, t, _ in uses], *numbers)


async def _locked(tx: Tx, name: Name) -> Bucket | None:
    found = await tx.fetch(_Q.lock_buckets, *_columns([name]))
    return _bucket(found[0]) if found else None


async def _next(tx: Tx) -> int:
    return int((await tx.fetch(_Q.next_version))[0]["version"])


async def _note(tx: Tx, version: int, name: Name, tenant: str, now_ms: int, change: Change, former: str, became: str) -> None:
    await tx.fetch(_Q.note_change, version, *name, tenant, now_ms, change.actor, change.reason, former, became)


def _told(bucket: Bucket | None) -> str:
    return "" if bucket is None else json.dumps({"capacity": bucket.capacity, "per_minute": bucket.per_minute})


def _columns(names: Sequence[Name]) -> tuple[list[str], list[str], list[str]]:
    return [n.kind for n in names], [n.name for n in names], [n.unit for n in names]


def _by_tenant(rows: Sequence[asyncpg.Record], of: Callable[[asyncpg.Record], Any]) -> dict[Name, dict[str, Any]]:
    found: dict[Name, dict[str, Any]] = {}
    for row in rows:
        found.setdefault(Name(row["kind"], row["name"], row["unit"]), {})[row["tenant"]] = of(row)
    return found


def _use(row: asyncpg.Record) -> Use:
    return Use(row["taken"], row["at_ms"], row["wanted_ms"])


def _bucket(row: asyncpg.Record) -> Bucket:
    name = Name(row["kind"], row["name"], row["unit"])
    columns = row["capacity"], row["per_minute"], row["level"], row["at_ms"], row["version"], row["changed_ms"]
    return Bucket(name, *columns)
