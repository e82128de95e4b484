"""Tenants made and changed, API keys revoked. Can go wrong: two who change a tenant at once: its version decides."""

from uuid import UUID

from libs.kernel.refusal import Reason, Refusal, invalid_field, not_found
from services.launch.domain.admission import Account
from services.launch.domain.facts import KeyRecord
from services.launch.domain.workflow import NAME
from services.launch.ports import Ports


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


async def revoke_key(ports: Ports, key_id: UUID, by: str, tenant: str = "", project: str = "") -> KeyRecord:
    """The key, revoked; of this tenant and project where they are named."""
    revoked = await ports.tenancy.revoke_key(key_id, ports.clock.now_ms(), by, tenant, project)
    if revoked is None:
        raise not_found("API key")
    return revoked
