"""Sweep chunks that nothing names: uploaded, and no manifest or artifact followed within the grace period.

Rows are marked in one statement (from then on the chunk counts as missing, and storing it again waits), then the bytes go,
then the rows. Can go wrong: a sweep that dies in between; a later one takes its rows after `ABANDONED_MS`. A sweep that was
paused for longer than that could delete what was stored again meanwhile, so it stops by its own clock at half of it.
"""

from services.checkpoint.ports import Content, Ports

ABANDONED_MS = 600_000
_CALL = 50


async def sweep_chunks(ports: Ports, limit: int = 500) -> int:
    """How many were swept."""
    now, began = ports.clock.now_ms(), ports.clock.monotonic_ms()
    doomed = await ports.rows.doom(now - ports.limits.chunk_grace_ms, now - ABANDONED_MS, now, limit)
    swept = 0
    for first in range(0, len(doomed), _CALL):
        part = doomed[first : first + _CALL]
        if ports.clock.monotonic_ms() - began > ABANDONED_MS // 2:
            break
        await _delete(ports, part)
        await ports.rows.forget(part, now)
        swept += len(part)
    return swept


async def _delete(ports: Ports, part: list[Content]) -> None:
    by_tenant: dict[str, list[bytes]] = {}
    for tenant, name in part:
        by_tenant.setdefault(tenant, []).append(name)
    for tenant, names in by_tenant.items():
        await ports.chunks.delete(tenant, names)
