"""Projects: onboarded, suspended, resumed. A suspended one launches nothing; what runs in it goes on.

Can go wrong: a name that was never used. It is not found, so that a mistyped one is not taken for suspended.
"""

from libs.kernel.refusal import Reason, Refusal, invalid_field, not_found
from services.launch.domain.facts import Project
from services.launch.domain.workflow import DEFAULT_PROJECT, NAME
from services.launch.ports import Ports

ACTIVE, SUSPENDED = 1, 2


async def create_project(ports: Ports, tenant: str, project: str, by: str) -> tuple[Project, bool]:
    """The project, and whether this call onboarded it."""
    if not NAME.match(project):
        raise invalid_field("project", "must be 1 to 63 of a-z, 0-9, '-', '_'", "use such a name")
    created = await ports.projects.add_project(tenant, project, ports.clock.now_ms(), by)
    return await get_project(ports, tenant, project), created


async def get_project(ports: Ports, tenant: str, project: str) -> Project:
    """A project that is there."""
    found = await ports.projects.project(tenant, project)
    if found is None:
        raise not_found("project")
    return found


async def turn_project(
    ports: Ports, tenant: str, project: str, state: int, reason: str, by: str, expected: int | None
) -> Project:
    """Suspends or resumes it. What it is already, it stays."""
    now_ms = ports.clock.now_ms()
    if project == DEFAULT_PROJECT:
        await ports.projects.add_project(tenant, project, now_ms, by)
    turned = await ports.projects.turn_project(tenant, project, state, reason, now_ms, by, expected)
    if turned is not None:
        return turned
    standing = await get_project(ports, tenant, project)
    if expected is not None and standing.version != expected:
        raise Refusal(
            Reason.VERSION_CONFLICT,
            f"project {project!r} is at version {standing.version}, not {expected}",
            field="expected_version",
            remedy="read the project and decide again",
            detail={"current_version": str(standing.version)},
        )
    return standing
