"""Schedulers as real hosts over real gRPC, PostgreSQL and etcd; the services around them answer from memory."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import uuid_utils
from google.protobuf import struct_pb2
from runway.events.v1 import events_pb2
from runway.internal.fence.v1 import fence_pb2
from runway.internal.gateway.v1 import gateway_internal_pb2, gateway_internal_pb2_grpc
from runway.internal.inbox.v1 import inbox_pb2
from runway.internal.launch.v1 import launch_internal_pb2, launch_internal_pb2_grpc
from runway.scheduler.v1 import scheduler_service_pb2_grpc as people_grpc
from runway.scheduler.v1 import worker_service_pb2_grpc

from libs.kernel.epochs import make_epoch
from libs.kernel.ids import shard_of
from libs.kernel.refusal import unreachable
from libs.rpc.channels import open_channel
from libs.rpc.policy import key_digest
from libs.runtime.host import Compose, Host
from libs.runtime.service import Composed, Mounted, Service
from libs.runtime.settings import HostSettings
from libs.testkit.waiting import wait_until
from services.scheduler.main import compose as compose_scheduler
from services.scheduler.settings import SchedulerSettings

SECRET = "a-secret-of-the-tests"
KEYS = {
    "rk_a": ("a", "", "worker"),
    "rk_a_other": ("a", "other", "worker"),
    "rk_b": ("b", "", "worker"),
    "rk_fleet": ("platform", "", "fleet"),
    "rk_fleet_2": ("platform2", "", "fleet"),
    "rk_platform": ("platform", "", "operator"),
    "rk_platform_worker": ("platform", "", "worker"),
    "rk_platform_project": ("platform", "p", "operator"),
    "rk_platform_plain": ("platform", "", ""),
    "rk_a_plain": ("a", "", ""),
}
HANDLER = "demo.work@1"
EPOCH = make_epoch(256, 1)
APPLIED = inbox_pb2.EventVerdict(verdict=inbox_pb2.VERDICT_APPLIED)


async def nothing() -> None:
    return None


async def yes() -> bool:
    return True


def new_run(shard: int | None = None) -> UUID:
    """A run, of this shard where one is named."""
    while True:
        run_id = UUID(bytes=uuid_utils.uuid7().bytes)
        if shard is None or shard_of(run_id) == shard:
            return run_id


class Inbox:
    """Remembers the events that it gets."""

    def __init__(self) -> None:
        self.events: list[events_pb2.Event] = []
        self.seen: set[bytes] = set()

    async def take(self, raws: Sequence[bytes]) -> tuple[int, list[inbox_pb2.EventVerdict]]:
        for raw in raws:
            event = events_pb2.Event.FromString(raw)
            if event.event_id not in self.seen:
                self.seen.add(event.event_id)
                self.events.append(event)
        return 256, [APPLIED for _ in raws]

    def of(self, kind: str, run_id: UUID) -> list[Any]:
        facts = [getattr(event, kind) for event in self.events if event.WhichOneof("fact") == kind]
        return [fact for fact in facts if fact.run_id == run_id.bytes]


class Launch(launch_internal_pb2_grpc.LaunchInternalServiceServicer):
    """Gates and API keys."""

    def __init__(self) -> None:
        self.gates: dict[bytes, fence_pb2.RunGate] = {}
        self.reads: list[bytes] = []

    def gate(self, run_id: UUID, *, epoch: int = EPOCH, mode: int = 0, outcome: str = "") -> fence_pb2.RunGate:
        gate = fence_pb2.RunGate(
            run_id=run_id.bytes, epoch=epoch, mode=fence_pb2.Mode.ValueType(mode), outcome=outcome, tenant="a", project="p"
        )
        self.gates[run_id.bytes] = gate
        return gate

    async def ResolveCallers(self, request: Any, context: Any) -> launch_internal_pb2.ResolveCallersResponse:
        records = []
        for digest in request.key_digests:
            found = next((KEYS[key] for key in KEYS if key_digest(key) == digest), None)
            if found is None:
                records.append(launch_internal_pb2.CallerRecord(known=False))
                continue
            tenant, project, scope = found
            records.append(
                launch_internal_pb2.CallerRecord(
                    known=True,
                    tenant=tenant,
                    project=project,
                    scopes=["caller", scope] if scope else ["caller"],
                    key_id=b"k" * 16,
                    name="test",
                )
            )
        return launch_internal_pb2.ResolveCallersResponse(callers=records)

    async def GetVersions(self, request: Any, context: Any) -> launch_internal_pb2.GetVersionsResponse:
        raise AssertionError("the scheduler asks for no versions")

    async def GetOwners(self, request: Any, context: Any) -> launch_internal_pb2.GetOwnersResponse:
        raise AssertionError("the scheduler asks for no owners")

    async def raise_fences(self, request: fence_pb2.RaiseFencesRequest) -> fence_pb2.RaiseFencesResponse:
        raise AssertionError("launch takes no raises")

    async def get_fences(self, request: fence_pb2.GetFencesRequest) -> fence_pb2.GetFencesResponse:
        self.reads += request.run_ids
        unknown = fence_pb2.Mode.ValueType(2)
        gates = [
            self.gates.get(run_id) or fence_pb2.RunGate(run_id=run_id, epoch=1, mode=unknown, outcome="unknown")
            for run_id in request.run_ids
        ]
        return fence_pb2.GetFencesResponse(gates=gates, incarnation=256)


class Views(gateway_internal_pb2_grpc.BucketViewServiceServicer):
    """The gateway's buckets."""

    def __init__(self) -> None:
        self.views: list[gateway_internal_pb2.BucketView] = []
        self.away = False

    async def ReadBuckets(self, request: Any, context: Any) -> gateway_internal_pb2.ReadBucketsResponse:
        if self.away:
            raise unreachable("the gateway's database")
        return gateway_internal_pb2.ReadBucketsResponse(buckets=self.views)


class PointFences:
    """A point that takes raises, when it is open."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.raised: list[fence_pb2.StepFence] = []
        self.asked = 0
        self.unresolved: dict[str, list[fence_pb2.UnresolvedEffect]] = {}

    async def raise_fences(self, request: fence_pb2.RaiseFencesRequest) -> fence_pb2.RaiseFencesResponse:
        self.asked += 1
        await self.open.wait()
        self.raised += request.steps
        answers = [
            fence_pb2.RaiseAnswer(committed=True, unresolved=self.unresolved.get(step.step_key, [])) for step in request.steps
        ]
        return fence_pb2.RaiseFencesResponse(steps=answers, incarnation=256)

    async def get_fences(self, request: fence_pb2.GetFencesRequest) -> fence_pb2.GetFencesResponse:
        raise AssertionError("nobody asks a point here")

    def of(self, run_id: UUID) -> list[fence_pb2.StepFence]:
        return [step for step in self.raised if step.run_id == run_id.bytes]


def composing(made: dict[str, Service]) -> Any:
    def compose_of(name: str) -> Compose:
        async def compose(_host: Host) -> Service:
            return made[name]

        return compose

    return compose_of


@dataclass
class Replica:
    """One scheduler process."""

    host: Host
    book: Any
    channels: list[Any] = field(default_factory=list)

    def worker(self) -> Any:
        channel = open_channel(self.host.addresses.public)
        self.channels.append(channel)
        return worker_service_pb2_grpc.WorkerServiceStub(channel)

    def people(self) -> Any:
        channel = open_channel(self.host.addresses.public)
        self.channels.append(channel)
        return people_grpc.SchedulerServiceStub(channel)

    def leads(self, run_id: UUID) -> bool:
        return self.book.epoch(shard_of(run_id)) is not None

    @property
    def led(self) -> int:
        return len(self.book.led(range(64)))


class World:
    """Schedulers and what is around them."""

    def __init__(self, url: str, endpoints: Sequence[str], prefix: str, stack: AsyncExitStack) -> None:
        self.url = url
        self.endpoints = ",".join(endpoints)
        self.prefix = prefix
        self.stack = stack
        self.launch = Launch()
        self.to_launch = Inbox()
        self.to_readiness = Inbox()
        self.gateway = PointFences()
        self.buckets = Views()
        self.checkpoint = PointFences()
        self.replicas: list[Replica] = []
        self.hand: asyncpg.Connection
        self._around: Host

    async def open(self) -> None:
        internal = Mounted(
            launch_internal_pb2_grpc.add_LaunchInternalServiceServicer_to_server,
            self.launch,
            "runway.internal.launch.v1.LaunchInternalService",
        )
        buckets = Mounted(
            gateway_internal_pb2_grpc.add_BucketViewServiceServicer_to_server,
            self.buckets,
            "runway.internal.gateway.v1.BucketViewService",
        )
        made: dict[str, Service] = {
            "launch": Composed(name="launch", healthy=yes, servicers=[internal], inbox=self.to_launch.take, fences=self.launch),
            "readiness": Composed(name="readiness", healthy=yes, inbox=self.to_readiness.take),
            "gateway": Composed(name="gateway", healthy=yes, servicers=[buckets], fences=self.gateway),
            "checkpoint": Composed(name="checkpoint", healthy=yes, fences=self.checkpoint),
        }
        self._around = Host(HostSettings(service_secret=SECRET), environ={})
        await self._around.start(list(made), composing(made))
        self.stack.push_async_callback(self._around.stop, 0)
        self.hand = await asyncpg.connect(self.url)
        self.stack.push_async_callback(self.hand.close)

    def environ(self) -> dict[str, str]:
        found = {"RUNWAY_SCHEDULER_DATABASE_URL": self.url, "RUNWAY_ETCD_ENDPOINTS": self.endpoints}
        for name in ("LAUNCH", "READINESS", "GATEWAY", "CHECKPOINT"):
            found[f"RUNWAY_{name}_ADDRESS"] = self._around.addresses.public
            found[f"RUNWAY_{name}_CONTROL_ADDRESS"] = self._around.addresses.control
            found[f"RUNWAY_{name}_LEAF_ADDRESS"] = self._around.addresses.leaf
        return found

    async def replica(self, *, led: int | None = 64, **settings: Any) -> Replica:
        """A scheduler; waits until it leads so many shards (None: does not wait)."""
        chosen = SchedulerSettings(**{"etcd_prefix": self.prefix, "orphan_ms": 300, "etcd_ttl_ms": 2_000, **settings})
        host = Host(HostSettings(service_secret=SECRET, start_retry_ms=20), environ=self.environ())
        found: dict[str, Any] = {}

        def compose_of(_name: str) -> Compose:
            async def compose(given: Host) -> Service:
                service = await compose_scheduler(given, chosen)
                found["service"] = service
                return service

            return compose

        await host.start(["scheduler"], compose_of)
        replica = Replica(host, found["service"].fences._book)
        self.replicas.append(replica)
        self.stack.push_async_callback(self.end, replica)
        if led is not None:
            await wait_until(lambda: replica.led >= led, 10.0, what=f"leading {led} shards")
        return replica

    async def end(self, replica: Replica) -> None:
        if replica not in self.replicas:
            return
        self.replicas.remove(replica)
        for channel in replica.channels:
            await channel.close()
        await replica.host.stop(0)

    async def ready(self, replica: Replica, run_id: UUID, step: str = "s", **more: Any) -> inbox_pb2.EventVerdict:
        """Delivers one StepReady."""
        if run_id.bytes not in self.launch.gates:
            self.launch.gate(run_id)
        return (await self.deliver(replica, [ready_event(run_id, step, **more)]))[0]

    async def deliver(self, replica: Replica, events: Sequence[bytes]) -> list[inbox_pb2.EventVerdict]:
        request = inbox_pb2.DeliverRequest(service="scheduler", events=events)
        return list((await replica.host.peers.deliver("scheduler", request)).verdicts)

    async def raise_gate(
        self, replica: Replica, run_id: UUID, epoch: int, *, mode: int, outcome: str = ""
    ) -> fence_pb2.RaiseAnswer:
        """Launch raises a run's gate at the scheduler."""
        gate = self.launch.gate(run_id, epoch=epoch, mode=mode, outcome=outcome)
        request = fence_pb2.RaiseFencesRequest(service="scheduler", gates=[gate])
        return (await replica.host.peers.raise_fences("scheduler", request)).gates[0]

    async def finished(self, run_id: UUID, count: int = 1) -> list[Any]:
        """AttemptFinished of a run, once so many came."""
        await wait_until(lambda: len(self.to_readiness.of("attempt_finished", run_id)) >= count, what="AttemptFinished")
        return self.to_readiness.of("attempt_finished", run_id)


def ready_event(
    run_id: UUID,
    step: str = "s",
    *,
    sequence: int = 1,
    tenant: str = "a",
    project: str = "p",
    handler: str = HANDLER,
    points: int = 0,
    timeout_ms: int = 0,
    lease_ttl_ms: int = 0,
    requires: Sequence[str] = (),
    priority: int = 0,
    run_class: int = 2,
    given: str = "in",
    tools: Sequence[str] = (),
    models: Sequence[str] = (),
    resources: Mapping[str, int] | None = None,
    launched_by: str = "",
) -> bytes:
    fact = events_pb2.StepReady(
        run_id=run_id.bytes,
        step_key=step,
        ticket_sequence=sequence,
        tenant=tenant,
        project=project,
        run_class=run_class,
        priority=priority,
        deadline_ms=2_000_000_000_000,
        contract=events_pb2.StepContract(
            handler=handler,
            timeout_ms=timeout_ms,
            lease_ttl_ms=lease_ttl_ms,
            requires=requires,
            points=points,
            tools=tools,
            models=models,
            resources=resources,
        ),
        input=value({"run": given, "steps": {}}).SerializeToString(),
        attempt_number=sequence,
        epoch=EPOCH,
        workflow_digest=b"d" * 32,
        launched_by=launched_by,
    )
    return events_pb2.Event(event_id=uuid4().bytes, step_ready=fact).SerializeToString()


def value(plain: Any) -> struct_pb2.Value:
    made = struct_pb2.Value()
    if isinstance(plain, dict):
        made.struct_value.SetInParent()
        for key, item in plain.items():
            made.struct_value.fields[key].CopyFrom(value(item))
    else:
        made.string_value = str(plain)
    return made
