"""Authoritative for who gets what: one claim cycle, from waiting polls and waiting tickets to a plan. Pure; commits nothing.

The cycle: (1) interactive tickets take what is left of the reserve; (2) all tickets take the rest, tenants by their claim
(domain/shares.py), a tenant's own by rank (domain/rank.py), within the quotas of tenants, projects and users; other classes
leave the reserve alone, and migrations stay under their cap; (3) migrations borrow what is idle, without the reserve. The
reserve and the cap are of *shared* capacity: what a tenant's own workers give is its own. A worker gets only tickets of its
tenant (and of its key's project, where the key is bound to one), or any tenant's where it is shared; with its handlers,
whose labels it has. A tenant's own workers come before shared ones, the worker that had the step before comes before
others, else the one with the most free slots, so that work spreads.

An answer is bounded in bytes as well: a poll takes no ticket beyond what is left of its room, but always a first one.

A ticket that takes more of a worker than a slot (domain/resources.py) goes only where all of it is left; else others that take
less pass it. One that has waited for `PATIENCE_MS` by its rank is passed no longer: at its tenant's turn what it takes is kept
for it at the worker that comes nearest, of which nothing more is given away until it fits there. A lease weighs in its tenant's
claim as many slots as what it takes is of all.

A ticket that may call what is bounded outside is granted only while the bucket would have a call for it (domain/buckets.py).
One that waits for many calls is passed by those that take fewer, no longer than `PATIENCE_MS` by those of its own tenant.

Can go wrong: tickets that nobody fits, or a quota of nothing. They stay.
"""

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from libs.kernel.values import value
from services.scheduler.domain.buckets import EMPTY, Allowance
from services.scheduler.domain.lines import Candidate, Head, Line, TenantQueue, WaitingLine
from services.scheduler.domain.polls import NO_BOUND, Group, Poll, Slots, fits
from services.scheduler.domain.rank import INTERACTIVE, MIGRATION
from services.scheduler.domain.resources import UNKNOWN, Amounts, Capacity
from services.scheduler.domain.shares import NOTHING, Part, Policy, Project, Used, claim
from services.scheduler.domain.ticket import Key

PATIENCE_MS = 60_000
"""A ticket ranked so long ago is passed no longer by others that take less."""


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
    capacity: Capacity = UNKNOWN
    """What shared workers have, for what leases weigh."""
    overdue_ms: int = -NO_BOUND
    """Tickets ranked before then are passed no longer."""


def plan(polls: Sequence[Poll], queues: Mapping[str, TenantQueue], standing: Standing | None = None) -> list[Grant]:
    """Who gets what. No ticket twice, no poll more than its slots, nothing that does not fit. `queues` are only read."""
    return _Cycle(polls, queues, standing or Standing()).run()


@value(frozen=True, slots=True)
class Played:
    """A plan, and what it left: how a cycle ended, for whoever explains it."""

    grants: Sequence[Grant]
    free: Mapping[int, int]
    """Slots left, by poll."""
    amounts: Mapping[int, Mapping[str, int]]
    """What is left besides slots, by poll, where there is something: without what is kept for tickets that waited long."""
    without_room: Collection[Key]
    """Tickets passed over because no poll that had a slot for them had room."""
    others_left: int
    """Shared slots left to classes that the reserve is not for."""
    migration_left: int
    tenant_left: Mapping[str, int]
    project_left: Mapping[Project, int]


def play(polls: Sequence[Poll], queues: Mapping[str, TenantQueue], standing: Standing) -> Played:
    """The plan that `plan` makes, with its end."""
    return _Cycle(polls, queues, standing).played()


@dataclass(slots=True)
class _Waiting:
    """A line during a cycle."""

    line: Line
    tickets: WaitingLine
    own: "Group"
    shared: "Group"
    weight: float = 1.0
    """What a lease on a shared worker weighs, in slots."""
    at: int = 0
    kept: bool = False
    """Whether something is kept for it."""

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


class _Cycle:
    """One plan."""

    def __init__(self, polls: Sequence[Poll], queues: Mapping[str, TenantQueue], standing: Standing) -> None:
        self._standing = standing
        self._slots = Slots(polls)
        self._grants: list[Grant] = []
        self._without_room: list[Key] = []
        self._by_handler: dict[tuple[str, str], list[Poll]] = {}
        for poll in polls:
            for handler in poll.handlers:
                self._by_handler.setdefault((poll.tenant, handler), []).append(poll)
        self._have_own = {poll.tenant for poll in polls}
        self._allowance = self._standing.allowance
        self._bound = any(poll.project for poll in polls)  # else a group serves all projects
        self._nobody = Group((), self._slots)
        self._groups: dict[tuple[str, str, str, frozenset[str], Amounts], Group] = {}
        self._tenants = [self._tenant(name, queue) for name, queue in sorted(queues.items())]
        self._project_left = {
            project: max(0, part.most_leases - standing.project_leases.get(project, 0))
            for project, part in standing.projects.items()
            if part.most_leases is not None
        }
        held = standing.shared_leases
        capacity = sum(held.values()) + sum(poll.slots for poll in polls if not poll.tenant)
        reserve = standing.policy.reserve(capacity)
        self._reserve_left = reserve - held.get(INTERACTIVE, 0)
        self._others_left = capacity - reserve - sum(count for run_class, count in held.items() if run_class != INTERACTIVE)
        self._migration_left = capacity * standing.policy.migration_permille // 1000 - held.get(MIGRATION, 0)

    def _tenant(self, name: str, queue: TenantQueue) -> _Tenant:
        part = self._standing.parts.get(name) or Part()
        used = self._standing.used.get(name, NOTHING)
        left = NO_BOUND if part.most_leases is None else max(0, part.most_leases - used.running)
        return _Tenant(name, used.held, used.average, max(1, part.weight), left, queue)

    def _look(self, tenant: _Tenant, tickets: WaitingLine) -> _Waiting:
        """A line as the cycle left it."""
        waiting = tenant.lines.get(id(tickets))
        if waiting is None:
            line = tickets.line
            own, shared = self._group(line.tenant, line), self._group("", line)
            weight = self._standing.capacity.weight(line.resources) if line.resources else 1.0
            waiting = tenant.lines[id(tickets)] = _Waiting(line, tickets, own, shared, weight)
        return waiting

    def _group(self, tenant: str, line: Line) -> Group:
        polls = self._by_handler.get((tenant, line.handler))
        if not polls:
            return self._nobody
        name = (tenant, line.project if self._bound else "", line.handler, line.requires, line.resources)
        group = self._groups.get(name)
        if group is None:
            able = [poll.number for poll in polls if fits(poll, line)]
            group = self._groups[name] = Group(able, self._slots, line.resources)
        return group

    def run(self) -> list[Grant]:
        """The three rounds."""
        if self._reserve_left > 0:
            self._round(INTERACTIVE, lambda _: self._reserve_left > 0)
        self._round(None, self._may_share)
        self._round(MIGRATION, lambda _: self._others_left > 0)
        return self._grants

    def played(self) -> Played:
        """The plan with its end."""
        grants, slots = self.run(), self._slots
        tenants = {tenant.name: tenant.left for tenant in self._tenants}
        left = self._others_left, self._migration_left
        return Played(grants, slots.free, slots.amounts, self._without_room, *left, tenants, self._project_left)

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
            shares = may_share(line.run_class)
            open_ = waiting.own.free() or (shares and waiting.shared.free())
            if ticket is None or not open_ or self._spent(line) or self._dry(line):
                if line.resources and ticket is not None and not open_:
                    self._keep(waiting, ticket, shares)
                elif line.wants and ticket is not None and open_ and self._overdue(ticket) and not self._spent(line):
                    self._allowance.keep(line.tenant, line.calls, line.wants)
                heapq.heappop(heads)
                continue
            chosen = waiting.own.best(ticket)
            if chosen is None and shares:
                chosen = waiting.shared.best(ticket)
            waiting.at += 1  # granted, or too large for what room is left: the next may be smaller
            if chosen is not None:
                self._grant(tenant, line, ticket, chosen, waiting.weight)
            else:
                self._without_room.append(ticket.key)
            following = waiting.head()
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following.place, waiting.tickets))
            if chosen is not None:
                return

    def _keep(self, waiting: _Waiting, ticket: Candidate, shares: bool) -> None:
        """What a ticket takes that waited long is kept for it, where some worker has it but not free."""
        if waiting.kept or not self._overdue(ticket):
            return
        if self._spent(waiting.line) or self._dry(waiting.line):
            return
        members = waiting.own.members or (waiting.shared.members if shares else ())
        chosen = self._slots.nearest(members, ticket.resources)
        if chosen is not None:
            waiting.kept = True
            self._slots.keep(chosen, ticket.resources)

    def _overdue(self, ticket: Candidate) -> bool:
        """Whether it has waited so long that it is passed no longer."""
        return ticket.rank_ms < self._standing.overdue_ms

    def _spent(self, line: Line) -> bool:
        """Whether its project or user has as much as it may."""
        return bool(self._project_left) and any(self._project_left.get(bound, 1) <= 0 for bound in line.bounds)

    def _dry(self, line: Line) -> bool:
        """Whether its calls would find a bucket empty."""
        if not line.calls or not self._allowance:
            return False
        return self._allowance.dry(line.tenant, line.calls, line.wants) is not None

    def _grant(self, tenant: _Tenant, line: Line, ticket: Candidate, chosen: int, weight: float) -> None:
        self._slots.take(chosen, ticket)
        self._grants.append(Grant(chosen, ticket.key))
        if ticket.calls and self._allowance:
            self._allowance.take(ticket.calls, ticket.wants)
        shared = not self._slots.polls[chosen].tenant
        tenant.running += weight if shared else 1
        tenant.left -= 1
        for bound in line.bounds if self._project_left else ():
            if bound in self._project_left:
                self._project_left[bound] -= 1
        if not shared:
            return
        if ticket.run_class == INTERACTIVE:
            self._reserve_left -= 1
            return
        self._others_left -= 1
        if ticket.run_class == MIGRATION:
            self._migration_left -= 1
