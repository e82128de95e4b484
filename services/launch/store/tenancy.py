"""Tenants and API keys in rows; implements `ports.Tenancy`. A key's text is never here, only its digest."""

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from libs.pg import Database, Queries
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

    async def add_key(self, key: KeyRecord, now_ms: int) -> bool:
        """Stores a key; False when the tenant does not exist."""
        scopes = list(key.scopes)
        return bool(
            await self._db.fetch(_Q.add_key, key.key_digest, key.key_id, key.tenant, key.project, scopes, key.name, now_ms)
        )

    async def revoke_key(self, key_id: UUID, now_ms: int) -> int | None:
        """When it was revoked, the first time."""
        found = await self._db.fetch(_Q.revoke_key, key_id, now_ms)
        return int(found[0]["revoked_ms"]) if found else None

    async def keys(self, digests: Sequence[bytes]) -> dict[bytes, KeyRecord]:
        """Keys that are valid."""
        found = await self._db.fetch(_Q.keys, list(digests))
        return {
            row["key_digest"]: KeyRecord(
                row["key_digest"], row["key_id"], row["tenant"], row["project"], tuple(row["scopes"]), row["name"]
            )
            for row in found
        }
