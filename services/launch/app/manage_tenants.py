"""Tenants and API keys: made, changed, revoked, resolved. A key's text exists in one answer and nowhere else."""

import base64
from collections.abc import Sequence
from uuid import UUID

from libs.kernel.ids import digest
from libs.kernel.refusal import Reason, Refusal, invalid_field, not_found
from libs.kernel.values import value
from services.launch.domain.admission import Account
from services.launch.domain.facts import KeyRecord
from services.launch.domain.workflow import NAME
from services.launch.ports import Ports

FLEET = "fleet"
"""The scope of keys whose workers serve every tenant."""


@value(frozen=True, slots=True)
class NewKey:
    """A key that was just made; `text` is the secret."""

    key_id: UUID
    text: str
    created_ms: int


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


async def create_key(ports: Ports, tenant: str, project: str, scopes: Sequence[str], name: str) -> NewKey:
    """A new key of 256 random bits; only its digest is stored."""
    if project and not NAME.match(project):
        raise invalid_field("project", "must be 1 to 63 of a-z, 0-9, '-', '_'", "use such a name")
    if project and FLEET in scopes:
        raise invalid_field("project", "binds a key that serves every tenant", "leave it empty, or ask for the scope worker")
    random = ports.ids.random128().bytes + ports.ids.random128().bytes
    text = "rk_" + base64.urlsafe_b64encode(random).decode().rstrip("=")
    now = ports.clock.now_ms()
    granted = tuple(sorted({"caller", *scopes}))
    record = KeyRecord(digest(text.encode()), ports.ids.uuid7(), tenant, project, granted, name)
    if not await ports.tenancy.add_key(record, now):
        raise not_found("tenant")
    return NewKey(record.key_id, text, now)


async def revoke_key(ports: Ports, key_id: UUID) -> int:
    """When the key was revoked, the first time."""
    revoked = await ports.tenancy.revoke_key(key_id, ports.clock.now_ms())
    if revoked is None:
        raise not_found("API key")
    return revoked
