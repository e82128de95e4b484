"""How many tickets of a tenant may wait, over all leaders: what is over it is not taken now, and waits, unlost, in the outbox
it comes from, where it keeps nobody else's tickets out.

Authoritative for nothing: the bound is a row, what waits is counted from memory, and the part that other leaders have is what
they last reported. Tickets of interactive and resumed runs are taken up to twice the bound, so that a tenant's own flood does
not shut out its people. Can go wrong: a bound that keeps out what is here already. A step that is known is never turned away.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from libs.telemetry.catalogue import TICKETS_TURNED_AWAY
from services.scheduler.app.queue import Ready, ReadyIndex
from services.scheduler.app.usage import Usage
from services.scheduler.domain.ticket import Key, Ticket

FIRST = frozenset({1, 4})
"""Interactive and approval_resume."""


@dataclass(slots=True)
class WaitingRoom:
    """What waits at one process, by tenant."""

    ready: ReadyIndex
    usage: Usage
    _aside: Mapping[str, int] = field(default_factory=dict)

    def count_aside(self, places: Iterable[Collection[Ready]]) -> None:
        """Counts what is held back or parked, now and then: it changes little between."""
        counts: dict[str, int] = {}
        for place in places:
            for ready in place:
                tenant = ready.candidate.tenant
                counts[tenant] = counts.get(tenant, 0) + 1
        self._aside = counts

    def here(self, tenant: str) -> int:
        """Tickets that wait at this process."""
        queue = self.ready.queues.get(tenant)
        return (queue.waiting if queue else 0) + self._aside.get(tenant, 0)

    def report(self) -> dict[str, int]:
        """What is said to other leaders: tenants of which a hundredth of their bound waits here, or more."""
        counts = {tenant: self.here(tenant) for tenant in {*self.ready.queues, *self._aside}}
        return {name: count for name, count in counts.items() if count * 100 >= self.usage.decided.most_waiting(name)}

    def turn_away(self, tickets: Iterable[Ticket], knows: Collection[Key]) -> dict[Key, str]:
        """Why which of these new tickets are not taken now."""
        waiting: dict[str, int] = {}
        away: dict[Key, str] = {}
        for ticket in tickets:
            if ticket.key in knows:
                continue
            tenant = ticket.tenant
            if tenant not in waiting:
                waiting[tenant] = self.here(tenant) + self.usage.waiting_elsewhere(tenant)
            bound = self.usage.decided.most_waiting(tenant)
            if waiting[tenant] < (2 * bound if ticket.run_class in FIRST else bound):
                waiting[tenant] += 1
            else:
                away[ticket.key] = full(tenant, bound)
                TICKETS_TURNED_AWAY.labels(tenant).inc()
        return away


def full(tenant: str, bound: int) -> str:
    """Why a ticket must come again: the same words for all of a tenant, by which its sender takes them together."""
    return f"tenant {tenant} has {bound} tickets waiting, as many as it may (`runway share put --most-waiting`)"
