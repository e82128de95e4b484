"""Whether a run is the caller's, as launch knows it. Another tenant's is not found, and neither is one that nobody knows."""

from uuid import UUID

from libs.kernel.refusal import not_found
from services.reconciler.ports import Ports


async def check_owner(ports: Ports, tenant: str, project: str, run_id: UUID) -> None:
    """NOT_FOUND, unless it is a run of this tenant. `project` empty: of any of its projects."""
    owner = (await ports.others.owners([run_id])).get(run_id)
    if owner is None or owner[0] != tenant or (project and owner[1] != project):
        raise not_found("run")
