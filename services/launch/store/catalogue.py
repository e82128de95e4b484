"""Workflow versions in rows; implements `ports.Catalogue`. A version never changes, so what was read is kept.

Can go wrong: the newest version of a name is remembered too long. It is asked again after `newest_ttl_ms`, and at once
after a publish here.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import asyncpg

from libs.kernel.clock import Clock
from libs.kernel.ids import digest
from libs.kernel.refusal import not_found
from libs.pg import Database, Queries
from services.launch.domain.facts import Version
from services.launch.domain.workflow import WorkflowSpec

_Q = Queries.load(Path(__file__).parent / "sql" / "catalogue.sql")
_DIGEST = re.compile(r"^[0-9a-f]{64}\Z")
_NUMBERED = re.compile(r"^(?P<name>[^@]+)@(?P<number>[0-9]{1,9})\Z")
_PUBLISH = (
    "publish it first (`runway workflow publish MODULE:NAME`), or check the name and the project: `runway workflow list` shows "
    "what is published"
)
Parse = Callable[[bytes], WorkflowSpec]


class CatalogueStore:
    """Reads are cached by what was asked; the cache is bounded by `_KEPT`."""

    _KEPT = 10_000

    def __init__(self, db: Database, parse: Parse, clock: Clock, newest_ttl_ms: int) -> None:
        self._db = db
        self._parse = parse
        self._clock = clock
        self._ttl = newest_ttl_ms
        self._kept: dict[tuple[str, str, str], tuple[int, Version]] = {}

    def _version(self, row: asyncpg.Record) -> Version:
        raw = row["spec"]
        return Version(
            row["tenant"],
            row["project"],
            row["name"],
            row["number"],
            row["digest"],
            raw,
            row["published_ms"],
            self._parse(raw),
            row["publisher"],
        )

    async def publish(
        self, tenant: str, project: str, spec: WorkflowSpec, raw: bytes, publisher: str, now_ms: int
    ) -> tuple[Version, bool]:
        """Under a lock of the name, so that equal content is one version and numbers have no gaps."""
        named = digest(raw)
        async with self._db.tx() as tx:
            await tx.fetch(_Q.lock_name, f"{tenant}/{project}/{spec.name}")
            found = await tx.fetch(_Q.find_digest, tenant, project, named)
            made = found or await tx.fetch(_Q.publish, tenant, project, spec.name, named, raw, now_ms, publisher)
        self._kept.pop((tenant, project, spec.name), None)
        return self._version(made[0]), not found

    async def resolve(self, tenant: str, project: str, workflow: str) -> Version:
        """By name, number or digest."""
        key = (tenant, project, workflow)
        kept = self._kept.get(key)
        pinned = bool(_DIGEST.match(workflow) or _NUMBERED.match(workflow))
        if kept and (pinned or self._clock.monotonic_ms() - kept[0] < self._ttl):
            return kept[1]
        found = await self._find(tenant, project, workflow)
        if not found:
            raise not_found(f"workflow {workflow[:140]!r}", field="workflow", remedy=_PUBLISH)
        version = self._version(found[0])
        if len(self._kept) >= self._KEPT:
            self._kept.clear()
        self._kept[key] = (self._clock.monotonic_ms(), version)
        return version

    def _find(self, tenant: str, project: str, workflow: str) -> Awaitable[list[asyncpg.Record]]:
        if _DIGEST.match(workflow):
            return self._db.fetch(_Q.find_digest, tenant, project, bytes.fromhex(workflow))
        if numbered := _NUMBERED.match(workflow):
            return self._db.fetch(_Q.numbered, tenant, project, numbered["name"], int(numbered["number"]))
        return self._db.fetch(_Q.newest, tenant, project, workflow)

    async def by_digest(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Raw specs."""
        return {row["digest"]: row["spec"] for row in await self._db.fetch(_Q.by_digest, list(digests))}

    async def page(self, tenant: str, project: str, name: str, after: tuple[str, int] | None, limit: int) -> list[Version]:
        """By name, newest first."""
        last_name, last_number = after or (None, None)
        found = await self._db.fetch(_Q.page, tenant, project, name, last_name, last_number, limit)
        return [self._version(row) for row in found]
