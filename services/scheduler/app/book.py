"""The leader's memory: what is ready, what is leased, who waits, and under which epochs this process leads. No I/O.

Authoritative for nothing: every row decides again in its commit. It is rebuilt from the tables when a shard is won and dropped
when it is lost. Can go wrong: memory that outlives leadership. `epoch` answers only while the election's session lives, and
whoever comes back from a commit compares the epoch again before he writes here.
"""

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from libs.kernel.clock import Clock
from libs.kernel.epochs import Mode, StepFence
from libs.kernel.ids import shard_of
from libs.runtime.faults import fault_point
from services.scheduler.app.held import Shelf
from services.scheduler.app.pace import Paces
from services.scheduler.app.queue import Ready, ReadyIndex
from services.scheduler.app.recent import REMEMBERED, Recent
from services.scheduler.app.roll import Heard, Left, has_left, leave, see
from services.scheduler.app.usage import Usage
from services.scheduler.app.waiting_room import WaitingRoom
from services.scheduler.domain.commits import GateState
from services.scheduler.domain.expiry import Hold
from services.scheduler.domain.lease import Lease
from services.scheduler.domain.lines import Candidate
from services.scheduler.domain.rank import rank_ms
from services.scheduler.domain.resources import Capacity
from services.scheduler.domain.shares import Decided, user_of
from services.scheduler.domain.ticket import End, Key, Successor, TicketRow, TicketState
from services.scheduler.ports import Limits

CAPACITY_MS = 60_000
"""A worker heard of since then counts as capacity."""
LEASE_BYTES = 2_048
"""What a lease weighs in an answer without its input: its token and its names."""


def _unlist(index: dict[UUID, set[Key]], name: UUID, key: Key) -> None:
    keys = index.get(name)
    if keys is not None:
        keys.discard(key)
        if not keys:
            del index[name]


@dataclass(slots=True)
class Book:
    """All of it."""

    clock: Clock
    limits: Limits
    alive: Callable[[], bool]
    incarnation: int = 0
    epochs: dict[int, int] = field(default_factory=dict)
    ready: ReadyIndex = field(default_factory=ReadyIndex)
    parked: dict[Key, Ready] = field(default_factory=dict)
    shelf: Shelf = field(default_factory=Shelf)
    leases: dict[Key, Lease] = field(default_factory=dict)
    granting: set[Key] = field(default_factory=set)
    """Tickets whose grant is under way."""
    awaited: set[Key] = field(default_factory=set)
    """Tickets whose end is under way, or whose last end is not acknowledged: looked at again in the table."""
    unsure: set[Key] = field(default_factory=set)
    """Tickets of a commit of which nobody knows, and which may still be under way: looked at behind its locks."""
    warm: Recent = field(default_factory=Recent)
    """Runs whose gate was read in this incarnation."""
    stopped: Recent = field(default_factory=Recent)
    """(step, attempt) that were stopped with their run: told so when they beat again."""
    workers: dict[tuple[str, str], Heard] = field(default_factory=dict)
    left: dict[tuple[str, str], Left] = field(default_factory=dict)
    """Workers that said lately that they claim nothing more, and when: beats that come late make nobody a worker again."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Something may be granted now."""
    hold: Hold = field(default_factory=Hold)
    heard: int = 0
    database_ms: float = 0.0
    birth: int = 0
    """Incarnation in which the database was first used."""
    obey: set[UUID] = field(default_factory=set)
    """Runs whose gate was raised, to be acted upon now."""
    raised: asyncio.Event = field(default_factory=asyncio.Event)
    """`obey` has something."""
    on_deposed: Callable[[], None] = lambda: None
    """Campaigns anew."""
    usage: Usage = field(init=False)
    room: WaitingRoom = field(init=False)
    paces: Paces = field(init=False)
    _successors: "OrderedDict[tuple[bytes, str], tuple[Successor, ...]]" = field(default_factory=OrderedDict)
    _lapses: list[tuple[int, Key]] = field(default_factory=list)
    """When tickets wait for capacity no longer."""
    _of_run: dict[UUID, set[Key]] = field(default_factory=dict)
    _of_claim: dict[UUID, set[Key]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.usage, self.paces = Usage(self.clock), Paces(self.clock)
        self.room = WaitingRoom(self.ready, self.usage)
        self.usage.waiting, self.usage.capacity_now = self.room.report, self.capacity

    def successors(self, digest: bytes, step_key: str) -> tuple[Successor, ...] | None:
        """What follows a step of this workflow version by its success alone; None where no ticket of it told."""
        return self._successors.get((digest, step_key))

    def learn(self, digest: bytes, following: Mapping[str, tuple[Successor, ...]]) -> None:
        """Successors never change; what is forgotten is told again by the next ticket."""
        for step_key, successors in following.items():
            self._successors[(digest, step_key)] = successors
        while len(self._successors) > REMEMBERED:
            self._successors.popitem(last=False)

    def deposed(self, shards: Collection[int]) -> None:
        """Another epoch is in these shards' rows: what we remember of them is void, and we must campaign anew."""
        self.drop(shards)
        self.on_deposed()

    def took(self, ms: float) -> None:
        """The last commit's time, kept until a sweep has weighed it."""
        self.database_ms = max(self.database_ms, ms)

    def gate_raised(self, run_id: UUID, gate: GateState) -> None:
        """A raise was committed in this process: leases of a closed run are stopped in memory at once."""
        if run_id in self._of_run or self.ready.has_run(run_id):
            self.obey.add(run_id)
            self.raised.set()
            fault_point("scheduler.gate_raised")
        if gate.mode is Mode.CLOSED:
            for lease in self.leases_of(run_id):
                lease.stopping = True

    def reconsider(self) -> None:
        """Something that kept tickets back may be gone: a bound, the reserve, a cap."""
        if len(self.ready):
            self.wake.set()

    def decide_shares(self, decided: Decided) -> None:
        """What operators decided about shares. Tickets of users whose bound begins or ends to count wait in other lines now."""
        moved = decided.users ^ self.usage.decided.users
        self.usage.decided = decided
        for ready in [ready for ready in self.ready if moved and user_of(ready.row.tenant, ready.row.launched_by) in moved]:
            user = self.usage.bounded_user(ready.row.tenant, ready.row.launched_by)
            self.ready.add(replace(ready, candidate=replace(ready.candidate, user=user)))
        self.reconsider()

    def leases_of(self, run_id: UUID) -> list[Lease]:
        """Live leases of a run."""
        return [self.leases[key] for key in self._of_run.get(run_id, ()) if key in self.leases]

    def leases_of_claim(self, claim_id: UUID) -> list[Lease]:
        """Live leases that a claim got."""
        return [self.leases[key] for key in self._of_claim.get(claim_id, ()) if key in self.leases]

    def epoch(self, shard: int) -> int | None:
        """The epoch under which this process leads a shard now."""
        return self.epochs.get(shard) if self.alive() else None

    def led(self, shards: Iterable[int]) -> dict[int, int]:
        """Epochs of those of these shards that are led here now."""
        if not self.alive():
            return {}
        return {shard: self.epochs[shard] for shard in shards if shard in self.epochs}

    def still(self, shard: int, epoch: int) -> bool:
        """Whether memory is still of the leadership under which something was committed."""
        return self.epochs.get(shard) == epoch

    def drop(self, shards: Collection[int]) -> None:
        """Forgets what belongs to these shards."""
        gone = set(shards)
        for shard in gone:
            self.epochs.pop(shard, None)
        for key in [ready.candidate.key for ready in self.ready if ready.shard in gone]:
            self.ready.remove(key)
        self.parked = {key: ready for key, ready in self.parked.items() if ready.shard not in gone}
        self.shelf.drop(gone)
        moved = [lease for lease in self.leases.values() if lease.shard in gone]
        for lease in moved:
            self.forget(lease.key)
        self.usage.moved(moved)
        self.awaited = {key for key in self.awaited if shard_of(key[0]) not in gone}
        self.unsure = {key for key in self.unsure if shard_of(key[0]) not in gone}

    def put_row(self, row: TicketRow, gate: GateState | None) -> None:
        """Notes an open ticket as its row stands."""
        self.forget(row.key)
        if row.state is TicketState.LEASED:
            self.add_lease(self.lease_of(row, gate))
        elif row.state is TicketState.ENDING:
            self.awaited.add(row.key)
        elif row.state is TicketState.READY:
            if not row.grantable(self.incarnation):
                self.awaited.add(row.key)
                return
            ready = self.ready_of(row)
            if gate is not None and gate.mode is not Mode.OPEN:
                self.parked[row.key] = ready
                return
            self.admit(ready)

    def admit(self, ready: Ready) -> None:
        """A ticket may be granted, unless an operator holds it back."""
        ready = self._timely(ready)
        if not self.shelf.takes(ready):
            self.ready.add(ready)
            self.wake.set()

    def _timely(self, ready: Ready) -> Ready:
        """A ticket that waits for capacity; from when its time has passed it waits for none."""
        wanted, candidate = ready.row.wanted, ready.candidate
        if wanted is None or not wanted.until_ms:
            return ready
        if wanted.lapsed(self.clock.now_ms()):
            return replace(ready, candidate=replace(candidate, calls=(), wants=()))
        heapq.heappush(self._lapses, (wanted.until_ms, ready.candidate.key))
        return ready

    def lapse(self) -> None:
        """Tickets whose wait for capacity has passed go without."""
        now_ms = self.clock.now_ms()
        while self._lapses and self._lapses[0][0] <= now_ms:
            ready = self.ready.get(heapq.heappop(self._lapses)[1])
            if ready is not None:
                self.ready.add(self._timely(ready))
                self.wake.set()

    def knows(self, key: Key) -> bool:
        """Whether memory has a place for this step's open ticket."""
        places = (self.leases, self.parked, self.shelf.tickets, self.awaited, self.granting)
        return self.ready.get(key) is not None or any(key in place for place in places)

    @property
    def busy(self) -> bool:
        """Whether any open ticket is known."""
        places = (self.leases, self.ready, self.parked, self.shelf.tickets, self.awaited, self.unsure, self.granting, self.obey)
        return any(len(place) for place in places)

    def correct(self, row: TicketRow) -> None:
        """A row that was read under its locks has a greater fence than the lease in memory: a commit of ours whose answer was
        lost had ended it."""
        lease = self.leases.get(row.key)
        if lease is not None and row.fence > lease.fence:
            self.put_row(row, None)

    def add_lease(self, lease: Lease) -> None:
        """A live lease."""
        former = self.leases.get(lease.key)
        if former is not None:
            self.usage.ended(former)
        self.leases[lease.key] = lease
        self.usage.began(lease)
        self._of_run.setdefault(lease.run_id, set()).add(lease.key)
        self._of_claim.setdefault(lease.claim_id, set()).add(lease.key)

    def forget(self, key: Key) -> None:
        """Nothing of this step is known here any more."""
        self.ready.remove(key)
        self.parked.pop(key, None)
        self.shelf.tickets.pop(key, None)
        self.awaited.discard(key)
        lease = self.leases.pop(key, None)
        if lease is not None:
            self.usage.ended(lease)
            self.reconsider()
            _unlist(self._of_run, key[0], key)
            _unlist(self._of_claim, lease.claim_id, key)

    def lease_of(self, row: TicketRow, gate: GateState | None) -> Lease:
        """A live lease found in the table: it gets a full TTL of grace."""
        spent_ms = min(max(0, self.clock.now_ms() - row.leased_ms), row.contract.timeout_ms)
        epoch = gate.epoch if gate else 0
        return self.new_lease(row, row.fence, epoch, beaten=True, spent_ms=spent_ms, leased_ms=row.leased_ms)

    def new_lease(
        self, row: TicketRow, fence: StepFence, epoch: int, *, beaten: bool = False, spent_ms: int = 0, leased_ms: int = 0
    ) -> Lease:
        """A lease under this fence. `leased_ms`: when it was granted, as its row says."""
        now_ms = self.clock.monotonic_ms()
        lapsed = row.wanted is not None and row.wanted.lapsed(leased_ms)
        contract = row.contract
        wanted_ms = contract.lease_ttl_ms or self.limits.lease_ttl_ms
        return Lease(
            run_id=row.run_id,
            step_key=row.step_key,
            shard=row.shard,
            fence=fence,
            ticket_sequence=row.ticket_sequence,
            tenant=row.tenant,
            project=row.project,
            worker_id=row.worker_id,
            claim_id=row.claim_id,
            contract=contract,
            workflow_digest=row.workflow_digest,
            attempt_number=row.attempt_number,
            run_class=row.run_class,
            deadline_ms=row.deadline_ms,
            epoch=epoch,
            mode=Mode.OPEN,
            ttl_ms=min(wanted_ms, self.limits.longest_lease_ttl_ms),
            granted_ms=now_ms,
            heard_ms=now_ms,
            beaten=beaten,
            ends_ms=now_ms + contract.timeout_ms - spent_ms if contract.timeout_ms else None,
            renew_ms=now_ms + self.limits.token_life_ms // 2 if not beaten else now_ms,
            fleet=row.fleet,
            launched_by=row.launched_by,
            wants=row.wanted.wants(contract.calls) if row.wanted and not lapsed else (),
            lapsed=lapsed,
        )

    def ready_of(self, row: TicketRow) -> Ready:
        """A ticket that may be granted."""
        rank = rank_ms(
            enqueued_ms=row.enqueued_ms,
            run_class=row.run_class,
            priority=row.priority,
            deadline_ms=row.deadline_ms,
            started=row.started or row.fence.lease_epoch > 0,
        )
        candidate = Candidate(
            key=row.key,
            tenant=row.tenant,
            project=row.project,
            run_class=row.run_class,
            handler=row.contract.handler,
            requires=row.contract.requires,
            resources=row.contract.resources,
            rank_ms=rank,
            size_bytes=row.input_bytes + LEASE_BYTES,
            last_worker=row.worker_id if row.end is End.YIELDED else "",
            calls=row.contract.calls,
            wants=row.wanted.wants(row.contract.calls) if row.wanted else (),
            user=self.usage.bounded_user(row.tenant, row.launched_by),
        )
        return Ready(candidate, row.shard, row.ticket_sequence, row.fence.lease_epoch, row, self.clock.monotonic_ms())

    def unpark(self, keys: Iterable[Key]) -> None:
        """Tickets whose gate or scope may be open again."""
        for key in list(keys):
            ready = self.parked.pop(key, None)
            if ready is not None:
                self.admit(ready)

    def see_worker(self, heard: Heard) -> None:
        """A worker process was heard of."""
        if see(self.workers, self.left, heard):
            self.usage.declared()

    def worker_left(self, tenant: str, worker_id: str, process: bytes, now_ms: int, *, last: bool) -> None:
        """A worker process claims nothing more; `last`: it has nothing left that beats."""
        if leave(self.workers, self.left, (tenant, worker_id), Left(now_ms, process), last=last):
            self.usage.declared()

    def has_left(self, tenant: str, worker_id: str, process: bytes) -> bool:
        """Whether this process of a name claims nothing more."""
        return has_left(self.left, (tenant, worker_id), process)

    def capacity(self) -> Capacity:
        """What shared workers heard of lately have."""
        since_ms = self.clock.now_ms() - CAPACITY_MS
        return Capacity.of((w.slots, w.resources) for w in self.workers.values() if w.fleet and w.seen_ms >= since_ms)
