"""Authoritative for what recorded tickets would have become under other shares, bounds or capacity: the planner itself, on a
virtual clock. Pure: the same tickets and the same setting give the same answer.

A ticket is ready when it was recorded ready; where it followed another one of its run, as long after that one's end as it did
then, so a run that starts later goes on later. It takes as long as it took. Ends and readiness within a tick are taken
together, then one cycle plans, as the desk of claims does.

Can go wrong: believing it to the millisecond. Workers are pools of slots that carry every handler, attempts take as long as
they took elsewhere, and nobody retries differently. What a pool has besides slots lies in one heap, though its workers' may be
in pieces. What it shows is who waits for whom.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from libs.kernel.values import value
from services.scheduler.domain.lines import Candidate, TenantQueue
from services.scheduler.domain.planner import PATIENCE_MS, Standing, plan
from services.scheduler.domain.polls import Poll
from services.scheduler.domain.rank import rank_ms
from services.scheduler.domain.resources import Amounts, Capacity
from services.scheduler.domain.shares import Meter, Part, Policy, Project, Used, user_of

NEVER = -1
ANY = "*"
"""The one handler of a replay: every pool carries every handler, so that lines differ by labels only."""


@value(frozen=True, slots=True)
class Item:
    """A ticket to replay. Times in milliseconds, on any common clock."""

    run: str
    tenant: str
    project: str
    run_class: int
    priority: int
    deadline_ms: int
    requires: frozenset[str]
    ready_ms: int
    duration_ms: int
    again: bool = False
    """Whether its run had begun before."""
    follows: int = NEVER
    """The place of the ticket whose end it waited for; `gap_ms` is how long after that it was ready."""
    gap_ms: int = 0
    resources: Amounts = ()
    """What it takes of its worker besides a slot."""
    user: str = ""
    """Who launched its run."""


@value(frozen=True, slots=True)
class Pool:
    """Slots of workers alike, and what they have besides; without a tenant they are shared."""

    tenant: str
    labels: frozenset[str]
    slots: int
    amounts: Amounts = ()


@value(frozen=True, slots=True)
class Setting:
    """Under what tickets are replayed."""

    pools: Sequence[Pool]
    policy: Policy = field(default_factory=Policy)
    parts: Mapping[str, Part] = field(default_factory=dict)
    projects: Mapping[Project, Part] = field(default_factory=dict)
    tick_ms: int = 20


@value(frozen=True, slots=True)
class Replayed:
    """By place of the ticket: when it was ready and when it started; NEVER: it did not."""

    ready_ms: Sequence[int]
    started_ms: Sequence[int]
    cycles: int


def replay(items: Sequence[Item], setting: Setting) -> Replayed:
    """Every ticket, until nothing moves any more."""
    return _World(items, setting).run()


@dataclass(slots=True)
class _World:
    items: Sequence[Item]
    setting: Setting
    now_ms: int = 0
    cycles: int = 0
    ready_ms: list[int] = field(default_factory=list)
    started_ms: list[int] = field(default_factory=list)
    queues: dict[str, TenantQueue] = field(default_factory=dict)
    meters: dict[str, Meter] = field(default_factory=dict)
    leases: dict[Project, int] = field(default_factory=dict)
    shared: dict[int, int] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    amounts: list[dict[str, int]] = field(default_factory=list)
    """What is left of each pool besides slots."""
    capacity: Capacity = field(default_factory=Capacity)
    begun: set[str] = field(default_factory=set)
    coming: list[tuple[int, int]] = field(default_factory=list)
    """(when, place) of tickets that become ready."""
    ending: list[tuple[int, int, int]] = field(default_factory=list)
    """(when, place, pool) of attempts that live."""
    followers: dict[int, list[int]] = field(default_factory=dict)
    waiting: dict[UUID, Candidate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ready_ms = [NEVER] * len(self.items)
        self.started_ms = [NEVER] * len(self.items)
        self.free = [pool.slots for pool in self.setting.pools]
        self.amounts = [dict(pool.amounts) for pool in self.setting.pools]
        self.capacity = Capacity.of((pool.slots, pool.amounts) for pool in self.setting.pools if not pool.tenant)
        for place, item in enumerate(self.items):
            if item.follows == NEVER:
                self.coming.append((item.ready_ms, place))
            else:
                self.followers.setdefault(item.follows, []).append(place)
        heapq.heapify(self.coming)

    def run(self) -> Replayed:
        """Tick after tick."""
        tick = self.setting.tick_ms
        while self.coming or self.ending:
            soonest = min(heap[0][0] for heap in (self.coming, self.ending) if heap)
            self.now_ms = max(self.now_ms, -(-soonest // tick) * tick)
            self._end()
            self._arrive()
            if self.waiting and any(self.free):
                self._cycle()
        return Replayed(self.ready_ms, self.started_ms, self.cycles)

    def _end(self) -> None:
        while self.ending and self.ending[0][0] <= self.now_ms:
            at_ms, place, pool = heapq.heappop(self.ending)
            item = self.items[place]
            self.free[pool] += 1
            self._count(item, pool, -1)
            for following in self.followers.pop(place, ()):
                heapq.heappush(self.coming, (at_ms + self.items[following].gap_ms, following))

    def _arrive(self) -> None:
        while self.coming and self.coming[0][0] <= self.now_ms:
            at_ms, place = heapq.heappop(self.coming)
            item = self.items[place]
            self.ready_ms[place] = at_ms
            rank = rank_ms(
                enqueued_ms=at_ms,
                run_class=item.run_class,
                priority=item.priority,
                deadline_ms=item.deadline_ms,
                started=item.again or item.run in self.begun,
            )
            key = (UUID(int=place), "")
            user = item.user if user_of(item.tenant, item.user) in self.setting.projects else ""
            ticket = Candidate(
                key,
                item.tenant,
                item.project,
                item.run_class,
                ANY,
                item.requires,
                rank,
                resources=item.resources,
                user=user,
            )
            self.waiting[key[0]] = ticket
            queue = self.queues.get(item.tenant)
            if queue is None:
                queue = self.queues[item.tenant] = TenantQueue()
            queue.add(ticket)

    def _cycle(self) -> None:
        """One plan of the real planner; what it grants starts now."""
        self.cycles += 1
        half_life_ms = self.setting.policy.half_life_ms
        polls = [
            Poll(
                number,
                pool.tenant,
                "",
                frozenset((ANY,)),
                pool.labels,
                self.free[number],
                free=tuple(sorted(self.amounts[number].items())),
                total=pool.amounts,
            )
            for number, pool in enumerate(self.setting.pools)
            if self.free[number]
        ]
        used = {
            name: Used(meter.running, meter.now(self.now_ms, half_life_ms), extra=meter.extra)
            for name in self.queues
            if (meter := self.meters.get(name)) is not None
        }
        setting = self.setting
        standing = Standing(
            setting.policy,
            setting.parts,
            setting.projects,
            used,
            self.leases,
            self.shared,
            capacity=self.capacity,
            overdue_ms=self.now_ms - PATIENCE_MS,
        )
        for grant in plan(polls, self.queues, standing):
            ticket = self.waiting.pop(grant.key[0])
            queue = self.queues[ticket.tenant]
            queue.remove(ticket)
            if not queue.waiting:
                del self.queues[ticket.tenant]
            self._start(grant.key[0].int, grant.poll)

    def _start(self, place: int, pool: int) -> None:
        item = self.items[place]
        self.started_ms[place] = self.now_ms
        self.begun.add(item.run)
        self.free[pool] -= 1
        self._count(item, pool, 1)
        heapq.heappush(self.ending, (self.now_ms + item.duration_ms, place, pool))

    def _count(self, item: Item, pool: int, by: int) -> None:
        meter = self.meters.get(item.tenant)
        if meter is None:
            meter = self.meters[item.tenant] = Meter(at_ms=self.now_ms)
        shared = not self.setting.pools[pool].tenant
        weight = self.capacity.weight(item.resources) if shared and item.resources else 1.0
        entering = weight if by > 0 else 0
        meter.move(by, self.now_ms, self.setting.policy, entering=entering, extra=by * (weight - 1.0))
        for bound in ((item.tenant, item.project), user_of(item.tenant, item.user)):
            self.leases[bound] = self.leases.get(bound, 0) + by
        for name, amount in item.resources:
            self.amounts[pool][name] -= by * amount
        if shared:
            self.shared[item.run_class] = self.shared.get(item.run_class, 0) + by
