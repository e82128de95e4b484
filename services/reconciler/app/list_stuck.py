"""What stopped moving, from every service's own account; installation-wide, for operators."""

from services.reconciler.ports import Ports, Stuck

DEFAULT_OLDER_MS = 60_000


async def list_stuck(ports: Ports, older_than_ms: int) -> tuple[list[Stuck], list[str]]:
    """Oldest first, and who could not be asked."""
    found, unreachable = await ports.others.stuck(older_than_ms or DEFAULT_OLDER_MS)
    return sorted(found, key=lambda one: one.since_ms), sorted(unreachable)
