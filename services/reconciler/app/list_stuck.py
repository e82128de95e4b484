"""What stopped moving, from every service's own account: all of it for who runs the installation, for a tenant's operator what
is of its runs.

Can go wrong: launch cannot say whose a run is. Then nothing is shown to a tenant, and launch is named as who could not be
asked.
"""

from uuid import UUID

from libs.kernel.refusal import Refusal
from services.reconciler.ports import Ports, Stuck

DEFAULT_OLDER_MS = 60_000


async def list_stuck(ports: Ports, older_than_ms: int, tenant: str = "", project: str = "") -> tuple[list[Stuck], list[str]]:
    """Oldest first, and who could not be asked."""
    found, unreachable = await ports.others.stuck(older_than_ms or DEFAULT_OLDER_MS)
    if tenant:
        try:
            found = await _owned(ports, found, tenant, project)
        except Refusal:
            found, unreachable = [], [*unreachable, "launch"]
    return sorted(found, key=lambda one: one.since_ms), sorted(set(unreachable))


async def _owned(ports: Ports, found: list[Stuck], tenant: str, project: str) -> list[Stuck]:
    runs = sorted({one.run_id for one in found if one.run_id is not None})
    owners: dict[UUID, tuple[str, str]] = {}
    for at in range(0, len(runs), 1000):
        owners |= await ports.others.owners(runs[at : at + 1000])
    return [
        one
        for one in found
        if one.run_id is not None
        and (owner := owners.get(one.run_id)) is not None
        and owner[0] == tenant
        and (not project or owner[1] == project)
    ]
