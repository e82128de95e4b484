"""Open cases: by the gateway's events, and by asking it, should an event have been lost."""

from collections.abc import Sequence
from dataclasses import replace

from services.reconciler.domain.cases import Opening, Resolved
from services.reconciler.ports import Ports


async def take_events(ports: Ports, openings: Sequence[Opening], resolved: Sequence[Resolved]) -> None:
    """One delivery. A resolution that overtook its opening is not kept: the first look-up finds it."""
    now = ports.clock.now_ms()
    if openings:
        await ports.cases.open([(ports.ids.uuid7(), opening) for opening in openings], now)
    if resolved:
        await ports.cases.resolve(resolved, now)


async def sweep_unknown(ports: Ports) -> int:
    """Opens cases for unknown effects that have none here; how many."""
    found = await ports.effects.unknown(ports.limits.sweep_older_than_ms)
    known = await ports.cases.undecided([opening.name for opening in found]) if found else set()
    lost = [opening for opening in found if opening.name not in known]
    opened = 0
    if lost:
        owners = await ports.others.owners(sorted({opening.name.run_id for opening in lost}))
        owned = [
            replace(opening, tenant=owners[opening.name.run_id][0], project=owners[opening.name.run_id][1])
            for opening in lost
            if opening.name.run_id in owners
        ]
        opened = await ports.cases.open([(ports.ids.uuid7(), opening) for opening in owned], ports.clock.now_ms())
    ports.gauges.undecided(await ports.cases.counts())
    return opened
