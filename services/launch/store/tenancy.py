"""Tenants and API keys in rows; implements `ports.Tenancy`. A key's text is never here, only its digest."""

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from asyncpg import Record

from libs.pg import Database, Queries, Tx
from services.launch.domain.admission import Account
from services.launch.domain.facts import KeyRecord
from services.launch.store import rows

_Q = Queries.load(Path(__file__).parent / "sql" / "tenancy.sql")


class TenancyStore:
    """Cold path: one statement each."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def put_tenant(
        self,
        tenant: str,
        limit_micros: int,
        max_active: int,
        expected: int | None,
        now_ms: int,
        max_descendants: int | None = None,
    ) -> Account | None:
        """The tenant after the change; None when `expected` lost."""
        found = await self._db.fetch(_Q.put_tenant, tenant, limit_micros, max_active, expected, now_ms, max_descendants)
        return rows.account(found[0]) if found else None

    async def tenant(self, tenant: str) -> Account | None:
        """The tenant, if it exists."""
        found = await self._db.fetch(_Q.tenant, tenant)
        return rows.account(found[0]) if found else None

    async def add_keys(self, keys: Sequence[KeyRecord], common: str) -> set[UUID]:
        """Those that are new, of tenants and projects that exist. `common`: the project that every tenant has."""
        if not keys:
            return set()
        found = await self._db.fetch(
            _Q.add_keys,
            [key.key_digest for key in keys],
            [key.key_id for key in keys],
            [key.tenant for key in keys],
            [key.project for key in keys],
            ["\n".join(key.scopes) for key in keys],
            [key.name for key in keys],
            [key.created_ms for key in keys],
            [key.expires_ms for key in keys],
            [key.created_by for key in keys],
            [key.request_key or None for key in keys],
            [key.request_digest for key in keys],
            common,
        )
        return {row["key_id"] for row in found}

    async def keys_by_request(self, request_keys: Sequence[bytes]) -> dict[bytes, KeyRecord]:
        """Keys that these requests have made; told only once what shows them is confirmed."""

        async def work(tx: Tx) -> dict[bytes, KeyRecord]:
            found = await tx.fetch(_Q.keys_by_request, list(request_keys))
            await tx.prove()
            return {row["request_key"]: _key(row) for row in found}

        return await self._db.run(work)

    async def revoke_key(self, key_id: UUID, now_ms: int, by: str, tenant: str, project: str) -> KeyRecord | None:
        """The key as it stands, revoked; None where there is none of this tenant (empty: any) and project."""
        found = await self._db.fetch(_Q.revoke_key, key_id, now_ms, by, tenant, project)
        return _key(found[0]) if found else None

    async def keys(self, digests: Sequence[bytes], now_ms: int) -> dict[bytes, KeyRecord]:
        """Keys that are valid."""
        return {row["key_digest"]: _key(row) for row in await self._db.fetch(_Q.keys, list(digests), now_ms)}

    async def keys_of(
        self, tenant: str, project: str, before: UUID, now_ms: int, *, ended: bool, limit: int
    ) -> list[KeyRecord]:
        """Newest first."""
        return [_key(row) for row in await self._db.fetch(_Q.keys_of, tenant, project, before, now_ms, ended, limit)]


def _key(row: Record) -> KeyRecord:
    return KeyRecord(
        row["key_digest"],
        row["key_id"],
        row["tenant"],
        row["project"],
        tuple(row["scopes"]),
        row["name"],
        created_ms=row["created_ms"],
        created_by=row["created_by"],
        expires_ms=row["expires_ms"],
        revoked_ms=row["revoked_ms"] or 0,
        revoked_by=row["revoked_by"],
        request_key=row["request_key"] or b"",
        request_digest=row["request_digest"],
    )
