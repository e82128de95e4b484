"""Tenants and API keys: made, changed, revoked, resolved. A key's text exists in one answer and nowhere else."""

import base64
from uuid import UUID

from libs.kernel.ids import digest
from libs.kernel.refusal import Reason, Refusal, invalid_field, not_found
from libs.kernel.values import value
from services.launch.domain.admission import Account
from services.launch.domain.facts import KeyRecord
from services.launch.domain.workflow import DEFAULT_PROJECT, NAME
from services.launch.ports import Ports

FLEET = "fleet"
"""The scope of keys whose workers serve every tenant."""


@value(frozen=True, slots=True)
class NewKey:
    """A key that was just made; `text` is the secret."""

    record: KeyRecord
    text: str


async def put_tenant(
    ports: Ports, tenant: str, limit_micros: int, max_active: int, expected: int | None, max_descendants: int | None = None
) -> Account:
    """The tenant with its new limits."""
    if not NAME.match(tenant):
        raise invalid_field("tenant", "must be 1 to 63 of a-z, 0-9, '-', '_'", "use such a name")
    now = ports.clock.now_ms()
    account = await ports.tenancy.put_tenant(tenant, limit_micros, max_active, expected, now, max_descendants)
    if account is None:
        standing = await ports.tenancy.tenant(tenant)
        current = standing.version if standing else 0
        raise Refusal(
            Reason.VERSION_CONFLICT,
            f"tenant {tenant!r} is at version {current}, not {expected}",
            field="expected_version",
            remedy="read the tenant and decide again",
            detail={"current_version": str(current)},
        )
    return account


async def get_tenant(ports: Ports, tenant: str) -> Account:
    """The tenant with its balances."""
    account = await ports.tenancy.tenant(tenant)
    if account is None:
        raise not_found("tenant")
    return account


@value(frozen=True, slots=True)
class KeyAsk:
    """A key that somebody wants; `lasts_ms` 0: for ever."""

    tenant: str
    project: str
    scopes: tuple[str, ...]
    name: str
    by: str
    lasts_ms: int = 0


async def create_key(ports: Ports, ask: KeyAsk) -> NewKey:
    """A new key of 256 random bits; only its digest is stored."""
    if ask.project and not NAME.match(ask.project):
        raise invalid_field("project", "must be 1 to 63 of a-z, 0-9, '-', '_'", "use such a name")
    if ask.project and FLEET in ask.scopes:
        raise invalid_field("project", "binds a key that serves every tenant", "leave it empty, or ask for the scope worker")
    if "\0" in ask.name:
        raise invalid_field("name", "holds a NUL character", "leave it out")
    random = ports.ids.random128().bytes + ports.ids.random128().bytes
    text = "rk_" + base64.urlsafe_b64encode(random).decode().rstrip("=")
    now = ports.clock.now_ms()
    record = KeyRecord(
        digest(text.encode()),
        ports.ids.uuid7(),
        ask.tenant,
        ask.project,
        tuple(sorted(set(ask.scopes))),
        ask.name,
        created_ms=now,
        created_by=ask.by,
        expires_ms=now + ask.lasts_ms if ask.lasts_ms else 0,
    )
    if not await ports.tenancy.add_key(record, DEFAULT_PROJECT):
        if await ports.tenancy.tenant(ask.tenant) is None:
            raise not_found("tenant")
        raise Refusal(
            Reason.NOT_FOUND,
            f"tenant {ask.tenant} has no project {ask.project!r}",
            field="project",
            remedy=f"check its name (`runway project list`), or make it first: `runway project create {ask.project}`",
        )
    return NewKey(record, text)


async def revoke_key(ports: Ports, key_id: UUID, by: str, tenant: str = "", project: str = "") -> KeyRecord:
    """The key, revoked; of this tenant and project where they are named."""
    revoked = await ports.tenancy.revoke_key(key_id, ports.clock.now_ms(), by, tenant, project)
    if revoked is None:
        raise not_found("API key")
    return revoked
