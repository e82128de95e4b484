"""After a promotion: read every point, adopt what it holds, raise it anew. Launch answers nothing before.

One page of runs at a time, each decided behind its lock. Can go wrong: a point that does not answer. Then nothing is adopted
and nothing answered, and it is tried again: an answer without that point might take back what launch told before.
"""

import json
from uuid import UUID

from libs.kernel.ids import NIL
from services.launch.app.stop_scopes import Switches
from services.launch.domain.adopting import Adopted, adopt, close_orphan
from services.launch.domain.run import RunEventFacts
from services.launch.ports import Ports, Promotion

PAGE = 200


async def adopt_all(ports: Ports, promotion: Promotion, incarnation: int, switches: Switches) -> None:
    """Adopts every scope and every run that is not terminal, closes those that launch does not know, and lets launch answer."""
    former = await promotion.stored()
    if former is not None and former < incarnation:
        await switches.adopt(incarnation)
    while await _adopt_page(ports, promotion, incarnation):
        continue
    if former is not None and former < incarnation:
        await _close_orphans(ports, promotion, incarnation)
    await promotion.done(incarnation)


async def _adopt_page(ports: Ports, promotion: Promotion, incarnation: int) -> int:
    run_ids = await promotion.unadopted(incarnation, PAGE)
    if not run_ids:
        return 0
    held = await ports.points.held(run_ids)
    now = ports.clock.now_ms()
    async with promotion.tx(incarnation) as tx:
        heads = await tx.lock_heads(run_ids)
        adopted = [won for run_id, head in heads.items() if (won := adopt(head, held[run_id], incarnation)) is not None]
        await tx.adopt(adopted, now)
        await tx.append_events([_entry(item, now) for item in adopted])
        await tx.send([notice for item in adopted for notice in ports.notices.adopted(item, now)], now)
    return len(run_ids)


def _entry(item: Adopted, now: int) -> RunEventFacts:
    detail = json.dumps({"outcome": item.outcome} if item.found else {})
    return RunEventFacts(item.head.run_id, 0, now, "run.adopted", int(item.state), "", "launch", detail)


async def _close_orphans(ports: Ports, promotion: Promotion, incarnation: int) -> None:
    """Runs that points hold open: what launch does not know was lost with its launch, and is closed everywhere."""
    after: UUID | None = NIL
    while after is not None:
        held, after = await ports.points.open_runs(after, PAGE)
        known = await promotion.known([item.run_id for item in held])
        orphans = [found for item in held if item.run_id not in known and (found := close_orphan(item, incarnation))]
        if not orphans:
            continue
        now = ports.clock.now_ms()
        async with promotion.tx(incarnation) as tx:
            await tx.send([notice for item in orphans for notice in ports.notices.orphaned(item, now)], now)
