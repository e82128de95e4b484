"""A run's ledger for people of its tenant. Another tenant's run is not found, and neither is one that nobody knows."""

from uuid import UUID

from libs.kernel.refusal import not_found
from services.gateway.domain.effect import Effect, Try
from services.gateway.ports import Ports


async def list_effects(
    ports: Ports, tenant: str, project: str, run_id: UUID, after: int, limit: int
) -> list[tuple[Effect, list[Try]]]:
    """Effects beyond an ordinal, with their tries. `project` empty: any of the tenant."""
    await check_owner(ports, tenant, project, run_id)
    return await ports.store.page(run_id, after, limit)


async def check_owner(ports: Ports, tenant: str, project: str, run_id: UUID) -> None:
    """NOT_FOUND, unless it is a run of this tenant. `project` empty: of any of its projects."""
    owner = await ports.store.owner(run_id) or await ports.owners.owner(run_id)
    if owner is None or owner[0] != tenant or (project and owner[1] != project):
        raise not_found("run")
