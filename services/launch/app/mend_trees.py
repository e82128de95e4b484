"""Looks after parents whose outcome is decided: children that still run are cancelled, and what waits for nothing more is
settled.

Both happen by themselves in the transactions that decide and settle. This is for what a process that died between two of
them, or a promotion that lost one of them, left undone.
"""

from services.launch.app.decide_outcomes import BY_PARENT, decide_and_store
from services.launch.app.record_receipts import settle_parents
from services.launch.domain.closing import Closing
from services.launch.domain.run import OPEN
from services.launch.ports import Ports

PAGE = 200


async def mend_trees(ports: Ports) -> int:
    """How many parents it found."""
    settling, leaving = await ports.children.ending_parents(PAGE)
    await settle_parents(ports, settling)
    if leaving:
        now = ports.clock.now_ms()
        async with ports.db.tx() as tx:
            await tx.lock_heads(leaving)
            below = await tx.lock_below(leaving)
            why = "its parent has ended"
            closings = [
                Closing(run_id, "cancelled", b"", None, BY_PARENT, why) for run_id, head in below.items() if head.state in OPEN
            ]
            await decide_and_store(ports, tx, closings, now)
        ports.hub.poke([closing.run_id for closing in closings])
    return len(settling) + len(leaving)
