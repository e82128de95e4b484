"""Leaders of shards on a real PostgreSQL, without etcd and without a wire: verbs called by hand, a clock that the test moves."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg
from runway.events.v1 import events_pb2
from runway.internal.fence.v1 import fence_pb2

from libs.fence.raising import FencePoint
from libs.fence.values import GateValue, ScopeValue
from libs.kernel.epochs import Mode, StepFence, make_epoch
from libs.kernel.ids import NIL
from libs.outbox import Relay, SendResult
from libs.pg import Database
from libs.testkit.clocks import ManualClock
from libs.testkit.ids import SeededIds
from services.scheduler.app.acknowledge_raises import acknowledge_raises
from services.scheduler.app.book import Book
from services.scheduler.app.claim_attempts import ClaimDesk
from services.scheduler.app.claims import ClaimAsk, GrantedLease
from services.scheduler.app.complete_attempts import Completion, complete_attempts
from services.scheduler.app.enqueue_tickets import enqueue_tickets
from services.scheduler.app.take_over import Candidacy, take_over
from services.scheduler.clients.notices import EventNotices
from services.scheduler.clients.tokens import LeaseTokens
from services.scheduler.domain.asker import Asker
from services.scheduler.domain.commits import Acknowledgement, Holder
from services.scheduler.domain.ticket import Contract, End, Failure, Ticket
from services.scheduler.ports import Limits, Ports
from services.scheduler.servicer_control import SchedulerFences
from services.scheduler.store.fences import FenceRead, SchedulerPoint
from services.scheduler.store.shards import SchedulerReads, SchedulerStore

A = Asker("a", "")
EPOCH = make_epoch(256, 1)
HANDLER = "demo.work@1"


class Nobody:
    """Takes nothing anywhere: the outbox stays as it was committed."""

    async def send(self, receiver: str, lane: str, payloads: Sequence[bytes]) -> SendResult:
        raise AssertionError("no relay runs here")


class Launch:
    """Gates, as launch answers them."""

    def __init__(self) -> None:
        self.gates: dict[UUID, GateValue] = {}
        self.scopes: list[ScopeValue] = []
        self.reads: list[UUID] = []

    def reader(self, db: Database) -> "Reader":
        return Reader(self, db)


@dataclass
class Reader:
    launch: Launch
    db: Database

    async def read(self, runs: Collection[UUID]) -> FenceRead:
        started_in = self.db.incarnation
        self.launch.reads += runs
        gates = [self.launch.gates.get(r) or GateValue(r, EPOCH, Mode.OPEN, tenant="a", project="p") for r in sorted(runs)]
        return FenceRead(started_in, tuple(gates), tuple(self.launch.scopes))


@dataclass
class Leader:
    """One process that leads what it took over."""

    db: Database
    book: Book
    ports: Ports
    desk: ClaimDesk
    fences: SchedulerFences
    reads: SchedulerReads
    store: SchedulerStore
    name: str
    deposed: int = 0
    tasks: list[Any] = field(default_factory=list)

    async def lead(
        self, revision: int, shards: Collection[int] = range(64), *, reset: bool = False, newest: int = 0
    ) -> set[int]:
        async def newest_revision() -> int:
            return newest or revision

        candidacy = Candidacy(self.name, f"{self.name}:1", reset)
        return await take_over(self.ports, self.book, dict.fromkeys(shards, revision), candidacy, newest_revision)

    async def enqueue(self, *tickets: Ticket) -> list[str]:
        return await enqueue_tickets(self.ports, self.book, tickets)

    def ask(self, *, slots: int = 1, claim_id: UUID | None = None, tenant: str = "a") -> ClaimAsk:
        name = claim_id or self.ports.ids.random128()
        return ClaimAsk(name, "w1", Asker(tenant, ""), frozenset({HANDLER}), frozenset(), slots)

    async def claim(self, *, slots: int = 1, claim_id: UUID | None = None, tenant: str = "a") -> list[GrantedLease]:
        ask = self.ask(slots=slots, claim_id=claim_id, tenant=tenant)
        return await self.desk.claim(ask, 0) or await self.desk.claim(ask, 0)  # the first may have had to read gates cold

    async def complete(self, *asks: Completion) -> list[Any]:
        return await complete_attempts(self.ports, self.book, self.desk, asks)

    async def acknowledge(self, run_id: UUID, fence: StepFence, points: int = 1, **unresolved: int) -> None:
        await acknowledge_raises(self.ports, self.book, [Acknowledgement(run_id, "s", fence, points, unresolved)])

    async def raise_gate(self, run_id: UUID, epoch: int, mode: Mode, outcome: str = "cancelled") -> fence_pb2.RaiseAnswer:
        gate = fence_pb2.RunGate(run_id=run_id.bytes, epoch=epoch, mode=fence_pb2.Mode.ValueType(int(mode)), outcome=outcome)
        request = fence_pb2.RaiseFencesRequest(service="scheduler", gates=[gate])
        return (await self.fences.raise_fences(request)).gates[0]


class Field:
    """The leaders of one test and the rows they share."""

    def __init__(self, url: str, hand: asyncpg.Connection, clock: ManualClock, ids: SeededIds) -> None:
        self.url = url
        self.hand = hand
        self.clock = clock
        self.ids = ids
        self.launch = Launch()
        self.opened: list[Database] = []

    async def leader(self, name: str = "one", *, counter: int = 0) -> Leader:
        """A process; `counter` is the restore counter, which makes the database another incarnation."""
        db = Database(self.url, name=name, size=6, counter=counter)
        await db.open()
        self.opened.append(db)
        limits = Limits(lease_ttl_ms=9_000, longest_lease_ttl_ms=600_000, first_beat_ms=5_000, token_life_ms=60_000)
        book = Book(self.clock, limits, lambda: True)
        relay = Relay(db, Nobody(), self.clock)
        store = SchedulerStore(db, relay, self.ids, book)
        await store.note_birth()
        reads = SchedulerReads(db)
        tokens = LeaseTokens(reads, self.clock, audience="runway", region="local", life_ms=60_000)
        ports = Ports(
            db=store,
            gates=self.launch.reader(db),
            notices=EventNotices(self.ids),
            tokens=tokens,
            clock=self.clock,
            ids=self.ids,
            limits=limits,
        )
        fences = SchedulerFences(FencePoint(db, SchedulerPoint(), keeps_steps=False), reads, book)
        made = Leader(db, book, ports, ClaimDesk(ports, book), fences, reads, store, name)

        def count() -> None:
            made.deposed += 1

        book.on_deposed = count
        return made

    async def end(self) -> None:
        for db in self.opened:
            await db.close()

    def ticket(self, run_id: UUID | None = None, *, sequence: int = 1, points: int = 0, tenant: str = "a") -> Ticket:
        return Ticket(
            run_id=run_id or self.ids.uuid7(),
            step_key="s",
            ticket_sequence=sequence,
            tenant=tenant,
            project="p",
            run_class=2,
            priority=0,
            deadline_ms=0,
            contract=Contract(HANDLER, 0, 0, (), (), frozenset(), points),
            input=b"",
            workflow_digest=b"d",
            attempt_number=sequence,
            epoch=EPOCH,
            traceparent="",
        )

    async def row(self, run_id: UUID) -> asyncpg.Record:
        found = await self.hand.fetchrow("SELECT * FROM ticket WHERE run_id = $1", run_id)
        assert found is not None
        return found

    async def told(self, kind: str) -> list[Any]:
        """Facts of a kind that wait in the outbox."""
        rows = await self.hand.fetch("SELECT payload FROM outbox WHERE kind = $1 ORDER BY event_id", kind)
        if kind == "raise_fences":
            return [fence_pb2.RaiseFencesRequest.FromString(row["payload"]).steps[0] for row in rows]
        return [getattr(events_pb2.Event.FromString(row["payload"]), kind) for row in rows]


def holder(granted: GrantedLease, *, epoch: int | None = None) -> Holder:
    lease = granted.lease
    return Holder(
        lease.run_id, lease.step_key, lease.fence, lease.epoch if epoch is None else epoch, lease.tenant, lease.project
    )


def success(granted: GrantedLease, output: bytes = b"", *, epoch: int | None = None) -> Completion:
    return Completion(holder(granted, epoch=epoch), End.SUCCEEDED, b"report" + output, output=output)


def failure(granted: GrantedLease) -> Completion:
    return Completion(holder(granted), End.FAILED, b"failed", failure=Failure("transient", "broke", "ValueError"))


def ended_by(granted: GrantedLease, leader: Leader) -> StepFence:
    """The fence that ends this grant under this leader."""
    lease = granted.lease
    return StepFence(leader.book.epochs[lease.shard], lease.fence.lease_epoch + 1, NIL)


async def both(*work: Any) -> list[Any]:
    """Side by side; exceptions are answers."""
    return await asyncio.gather(*work, return_exceptions=True)


async def waits_for_a_lock(field_: Field) -> bool:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return bool(await field_.hand.fetchval(waiting))


class Calm:
    """Nothing speaks against ourselves but what the sweep sees itself."""

    loop_lag_ms = 0.0
    etcd_ms = 0.0

    async def draining(self) -> None:
        raise AssertionError
