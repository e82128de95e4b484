"""Authoritative for what a worker that waits has to give, and for what of it is left during a claim cycle. Pure.

Slots, room in the answer, and amounts of what else steps take. All of it only falls during a cycle: an entry that promises
more than is left is corrected when it comes up. Can go wrong: a poll that gives what it has not. Whoever takes asks first.
"""

import heapq
from collections.abc import Collection, Iterable, Sequence

from libs.kernel.values import value
from services.scheduler.domain.lines import Candidate, Line
from services.scheduler.domain.resources import Amounts, covers

NO_BOUND = 2**62


@value(frozen=True, slots=True)
class Poll:
    """A worker process that waits, with free slots. Without a tenant it is shared: it serves every one."""

    number: int
    tenant: str
    project: str
    handlers: frozenset[str]
    labels: frozenset[str]
    slots: int
    room_bytes: int = NO_BOUND
    """What its leases may weigh together; a first one may weigh more."""
    worker_id: str = ""
    free: Amounts = ()
    """What is free of its worker besides slots."""
    total: Amounts = ()
    """What its worker has in all, at least what is free."""


def fits(poll: Poll, line: Line) -> bool:
    """Whether this worker may run this line's tickets, once enough of it is free."""
    return (
        poll.tenant in ("", line.tenant)
        and (not poll.project or poll.project == line.project)
        and line.handler in poll.handlers
        and line.requires <= poll.labels
        and (not line.resources or covers(dict(poll.total), line.resources))
    )


class Slots:
    """Free slots of all polls, as the cycle takes them."""

    def __init__(self, polls: Sequence[Poll]) -> None:
        self.polls = {poll.number: poll for poll in polls}
        self.free = {poll.number: poll.slots for poll in polls}
        self.room = {poll.number: poll.room_bytes for poll in polls}
        self.left = sum(self.free.values())
        self.amounts = {poll.number: dict(poll.free) for poll in polls if poll.free}
        self.kept: set[int] = set()
        """Polls of which something is kept for one ticket."""
        self.of_worker: dict[str, list[int]] = {}
        for poll in polls:
            if poll.worker_id:
                self.of_worker.setdefault(poll.worker_id, []).append(poll.number)

    def holds(self, number: int, ticket: Candidate) -> bool:
        """Whether this poll has a slot, room and what the ticket takes."""
        free = self.free[number]
        if not free or not (ticket.size_bytes <= self.room[number] or free == self.polls[number].slots):
            return False
        return not ticket.resources or self.has(number, ticket.resources)

    def has(self, number: int, need: Amounts) -> bool:
        """Whether this much is left besides slots."""
        left = self.amounts.get(number)
        return left is not None and covers(left, need)

    def take(self, number: int, ticket: Candidate) -> None:
        """A slot, room and amounts, for good."""
        self.free[number] -= 1
        self.left -= 1
        self.room[number] -= ticket.size_bytes
        if ticket.resources:
            left = self.amounts[number]
            for name, amount in ticket.resources:
                left[name] -= amount

    def keep(self, number: int, need: Amounts) -> None:
        """Gives no more of these away."""
        left = self.amounts.get(number, {})
        left.update(dict.fromkeys((name for name, _ in need), 0))
        self.kept.add(number)

    def nearest(self, members: Collection[int], need: Amounts) -> int | None:
        """The poll that lacks least of it, where nothing is kept yet; None where there is none."""
        able = [number for number in members if number not in self.kept]
        return min(able, key=lambda number: (self._lacks(number, need), self.polls[number].worker_id, number), default=None)

    def _lacks(self, number: int, need: Amounts) -> float:
        left = self.amounts.get(number, {})
        return sum(max(0, amount - left.get(name, 0)) / amount for name, amount in need)


class Group:
    """Polls that a line's tickets fit, the freest first. Slots and amounts only fall during a cycle: an entry that promises
    more slots than are left is corrected when it comes up, one without what the line takes goes."""

    def __init__(self, numbers: Iterable[int], slots: Slots, need: Amounts = ()) -> None:
        self._slots = slots
        self._need = need
        self._heap = [(-slots.free[number], number) for number in numbers]
        heapq.heapify(self._heap)
        self.members = frozenset(number for _, number in self._heap)

    def free(self) -> bool:
        """Whether some member has a slot, and what the line takes."""
        heap, free, need = self._heap, self._slots.free, self._need
        while heap:
            promised, number = heap[0]
            left = free[number]
            if need and not self._slots.has(number, need):
                heapq.heappop(heap)
                continue
            if left == -promised:
                return True
            if left:
                heapq.heapreplace(heap, (-left, number))
            else:
                heapq.heappop(heap)
        return False

    def best(self, ticket: Candidate) -> int | None:
        """The poll that should have it; None where none has a slot with room for it."""
        if not self.free():
            return None
        slots = self._slots
        for number in slots.of_worker.get(ticket.last_worker, ()) if ticket.last_worker else ():
            if number in self.members and slots.holds(number, ticket):
                return number
        first = self._heap[0][1]
        if slots.holds(first, ticket):
            return first
        able = [number for _, number in self._heap if slots.holds(number, ticket)]
        return max(able, key=lambda number: (slots.free[number], -number)) if able else None
