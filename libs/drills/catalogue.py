"""Authoritative for which drills there are, in the order in which `all` plays them."""

from libs.drills.faults import (
    approvals,
    budgets,
    capacities,
    lives,
    machines,
    messages,
    partitions,
    processes,
    revocations,
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
        *revocations.DRILLS,
        *budgets.DRILLS,
        *capacities.DRILLS,
        *messages.DRILLS,
        *servers.DRILLS,
        *machines.DRILLS,
        *standbys.DRILLS,
        *partitions.DRILLS,
    )
}
