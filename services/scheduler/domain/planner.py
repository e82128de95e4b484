"""Authoritative for who gets what: one claim cycle, from waiting polls and waiting tickets to a plan. Pure; commits nothing.

The cycle: (1) interactive tickets take what is left of the reserve; (2) all tickets take the rest, tenants by their claim
(domain/shares.py), a tenant's own by rank (domain/rank.py), within the quotas of tenants and projects; other classes leave
the reserve alone, and migrations stay under their cap; (3) migrations borrow what is idle, without the reserve. The reserve
and the cap are of *shared* capacity: what a tenant's own workers give is its own. A worker gets only tickets of its tenant
(and of its key's project, where the key is bound to one), or any tenant's where it is shared; with its handlers, whose
labels it has. A tenant's own workers come before shared ones, the worker that had the step before comes before others, else
the one with the most free slots, so that work spreads.

An answer is bounded in bytes as well: a poll takes no ticket beyond what is left of its room, but always a first one.

A ticket that may call what is bounded outside is granted only while the bucket would have a call for it (domain/buckets.py).

Can go wrong: tickets that nobody fits, or a quota of nothing. They stay.
"""

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from libs.kernel.values import value
from services.scheduler.domain.buckets import EMPTY, Allowance
from services.scheduler.domain.lines import Candidate, Head, Line, TenantQueue, WaitingLine
from services.scheduler.domain.rank import INTERACTIVE, MIGRATION
from services.scheduler.domain.shares import NOTHING, Part, Policy, Project, Used, claim
from services.scheduler.domain.ticket import Key

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


@value(frozen=True, slots=True)
class Grant:
    """A ticket for a poll."""

    poll: int
    key: Key


@value(frozen=True, slots=True)
class Standing:
    """Who may take how much: what is decided, and what is used, everywhere. Shared capacity is what this process can give."""

    policy: Policy = field(default_factory=Policy)
    parts: Mapping[str, Part] = field(default_factory=dict)
    projects: Mapping[Project, Part] = field(default_factory=dict)
    used: Mapping[str, Used] = field(default_factory=dict)
    project_leases: Mapping[Project, int] = field(default_factory=dict)
    shared_leases: Mapping[int, int] = field(default_factory=dict)
    """Live leases on shared workers of this process, by class."""
    allowance: Allowance = EMPTY
    """Counts down as the cycle grants: of one cycle."""


def fits(poll: Poll, line: Line) -> bool:
    """Whether this worker may run this line's tickets."""
    return (
        poll.tenant in ("", line.tenant)
        and (not poll.project or poll.project == line.project)
        and line.handler in poll.handlers
        and line.requires <= poll.labels
    )


def plan(polls: Sequence[Poll], queues: Mapping[str, TenantQueue], standing: Standing | None = None) -> list[Grant]:
    """Who gets what. No ticket twice, no poll more than its slots, nothing that does not fit. `queues` are only read."""
    return _Cycle(polls, queues, standing or Standing()).run()


@value(frozen=True, slots=True)
class Played:
    """A plan, and what it left: how a cycle ended, for whoever explains it."""

    grants: Sequence[Grant]
    free: Mapping[int, int]
    """Slots left, by poll."""
    without_room: Collection[Key]
    """Tickets passed over because no poll that had a slot for them had room."""
    others_left: int
    """Shared slots left to classes that the reserve is not for."""
    migration_left: int
    tenant_left: Mapping[str, int]
    project_left: Mapping[Project, int]


def play(polls: Sequence[Poll], queues: Mapping[str, TenantQueue], standing: Standing) -> Played:
    """The plan that `plan` makes, with its end."""
    cycle = _Cycle(polls, queues, standing)
    return Played(cycle.run(), *cycle.left())


@dataclass(slots=True)
class _Waiting:
    """A line during a cycle."""

    line: Line
    tickets: WaitingLine
    own: "_Group"
    shared: "_Group"
    at: int = 0

    def head(self) -> Candidate | None:
        """Its first ticket that is not granted."""
        return self.tickets.at(self.at)


@dataclass(slots=True)
class _Tenant:
    """A tenant during a cycle."""

    name: str
    running: float
    average: float
    weight: int
    left: int
    queue: TenantQueue
    lines: dict[int, _Waiting] = field(default_factory=dict)
    """Lines that the cycle has looked at, by identity."""

    def claim(self) -> float:
        return claim(self.running, self.average, self.weight)


class _Slots:
    """Free slots of all polls, as the cycle takes them."""

    def __init__(self, polls: Sequence[Poll]) -> None:
        self.polls = {poll.number: poll for poll in polls}
        self.free = {poll.number: poll.slots for poll in polls}
        self.room = {poll.number: poll.room_bytes for poll in polls}
        self.left = sum(self.free.values())
        self.of_worker: dict[str, list[int]] = {}
        for poll in polls:
            if poll.worker_id:
                self.of_worker.setdefault(poll.worker_id, []).append(poll.number)

    def holds(self, number: int, size_bytes: int) -> bool:
        """Whether this poll has a slot and room."""
        free = self.free[number]
        return free > 0 and (size_bytes <= self.room[number] or free == self.polls[number].slots)

    def take(self, number: int, size_bytes: int) -> None:
        self.free[number] -= 1
        self.left -= 1
        self.room[number] -= size_bytes


class _Group:
    """Polls that a line's tickets fit, the freest first. Free slots only fall during a cycle: an entry that promises
    more than is left is corrected when it comes up."""

    def __init__(self, numbers: Iterable[int], slots: _Slots) -> None:
        self._slots = slots
        self._heap = [(-slots.free[number], number) for number in numbers]
        heapq.heapify(self._heap)
        self.members = frozenset(number for _, number in self._heap)

    def free(self) -> bool:
        """Whether some member has a slot."""
        heap, free = self._heap, self._slots.free
        while heap:
            promised, number = heap[0]
            left = free[number]
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
        slots, size = self._slots, ticket.size_bytes
        for number in slots.of_worker.get(ticket.last_worker, ()) if ticket.last_worker else ():
            if number in self.members and slots.holds(number, size):
                return number
        first = self._heap[0][1]
        if slots.holds(first, size):
            return first
        able = [number for _, number in self._heap if slots.holds(number, size)]
        return max(able, key=lambda number: (slots.free[number], -number)) if able else None


class _Cycle:
    """One plan."""

    def __init__(self, polls: Sequence[Poll], queues: Mapping[str, TenantQueue], standing: Standing) -> None:
        self._standing = standing
        self._slots = _Slots(polls)
        self._grants: list[Grant] = []
        self._without_room: list[Key] = []
        self._by_handler: dict[tuple[str, str], list[Poll]] = {}
        for poll in polls:
            for handler in poll.handlers:
                self._by_handler.setdefault((poll.tenant, handler), []).append(poll)
        self._have_own = {poll.tenant for poll in polls}
        self._allowance = self._standing.allowance
        self._bound = any(poll.project for poll in polls)  # else a group serves all projects
        self._nobody = _Group((), self._slots)
        self._groups: dict[tuple[str, str, str, frozenset[str]], _Group] = {}
        self._tenants = [self._tenant(name, queue) for name, queue in sorted(queues.items())]
        self._project_left = {
            project: max(0, part.most_leases - standing.project_leases.get(project, 0))
            for project, part in standing.projects.items()
            if part.most_leases is not None
        }
        held = standing.shared_leases
        capacity = sum(held.values()) + sum(poll.slots for poll in polls if not poll.tenant)
        reserve = capacity * standing.policy.reserve_permille // 1000
        self._reserve_left = reserve - held.get(INTERACTIVE, 0)
        self._others_left = capacity - reserve - sum(count for run_class, count in held.items() if run_class != INTERACTIVE)
        self._migration_left = capacity * standing.policy.migration_permille // 1000 - held.get(MIGRATION, 0)

    def _tenant(self, name: str, queue: TenantQueue) -> _Tenant:
        part = self._standing.parts.get(name) or Part()
        used = self._standing.used.get(name, NOTHING)
        left = NO_BOUND if part.most_leases is None else max(0, part.most_leases - used.running)
        return _Tenant(name, used.running, used.average, max(1, part.weight), left, queue)

    def _look(self, tenant: _Tenant, tickets: WaitingLine) -> _Waiting:
        """A line as the cycle left it."""
        waiting = tenant.lines.get(id(tickets))
        if waiting is None:
            line = tickets.line
            own = self._group(line.tenant, line.project, line.handler, line.requires)
            shared = self._group("", line.project, line.handler, line.requires)
            waiting = tenant.lines[id(tickets)] = _Waiting(line, tickets, own, shared)
        return waiting

    def _group(self, tenant: str, project: str, handler: str, requires: frozenset[str]) -> _Group:
        polls = self._by_handler.get((tenant, handler))
        if not polls:
            return self._nobody
        name = (tenant, project if self._bound else "", handler, requires)
        group = self._groups.get(name)
        if group is None:
            able = [p.number for p in polls if requires <= p.labels and (not p.project or p.project == project)]
            group = self._groups[name] = _Group(able, self._slots)
        return group

    def run(self) -> list[Grant]:
        """The three rounds."""
        if self._reserve_left > 0:
            self._round(INTERACTIVE, lambda _: self._reserve_left > 0)
        self._round(None, self._may_share)
        self._round(MIGRATION, lambda _: self._others_left > 0)
        return self._grants

    def left(self) -> tuple[Mapping[int, int], Collection[Key], int, int, Mapping[str, int], Mapping[Project, int]]:
        """What is not taken, in the order of `Played`."""
        tenants = {tenant.name: tenant.left for tenant in self._tenants}
        return self._slots.free, self._without_room, self._others_left, self._migration_left, tenants, self._project_left

    def _may_share(self, run_class: int) -> bool:
        """Whether a class may take shared slots in the second round. Once it may not, it may not again."""
        if run_class == INTERACTIVE:
            return True
        return self._others_left > 0 and (run_class != MIGRATION or self._migration_left > 0)

    def _round(self, run_class: int | None, may_share: Callable[[int], bool]) -> None:
        """Tenants by claim, each with its first ticket, until nobody can be given anything. Of one class, or of all."""
        if not self._slots.left:
            return
        turns: list[tuple[float, int]] = [
            (tenant.claim(), number)
            for number, tenant in enumerate(self._tenants)
            if tenant.left > 0 and (run_class is None or run_class in tenant.queue.heads)
        ]
        heapq.heapify(turns)
        heads: dict[int, list[Head]] = {}
        while turns and self._slots.left:
            number = turns[0][1]
            tenant = self._tenants[number]
            mine = heads.get(number)
            if mine is None:
                mine = heads[number] = self._heads(tenant, run_class, may_share)
            self._serve(tenant, mine, may_share)
            if mine and tenant.left > 0:
                heapq.heapreplace(turns, (tenant.claim(), number))
            else:
                heapq.heappop(turns)

    def _heads(self, tenant: _Tenant, run_class: int | None, may_share: Callable[[int], bool]) -> list[Head]:
        """The tenant's lines by their first ticket that is not granted, as a heap: of classes that some poll may take."""
        has_own = tenant.name in self._have_own
        heads = [
            head
            for of_class, mine in tenant.queue.heads.items()
            if (run_class is None or of_class == run_class) and (has_own or may_share(of_class))
            for head in mine
        ]
        if tenant.lines:  # an earlier round was here
            looked = tenant.lines
            moved = [(looked[id(tickets)].head() if id(tickets) in looked else tickets.at(0), tickets) for _, tickets in heads]
            heads = [(head.place, tickets) for head, tickets in moved if head is not None]
        heapq.heapify(heads)
        return heads

    def _serve(self, tenant: _Tenant, heads: list[Head], may_share: Callable[[int], bool]) -> None:
        """One grant to this tenant, or what cannot be served goes from its heads for this round."""
        while heads:
            waiting = self._look(tenant, heads[0][1])
            ticket, line = waiting.head(), waiting.line
            project = (line.tenant, line.project)
            shares = may_share(line.run_class)
            open_ = waiting.own.free() or (shares and waiting.shared.free())
            if ticket is None or not open_ or self._project_left.get(project, 1) <= 0 or self._dry(line):
                heapq.heappop(heads)
                continue
            chosen = waiting.own.best(ticket)
            if chosen is None and shares:
                chosen = waiting.shared.best(ticket)
            waiting.at += 1  # granted, or too large for what room is left: the next may be smaller
            if chosen is not None:
                self._grant(tenant, project, ticket, chosen)
            else:
                self._without_room.append(ticket.key)
            following = waiting.head()
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following.place, waiting.tickets))
            if chosen is not None:
                return

    def _dry(self, line: Line) -> bool:
        """Whether its calls would find a bucket empty."""
        if not line.calls or not self._allowance:
            return False
        return self._allowance.dry(line.tenant, line.calls) is not None

    def _grant(self, tenant: _Tenant, project: Project, ticket: Candidate, chosen: int) -> None:
        self._slots.take(chosen, ticket.size_bytes)
        self._grants.append(Grant(chosen, ticket.key))
        if ticket.calls and self._allowance:
            self._allowance.take(ticket.calls)
        tenant.running += 1
        tenant.left -= 1
        if project in self._project_left:
            self._project_left[project] -= 1
        if self._slots.polls[chosen].tenant:
            return
        if ticket.run_class == INTERACTIVE:
            self._reserve_left -= 1
            return
        self._others_left -= 1
        if ticket.run_class == MIGRATION:
            self._migration_left -= 1
