"""What launch's verbs need of tenants, projects, keys and published versions, as Protocols."""

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from services.launch.domain.admission import Account
from services.launch.domain.facts import KeyRecord, Project, Version
from services.launch.domain.workflow import WorkflowSpec


class Catalogue(Protocol):
    """Published workflow versions."""

    async def publish(
        self, tenant: str, project: str, spec: WorkflowSpec, raw: bytes, publisher: str, now_ms: int
    ) -> tuple[Version, bool]:
        """The version of this content, and whether this call made it."""
        ...

    async def resolve(self, tenant: str, project: str, workflow: str) -> Version:
        """By `name` (newest), `name@number` or hexadecimal digest; refuses NOT_FOUND."""
        ...

    async def by_digest(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Raw specs by digest."""
        ...

    async def page(self, tenant: str, project: str, name: str, after: tuple[str, int] | None, limit: int) -> list[Version]:
        """Versions, by name, newest first."""
        ...


class Tenancy(Protocol):
    """Tenants and keys."""

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
        ...

    async def tenant(self, tenant: str) -> Account | None:
        """The tenant, if it exists."""
        ...

    async def add_keys(self, keys: Sequence[KeyRecord], common: str) -> set[UUID]:
        """Stores keys; the ids of those whose tenant and project exist and whose request made none before. `common`: the
        project that every tenant has."""
        ...

    async def keys_by_request(self, request_keys: Sequence[bytes]) -> dict[bytes, KeyRecord]:
        """Keys that these requests have made."""
        ...

    async def revoke_key(self, key_id: UUID, now_ms: int, by: str, tenant: str, project: str) -> KeyRecord | None:
        """The key as it stands, revoked; None where there is none of this tenant (empty: any) and project."""
        ...

    async def keys(self, digests: Sequence[bytes], now_ms: int) -> dict[bytes, KeyRecord]:
        """Keys that are valid."""
        ...

    async def keys_of(
        self, tenant: str, project: str, before: UUID, now_ms: int, *, ended: bool, limit: int
    ) -> list[KeyRecord]:
        """Keys of a tenant, or of a project of it, newest first."""
        ...


class Projects(Protocol):
    """Projects of tenants."""

    async def add_project(self, tenant: str, project: str, now_ms: int, by: str) -> bool:
        """Whether it was not there."""
        ...

    async def settle_project(self, tenant: str, project: str, now_ms: int, by: str) -> None:
        """Something is published in it: it is one that is listed."""
        ...

    async def project(self, tenant: str, project: str) -> Project | None:
        """One that has a row."""
        ...

    async def projects(self, tenant: str, after: str, limit: int, only: str) -> list[Project]:
        """By name; `only` that one, where it is named."""
        ...

    async def turn_project(
        self, tenant: str, project: str, state: int, reason: str, now_ms: int, by: str, expected: int | None
    ) -> Project | None:
        """The project after the change; None where nothing was to change, or `expected` lost."""
        ...
