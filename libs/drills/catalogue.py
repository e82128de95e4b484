"""Authoritative for which drills there are, in the order in which `all` plays them."""

from libs.drills.faults import (
    approvals,
    lives,
    machines,
    messages,
    partitions,
    processes,
    schedulers,
    servers,
    standbys,
    switches,
)
from libs.drills.stage import Drill

DRILLS: dict[str, Drill] = {
    drill.name: drill
    for drill in (
        *processes.DRILLS,
        *schedulers.DRILLS,
        *switches.DRILLS,
        *lives.DRILLS,
        *approvals.DRILLS,
        *messages.DRILLS,
        *servers.DRILLS,
        *machines.DRILLS,
        *standbys.DRILLS,
        *partitions.DRILLS,
    )
}
