"""Waiting tickets, in order: lines of those that the same workers may take, and each tenant's lines by their first ticket.
Pure memory.

Authoritative for nothing but order. Can go wrong: a queue of a hundred thousand whose every grant moves the others. What
leaves a line's head only moves its start; what comes and goes elsewhere moves a part of one line; of the other lines,
nothing is touched.
"""

import bisect
from collections.abc import Iterable, Iterator, Mapping

from libs.kernel.values import value
from services.scheduler.domain.buckets import Wants
from services.scheduler.domain.rank import Place
from services.scheduler.domain.resources import Amounts
from services.scheduler.domain.shares import Project, user_of
from services.scheduler.domain.ticket import Key

COMPACT_AT = 64


@value(frozen=True, slots=True)
class Line:
    """Tickets that the same workers may take, and the same rules hold for."""

    tenant: str
    project: str
    run_class: int
    handler: str
    requires: frozenset[str]
    calls: tuple[str, ...] = ()
    """Tools, and models as `model:NAME`, that it may call."""
    resources: Amounts = ()
    """What each takes of its worker besides a slot."""
    user: str = ""
    """Who launched the run, where a bound of his counts; else lines would be as many as users."""
    wants: Wants = ()
    """Calls of which more than one must be to be had."""

    @property
    def bounds(self) -> tuple[Project, ...]:
        """Whose bounds hold for it, besides the tenant's."""
        project = (self.tenant, self.project)
        return (project, user_of(self.tenant, self.user)) if self.user else (project,)


@value(frozen=True, slots=True)
class Candidate:
    """A ready ticket."""

    key: Key
    tenant: str
    project: str
    run_class: int
    handler: str
    requires: frozenset[str]
    rank_ms: int
    size_bytes: int = 0
    """What its lease weighs in an answer."""
    last_worker: str = ""
    """Who had the step before and gave it back; it may still hold what the step had made."""
    calls: tuple[str, ...] = ()
    """Tools, and models as `model:NAME`, that it may call."""
    resources: Amounts = ()
    """What it takes of its worker besides a slot."""
    user: str = ""
    """Who launched the run, where a bound of his counts."""
    wants: Wants = ()
    """Calls of which more than one must be to be had."""

    @property
    def place(self) -> Place:
        """Where it stands."""
        return (self.rank_ms, self.key)

    @property
    def line(self) -> Line:
        """Where it waits."""
        rules = self.calls, self.resources, self.user, self.wants
        return Line(self.tenant, self.project, self.run_class, self.handler, self.requires, *rules)


class WaitingLine:
    """A line's tickets, by place."""

    __slots__ = ("_start", "_tickets", "line")

    def __init__(self, line: Line) -> None:
        self.line = line
        self._tickets: list[Candidate] = []
        self._start = 0

    def __len__(self) -> int:
        return len(self._tickets) - self._start

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._tickets[self._start :])

    def at(self, number: int) -> Candidate | None:
        """The ticket with so many before it."""
        place = self._start + number
        return self._tickets[place] if place < len(self._tickets) else None

    def before(self, place: Place) -> int:
        """How many stand before this place."""
        return bisect.bisect_left(self._tickets, place, lo=self._start, key=_place) - self._start

    def add(self, ticket: Candidate) -> None:
        """In its place."""
        if not self or self._tickets[-1].place < ticket.place:  # what comes is most often the newest
            self._tickets.append(ticket)
        else:
            bisect.insort(self._tickets, ticket, lo=self._start, key=_place)

    def remove(self, ticket: Candidate) -> None:
        """Out of its place."""
        at = bisect.bisect_left(self._tickets, ticket.place, lo=self._start, key=_place)
        if at != self._start:
            del self._tickets[at]
            return
        self._start += 1
        if self._start > COMPACT_AT and self._start * 2 > len(self._tickets):
            del self._tickets[: self._start]
            self._start = 0


def _place(ticket: Candidate) -> Place:
    return ticket.place


Head = tuple[Place, WaitingLine]
"""A line by its first ticket. Places are unique, so lines are never compared."""


class TenantQueue:
    """A tenant's lines, by class, each class by the first tickets of its lines."""

    __slots__ = ("_lines", "heads", "waiting")

    def __init__(self) -> None:
        self._lines: dict[Line, WaitingLine] = {}
        self.heads: dict[int, list[Head]] = {}
        self.waiting = 0

    @property
    def lines(self) -> Mapping[Line, WaitingLine]:
        """Lines that somebody waits in."""
        return self._lines

    def without(self, run_class: int) -> "TenantQueue":
        """The same lines but those of a class, for a plan: only to be read, and as long as this one does not change."""
        others = TenantQueue()
        others.heads = {of_class: heads for of_class, heads in self.heads.items() if of_class != run_class}
        return others

    def add(self, ticket: Candidate) -> bool:
        """A ticket, in its line; whether the line is new."""
        line = ticket.line
        waiting = self._lines.get(line)
        new = waiting is None
        if waiting is None:
            waiting = self._lines[line] = WaitingLine(line)
        first = waiting.at(0)
        if first is None or ticket.place < first.place:
            heads = self.heads.setdefault(line.run_class, [])
            if first is not None:
                _take_out(heads, first.place)
            bisect.insort(heads, (ticket.place, waiting), key=_head_place)
        waiting.add(ticket)
        self.waiting += 1
        return new

    def remove(self, ticket: Candidate) -> bool:
        """Out of its line; whether the line is empty now, and gone."""
        line = ticket.line
        waiting = self._lines[line]
        first = waiting.at(0)
        waiting.remove(ticket)
        self.waiting -= 1
        if first is not None and first.place == ticket.place:
            heads = self.heads[line.run_class]
            _take_out(heads, first.place)
            following = waiting.at(0)
            if following is not None:
                bisect.insort(heads, (following.place, waiting), key=_head_place)
            elif not heads:
                del self.heads[line.run_class]
        if waiting:
            return False
        del self._lines[line]
        return True


def _head_place(head: Head) -> Place:
    return head[0]


def _take_out(heads: list[Head], place: Place) -> None:
    del heads[bisect.bisect_left(heads, place, key=_head_place)]


def queued(tickets: Iterable[Candidate]) -> dict[str, TenantQueue]:
    """Tickets in their tenants' queues."""
    queues: dict[str, TenantQueue] = {}
    for ticket in tickets:
        queues.setdefault(ticket.tenant, TenantQueue()).add(ticket)
    return queues
