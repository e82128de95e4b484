"""Read gates from launch, merge and stamp them.

Can go wrong: the merge takes scopes, then gates, so no gate may be locked before it: it is a transaction of its own.
"""

from collections.abc import Collection
from uuid import UUID

from services.scheduler.app.book import Book
from services.scheduler.ports import Ports


async def read_cold(ports: Ports, book: Book, runs: Collection[UUID]) -> None:
    """Asks launch; what it answers is merged and stamped with the incarnation in which it was asked."""
    cold = await ports.gates.read(runs)
    async with ports.db.facts(()) as tx:
        await tx.merge_cold(cold)
    if cold.started_in == book.incarnation:
        for run_id in runs:
            book.warm.add(run_id)
