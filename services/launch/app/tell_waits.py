"""What a run is shown to wait for: what readiness says of its steps, and where that is children, whether they wait for money.

Can go wrong: a spawn that was judged in between. The next look says so.
"""

from dataclasses import replace
from uuid import UUID

from services.launch.domain.facts import Waiting
from services.launch.ports import Ports

CHILDREN, BUDGET = "child_tasks", "budget"


async def with_budget(ports: Ports, run_id: UUID, waiting: Waiting | None) -> Waiting | None:
    """With `budget`, where children are waited for that are not made yet for want of it."""
    if waiting is None or CHILDREN not in waiting.reasons or BUDGET in waiting.reasons:
        return waiting
    if not await ports.held.counts([run_id]):
        return waiting
    return replace(waiting, reasons=(BUDGET, *waiting.reasons))
