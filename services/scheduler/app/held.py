"""Tickets that an operator holds back: where they wait meanwhile, and how memory follows when holds change.

A held ticket stays a ticket: its row is untouched, it is only not among what may be granted. Authoritative for nothing: holds
are rows, read again and again. Can go wrong: a plan made a moment before a hold came. It commits, and a hold counts as acted on
only once the polls of such plans have their answer.
"""

from dataclasses import dataclass, field

from services.scheduler.app.queue import Ready
from services.scheduler.domain.holds import Holds, Place
from services.scheduler.domain.lease import Lease
from services.scheduler.domain.ticket import Key


def place_of(ready: Ready) -> Place:
    """Where a ticket belongs."""
    row = ready.row
    return Place(ready.shard, row.tenant, row.project, row.contract.handler, row.contract.calls, *ready.candidate.key)


def place_of_lease(lease: Lease) -> Place:
    """Where an attempt belongs."""
    contract = lease.contract
    return Place(lease.shard, lease.tenant, lease.project, contract.handler, contract.calls, lease.run_id, lease.step_key)


@dataclass(slots=True)
class Shelf:
    """The holds this process acts on, and the tickets they hold back."""

    holds: Holds = field(default_factory=Holds)
    tickets: dict[Key, Ready] = field(default_factory=dict)

    def takes(self, ready: Ready) -> bool:
        """Puts a ticket here where it is held back."""
        if not self.stops(ready):
            return False
        self.tickets[ready.candidate.key] = ready
        return True

    def stops(self, ready: Ready) -> bool:
        """Whether it may not be granted."""
        return bool(self.holds) and self.holds.stops(place_of(ready))

    def drop(self, shards: set[int]) -> None:
        """Forgets what belongs to these shards."""
        self.tickets = {key: ready for key, ready in self.tickets.items() if ready.shard not in shards}
