"""Looks after parents whose outcome is decided, and joins that go on without the rest: children that still run are cancelled,
and what waits for nothing more is settled.

All that happens by itself in the transactions that decide and settle, or at once after them. This is for what a process that
died between two of them, or a promotion that lost one of them, left undone.
"""

from services.launch.app.decide_outcomes import BY_PARENT, decide_and_store
from services.launch.app.join_children import end_rest
from services.launch.app.record_receipts import settle_parents
from services.launch.domain.children import below
from services.launch.domain.closing import Closing
from services.launch.domain.run import OPEN
from services.launch.ports import Ports, Tx

PAGE = 200


async def mend_trees(ports: Ports) -> int:
    """How many parents it found."""
    settling, leaving = await ports.children.ending_parents(PAGE)
    await settle_parents(ports, settling)
    if leaving:
        now = ports.clock.now_ms()

        async def work(tx: Tx) -> list[Closing]:
            heads = await tx.lock_trees(leaving)
            why = "its parent has ended"
            closings = [
                Closing(run_id, "cancelled", b"", None, BY_PARENT, why)
                for run_id, head in below(leaving, heads).items()
                if head.state in OPEN
            ]
            await decide_and_store(ports, tx, closings, now)
            return closings

        ports.hub.poke([closing.run_id for closing in await ports.db.run(work)])
    ending = await ports.children.ending_joins(PAGE)
    await end_rest(ports, ending)
    return len(settling) + len(leaving) + len(ending)
