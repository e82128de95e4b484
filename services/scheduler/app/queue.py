"""The tickets that may be granted, in memory. Authoritative for nothing: rows decide.

Can go wrong: a ticket that is in one index and not in another. Both ways in and out are here.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar
from uuid import UUID

from libs.kernel.values import value
from services.scheduler.domain.lines import Candidate, TenantQueue
from services.scheduler.domain.polls import Poll, fits
from services.scheduler.domain.ticket import Key, TicketRow

T = TypeVar("T")


@value(frozen=True, slots=True)
class Ready:
    """A ticket that may be granted, and what the grant compares."""

    candidate: Candidate
    shard: int
    ticket_sequence: int
    lease_epoch: int
    row: TicketRow
    since_ms: int


class ReadyIndex:
    """Ready tickets by step, and in their tenants' queues."""

    def __init__(self) -> None:
        self._by_key: dict[Key, Ready] = {}
        self._queues: dict[str, TenantQueue] = {}
        self._of_run: dict[UUID, int] = {}
        self._of_handler: dict[str, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Ready]:
        return iter(self._by_key.values())

    @property
    def queues(self) -> Mapping[str, TenantQueue]:
        """By tenant."""
        return self._queues

    def has_run(self, run_id: UUID) -> bool:
        """Whether some ticket of a run is here."""
        return run_id in self._of_run

    def get(self, key: Key) -> Ready | None:
        """A ticket that is here."""
        return self._by_key.get(key)

    def add(self, ready: Ready) -> None:
        """Puts a ticket in its place; a former one of the step goes."""
        candidate = ready.candidate
        self.remove(candidate.key)
        self._by_key[candidate.key] = ready
        run_id = candidate.key[0]
        self._of_run[run_id] = self._of_run.get(run_id, 0) + 1
        queue = self._queues.get(candidate.tenant)
        if queue is None:
            queue = self._queues[candidate.tenant] = TenantQueue()
        if queue.add(candidate):
            by_tenant = self._of_handler.setdefault(candidate.handler, {})
            by_tenant[candidate.tenant] = by_tenant.get(candidate.tenant, 0) + 1

    def remove(self, key: Key) -> Ready | None:
        """Takes a ticket out."""
        ready = self._by_key.pop(key, None)
        if ready is None:
            return None
        _count_down(self._of_run, key[0])
        candidate = ready.candidate
        queue = self._queues[candidate.tenant]
        if queue.remove(candidate):
            by_tenant = self._of_handler[candidate.handler]
            _count_down(by_tenant, candidate.tenant)
            if not by_tenant:
                del self._of_handler[candidate.handler]
        if not queue.waiting:
            del self._queues[candidate.tenant]
        return ready

    def for_polls(self, polls: Collection[Poll]) -> dict[str, TenantQueue]:
        """The snapshot of a claim cycle: queues with tickets for handlers of these polls, as they are. Whoever plans with them
        changes nothing."""
        names: set[str] = set()
        seen: set[tuple[str, frozenset[str]]] = set()
        for poll in polls:
            kind = (poll.tenant, poll.handlers)
            if kind in seen:
                continue
            seen.add(kind)
            for handler in poll.handlers:
                by_tenant = self._of_handler.get(handler)
                if by_tenant:
                    names.update(by_tenant if not poll.tenant else {poll.tenant} & by_tenant.keys())
        return {name: self._queues[name] for name in names}

    def serves(self, polls: Collection[Poll]) -> bool:
        """Whether some ticket here fits some of these polls."""
        kinds = {(poll.tenant, poll.project, poll.handlers, poll.labels, poll.total): poll for poll in polls}.values()
        queues = self.for_polls(kinds).values()
        return any(fits(poll, line) for queue in queues for line in queue.lines for poll in kinds)

    def by_class(self) -> Mapping[int, int]:
        """How many tickets of each class wait."""
        counts: Counter[int] = Counter()
        for queue in self._queues.values():
            for line, waiting in queue.lines.items():
                counts[line.run_class] += len(waiting)
        return counts


def _count_down(counts: dict[T, int], name: T) -> None:
    left = counts[name] - 1
    if left:
        counts[name] = left
    else:
        del counts[name]
