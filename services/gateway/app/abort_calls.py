"""Finds calls under way here whose run was closed, also by a raise that another gateway process took.

One statement for all of them, and only while there are any that may be cut: an idle gateway asks nothing. Can go wrong: a call
that starts between a raise and the look after it. The next look finds it.
"""

from services.gateway.app.run_calls import Calls
from services.gateway.ports import Ports


async def abort_calls(ports: Ports, calls: Calls) -> int:
    """How many calls were cut."""
    runs = calls.cuttable_runs()
    if not runs:
        return 0
    return calls.abort(await ports.store.closed_runs(runs))
