"""Composition root of the scheduler: the only file that constructs things."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace

from runway.internal.scheduler.v1.scheduler_internal_pb2_grpc import add_SchedulerInternalServiceServicer_to_server
from runway.scheduler.v1.control_service_pb2_grpc import add_ControlServiceServicer_to_server
from runway.scheduler.v1.scheduler_service_pb2_grpc import add_SchedulerServiceServicer_to_server
from runway.scheduler.v1.share_service_pb2_grpc import add_ShareServiceServicer_to_server
from runway.scheduler.v1.worker_service_pb2_grpc import add_WorkerServiceServicer_to_server

from libs.authority import EtcdClient, EtcdUnavailable, ShardElections
from libs.fence.raising import FencePoint
from libs.kernel.refusal import Refusal
from libs.outbox import Outgoing, Relay
from libs.pg import Database
from libs.rpc.server import Mounted
from libs.runtime.host import Host
from libs.runtime.process import run as run_process
from libs.runtime.retention import forgetting
from libs.runtime.sender import PeerSender
from libs.runtime.service import Composed, Loop, Service
from libs.runtime.wrong import missing
from services.scheduler import translate
from services.scheduler.app.acknowledge_raises import acknowledge_raises
from services.scheduler.app.book import Book
from services.scheduler.app.claim_attempts import ClaimDesk
from services.scheduler.app.end_attempts import end_attempts
from services.scheduler.app.explain_tickets import Explainer
from services.scheduler.app.hand_over import HandOver
from services.scheduler.app.hold_desk import HoldDesk
from services.scheduler.app.obey_holds import Obedience
from services.scheduler.app.take_over import Candidacy, give_up, take_over
from services.scheduler.clients.buckets import GatewayBuckets
from services.scheduler.clients.explanations import Explanations
from services.scheduler.clients.gates import LaunchGates
from services.scheduler.clients.leaders import Leaders
from services.scheduler.clients.local_workers import LocalWorkers
from services.scheduler.clients.members import EtcdMembers
from services.scheduler.clients.notices import EventNotices
from services.scheduler.clients.owners import OwnerClient
from services.scheduler.clients.tokens import LeaseTokens
from services.scheduler.consumers import Inbox
from services.scheduler.loops import SchedulerStuck, bucket_loops, leader_loops, loops, obedience_loops, share_loops
from services.scheduler.ports import Limits, Ports
from services.scheduler.servicer import WorkerServicer
from services.scheduler.servicer_control import InternalServicer, SchedulerFences, SchedulerServicer
from services.scheduler.servicer_operators import ControlServicer
from services.scheduler.servicer_shares import ShareServicer
from services.scheduler.settings import SchedulerSettings
from services.scheduler.store.explain import ExplainStore
from services.scheduler.store.fences import SchedulerPoint
from services.scheduler.store.holds import HoldStore
from services.scheduler.store.shards import SchedulerReads, SchedulerStore
from services.scheduler.store.shares import ShareStore

ETCD_ENDPOINTS = "RUNWAY_ETCD_ENDPOINTS"
AUDIENCE = "RUNWAY_AUDIENCE"
DEFAULT_AUDIENCE = "runway"


class Leadership:
    """The elections of this process, once it knows its address."""

    def __init__(self, host: Host, ports: Ports, book: Book, leaders: Leaders, settings: SchedulerSettings) -> None:
        self._host = host
        self.members = EtcdMembers()
        self.on_others: Callable[[], None] = lambda: None
        """The processes that lead are others now, or this one leads less."""
        self.before_leading: Callable[[], Awaitable[None]] | None = None
        """What must be known before anything more is led."""
        self._ports = ports
        self._book = book
        self._leaders = leaders
        self._settings = settings
        self._client: EtcdClient | None = None
        self._elections: ShardElections | None = None
        self.member_id = host.ids.random128().hex

    def open(self) -> None:
        """Knows where etcd is and who we are."""
        endpoints = self._host.surroundings.get(ETCD_ENDPOINTS)
        if not endpoints:
            raise missing(ETCD_ENDPOINTS, "set it: the scheduler elects its leaders over etcd")
        self._client = EtcdClient(endpoints.split(","), self._host.clock)
        self._elections = ShardElections(
            self._client,
            self._host.clock,
            prefix=self._settings.etcd_prefix,
            member_id=self.member_id,
            address=self._host.addresses.control,
            on_won=self._won,
            on_lost=self._lost,
            ttl_ms=self._settings.etcd_ttl_ms,
            orphan_ms=self._settings.orphan_ms,
        )
        self._leaders.campaign(self._elections, self.member_id)
        self.members.open(self._elections)

    async def close(self) -> None:
        """Closes the connection to etcd."""
        if self._client is not None:
            await self._client.close()

    def alive(self) -> bool:
        """Whether what we won may still be acted on."""
        return self._elections is not None and self._elections.session_alive

    def healthy(self) -> bool:
        """Whether etcd is heard."""
        return self._elections is not None and self._elections.healthy()

    @property
    def loop_lag_ms(self) -> float:
        """How late the process' timers are."""
        return self._host.loop_lag_ms

    @property
    def etcd_ms(self) -> float:
        """How long etcd took to answer last."""
        return 0.0 if self._elections is None else self._elections.round_trip_ms

    async def draining(self) -> None:
        """Returns once the process is on its way out."""
        await self._host.draining.wait()

    def without_leader(self) -> list[int]:
        """Shards without a leader, as last heard."""
        return [shard for shard in range(64) if self._elections is None or self._elections.leader(shard) is None]

    def campaign_anew(self) -> None:
        """Everything we lead is void."""
        if self._elections is not None:
            self._elections.campaign_anew()

    def loops(self, on_others: Callable[[], None]) -> list[Loop]:
        """What runs for it; `on_others` is told when those who lead are others."""
        self.on_others = on_others
        return [Loop("elections", self.run), Loop("watch_leaders", self.watch), Loop("leave_shards", self.leave)]

    async def run(self) -> None:
        """Campaigns."""
        assert self._elections is not None
        await self._elections.run()

    async def watch(self) -> None:
        """Polls that wait are split anew as soon as other processes lead."""
        assert self._elections is not None
        known: set[str] = set()
        async for leaders in self._elections.observe():
            now = {leader.member_id for leader in leaders.values()}
            if now != known:
                known = now
                self.on_others()

    async def leave(self) -> None:
        """On its way out a process hands its shards to the others, while it still forwards what comes."""
        await self._host.draining.wait()
        if self._elections is not None:
            with contextlib.suppress(EtcdUnavailable):
                await self._elections.resign()
        await asyncio.Event().wait()

    async def _won(self, won: Mapping[int, int]) -> Collection[int]:
        candidacy = Candidacy(self.member_id, self._host.addresses.control, self._settings.reset_lost_etcd)
        try:
            if self.before_leading is not None:
                await self.before_leading()
            return await take_over(self._ports, self._book, won, candidacy, self._newest)
        except BaseException:
            give_up(self._book, won)
            raise

    async def _lost(self, shards: Collection[int], why: str) -> None:
        give_up(self._book, shards)
        self.on_others()

    async def _newest(self) -> int:
        assert self._client is not None
        return (await self._client.range(b"runway")).header.revision


def _servicers(
    host: Host,
    settings: SchedulerSettings,
    book: Book,
    local: LocalWorkers,
    leaders: Leaders,
    inbox: Inbox,
    reads: SchedulerReads,
    leaf_reads: SchedulerReads,
    shares: ShareStore,
    explanations: Explanations,
) -> list[Mounted]:
    """What is served over gRPC."""
    return [
        Mounted(
            add_WorkerServiceServicer_to_server,
            WorkerServicer(local, leaders, book, settings),
            "runway.scheduler.v1.WorkerService",
        ),
        Mounted(
            add_SchedulerServiceServicer_to_server,
            SchedulerServicer(reads, book, OwnerClient(host.peers)),
            "runway.scheduler.v1.SchedulerService",
        ),
        Mounted(
            add_ShareServiceServicer_to_server,
            ShareServicer(shares, book, host.clock),
            "runway.scheduler.v1.ShareService",
        ),
        Mounted(
            add_SchedulerInternalServiceServicer_to_server,
            InternalServicer(local, inbox.apply_here, leaf_reads, book, explanations),
            "runway.internal.scheduler.v1.SchedulerInternalService",
        ),
    ]


def _obedience(control: Ports, rows: HoldStore, book: Book, desk: ClaimDesk, leadership: Leadership) -> Obedience:
    """What follows the holds; they are read before anything is led."""
    made = Obedience(
        rows, book, desk, control.clock, leadership.member_id, lambda endings: end_attempts(control, book, endings)
    )
    leadership.before_leading = made.before_leading
    return made


def _for_operators(
    obedience: Obedience, rows: HoldStore, members: EtcdMembers, recorded: ExplainStore, orders: SchedulerStore
) -> Mounted:
    desk = HoldDesk(rows, obedience.clock, members.members, obedience.obey, members.members_now)
    servicer = ControlServicer(desk, HandOver(members, rows, obedience.clock), recorded, orders, obedience.clock)
    return Mounted(add_ControlServiceServicer_to_server, servicer, "runway.scheduler.v1.ControlService")


async def compose(host: Host, settings: SchedulerSettings | None = None) -> Service:
    """Builds the scheduler for this process; opens nothing. Settings come from the environment unless they are given."""
    settings = settings or SchedulerSettings()
    url = host.database_url("scheduler")
    db = Database(url, name="scheduler", size=settings.pool_size)
    control_db = Database(url, name="scheduler-control", size=settings.control_pool_size)
    leaf_db = Database(url, name="scheduler-leaf", size=settings.leaf_pool_size)
    limits = Limits(settings.lease_ttl_ms, settings.longest_lease_ttl_ms, settings.first_beat_ms, settings.token_life_ms)
    book = Book(host.clock, limits, lambda: leadership.alive())

    async def on_answers(answers: list[tuple[Outgoing, bytes]]) -> None:
        acks = [translate.acknowledgement(row.receiver, row.payload, answer) for row, answer in answers]
        await acknowledge_raises(ports, book, acks)

    relay = Relay(db, PeerSender(host.peers), host.clock, on_answers=on_answers, settings=host.relay_settings)
    reads, control_reads, leaf_reads = SchedulerReads(db), SchedulerReads(control_db), SchedulerReads(leaf_db)
    audience = host.surroundings.get(AUDIENCE) or DEFAULT_AUDIENCE
    tokens = LeaseTokens(reads, host.clock, audience=audience, region=settings.region, life_ms=settings.token_life_ms)
    store = SchedulerStore(db, relay, host.ids, book)
    ports = Ports(
        db=store,
        gates=LaunchGates(host.peers, lambda: db.incarnation),
        notices=EventNotices(host.ids),
        tokens=tokens,
        clock=host.clock,
        ids=host.ids,
        limits=limits,
    )
    control_store = SchedulerStore(control_db, relay, host.ids, book)
    control = replace(ports, db=control_store)
    leaders = Leaders(host.peers, book)
    leadership = Leadership(host, ports, book, leaders, settings)
    book.on_deposed = leadership.campaign_anew
    desk = ClaimDesk(ports, book, draining=host.draining.is_set)
    obedience = _obedience(control, HoldStore(control_db), book, desk, leadership)
    local = LocalWorkers(
        ports,
        control,
        book,
        desk,
        tokens,
        claim_limit_bytes=settings.claim_limit_bytes,
        output_limit_bytes=settings.output_limit_bytes,
        command_limit_bytes=settings.command_limit_bytes,
    )
    shares = ShareStore(control_db)
    inbox = Inbox(ports, book, desk, leaders)
    explained = ExplainStore(control_db)
    explanations = Explanations(Explainer(explained, book, desk, host.clock), leaders)
    public = tokens.signer.public

    async def start() -> None:
        for database in (db, control_db, leaf_db):
            await database.open()
        db.on_incarnation_changed(lambda _: leadership.campaign_anew())
        await store.note_birth()
        await store.put_key(public.key_id, public.public_bytes, host.clock.now_ms())
        leadership.open()
        await obedience.obey()  # before anything is granted here

    async def stop() -> None:
        await local.close()
        await leadership.close()
        with contextlib.suppress(Refusal):  # the database is away: others wait a moment for one that is gone
            await obedience.leave()
        for database in (db, control_db, leaf_db):
            await database.close()

    async def healthy() -> bool:
        return await db.answers() and leadership.healthy()

    return Composed(
        name="scheduler",
        healthy=healthy,
        servicers=[
            *_servicers(host, settings, book, local, leaders, inbox, control_reads, leaf_reads, shares, explanations),
            _for_operators(obedience, HoldStore(control_db), leadership.members, explained, control_store),
        ],
        inbox=inbox.apply,
        stuck=SchedulerStuck(ports, book, control_reads, control_db, leadership, settings.stuck_ticket_ms).list_stuck,
        fences=SchedulerFences(FencePoint(leaf_db, SchedulerPoint(), keeps_steps=False), leaf_reads, book),
        loops=[
            Loop("relay", relay.run),
            *leadership.loops(desk.answer_idle),
            *leader_loops(leaders, control_reads, leadership.healthy, desk.answer_idle),
            *obedience_loops(obedience, settings),
            forgetting(store.forget_runs, host.clock, host.settings.retention_ms),
            *share_loops(shares, book, leadership.member_id),
            *bucket_loops(GatewayBuckets(host.peers, host.clock), book),
            *loops(ports, control, book, desk, store, leadership, (public.key_id, public.public_bytes), settings),
        ],
        deadlines_ms={"/runway.scheduler.v1.WorkerService/ClaimAttempts": settings.longest_wait_ms + 10_000},
        start=start,
        stop=stop,
    )


def run() -> None:
    """This service alone in a process."""
    run_process(["scheduler"])
