"""Launch and the gateway over real gRPC, for sequences in which nothing happens by itself: the test plays the scheduler, and an attempt
of whatever run it likes, at any time. Readiness and the checkpoint service only listen.

Can go wrong: a played scheduler that confirms what no real one would. It signs leases, and answers for the steps it has leased.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import grpc
from google.protobuf.duration_pb2 import Duration
from runway.events.v1 import events_pb2 as ev
from runway.gateway.v1 import gateway_service_pb2 as gw
from runway.gateway.v1 import gateway_service_pb2_grpc
from runway.internal.fence.v1 import fence_pb2
from runway.internal.inbox.v1 import inbox_pb2
from runway.internal.scheduler.v1 import scheduler_internal_pb2, scheduler_internal_pb2_grpc
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk import ApprovalRule, ApproverKey, Client, Context, Target, step, workflow
from runway_sdk.values import to_value

from libs.fence.claims import Claims
from libs.fence.token import Signer
from libs.fence.values import StepValue
from libs.fence.wire import step_to
from libs.kernel.epochs import StepFence
from libs.rpc.channels import open_channel
from libs.rpc.status import refusal_of
from libs.runtime.host import Host
from libs.runtime.service import Composed, Mounted, Service
from libs.testkit.clocks import ManualClock
from libs.testkit.fixtures import StackDatabase
from libs.testkit.hosts import Peer, make_key, running_host
from libs.testkit.waiting import wait_until
from tests.rpc.approvals.room import Person
from tests.rpc.gateway.harness import FAR_MS
from tests.rpc.gateway.provider import Provider

TOOL = "http.request"
LENGTH_MS = 300_000
ONE, TWO = "one", "two"
"""Steps: what the first calls one reviewer may allow; what the second calls, Rita and Rolf together."""


@step(key=ONE, tools=[TOOL], approvals=[ApprovalRule([TOOL], expires_in=timedelta(milliseconds=LENGTH_MS))])
async def one(ctx: Context) -> int:
    return 1


@step(
    key=TWO,
    tools=[TOOL],
    approvals=[ApprovalRule([TOOL], need=2, eligible=["rita", "rolf"], expires_in=timedelta(milliseconds=LENGTH_MS))],
)
async def two(ctx: Context) -> int:
    return 1


FLOW = workflow("asking", steps=[one, two])
USED = """
SELECT (SELECT count(*) FROM effect_dispatch WHERE run_id = $1) AS tries,
       (SELECT count(*) FROM approval_certificate WHERE run_id = $1 AND consumed_ms > 0) AS used,
       (SELECT count(*) FROM effect_dispatch AS d
         WHERE d.run_id = $1 AND (SELECT count(*) FROM approval_certificate AS c
                                   WHERE (c.run_id, c.step_key, c.slot, c.consumed_n) = (d.run_id, d.step_key, d.slot, d.n)
                                     AND c.consumed_ms > 0) <> 1) AS unallowed
"""


@dataclass
class Scheduler(Peer):
    """Signs leases, and knows the steps that it has leased."""

    signer: Signer = field(default_factory=Signer)
    leased: dict[tuple[UUID, str], StepFence] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.answer = self.fences_of

    def fences_of(self, request: fence_pb2.GetFencesRequest) -> fence_pb2.GetFencesResponse:
        names = [(UUID(bytes=name.run_id), name.step_key) for name in request.steps]
        steps = [step_to(StepValue(*name, self.leased[name]), live_first_grant=True) for name in names if name in self.leased]
        return fence_pb2.GetFencesResponse(steps=steps, incarnation=self.incarnation)

    def token(self, run: pb.Run, step_key: str) -> bytes:
        """A lease of the run's epoch: one attempt holds the step, for as long as the run lives."""
        run_id = UUID(run.run_id)
        fence = self.leased.setdefault((run_id, step_key), StepFence(1, 1, uuid4()))
        claims = Claims(
            tenant=run.tenant,
            project=run.project,
            run_id=run_id,
            step_key=step_key,
            fence=fence,
            epoch=run.epoch,
            points=("gateway",),
            region="",
            audience="runway",
            issued_at_ms=0,
            expires_at_ms=FAR_MS,
            handler="h@1",
            tools=(TOOL,),
        )
        return bytes(self.signer.sign(claims))

    async def compose(self, host: Host) -> Service:
        """With the keys that its signatures verify by."""
        signer = self.signer

        class Keys(scheduler_internal_pb2_grpc.SchedulerInternalServiceServicer):
            async def GetSigningKeys(self, request: Any, context: Any) -> scheduler_internal_pb2.GetSigningKeysResponse:
                public = signer.public
                key = scheduler_internal_pb2.SigningKey(key_id=public.key_id, public_key=public.public_bytes)
                return scheduler_internal_pb2.GetSigningKeysResponse(keys=[key])

        async def healthy() -> bool:
            return True

        add = scheduler_internal_pb2_grpc.add_SchedulerInternalServiceServicer_to_server
        keys = Mounted(add, Keys(), "runway.internal.scheduler.v1.SchedulerInternalService")
        return Composed(self.name, healthy, [keys], self.take, fences=self)


@dataclass
class Desk:
    """The two services, everybody's clients, and what the provider and the databases say."""

    host: Host
    clock: ManualClock
    scheduler: Scheduler
    provider: Provider
    launcher: Client
    people: Mapping[str, Person]
    gateway: asyncpg.Connection
    stub: gateway_service_pb2_grpc.GatewayServiceStub
    key: str

    async def tell(self, *events: ev.Event) -> None:
        """Into launch's inbox, as the scheduler's outbox would."""
        request = inbox_pb2.DeliverRequest(service="launch", events=[event.SerializeToString() for event in events])
        answer = await self.host.peers.deliver("launch", request)
        assert [item.verdict for item in answer.verdicts] == [inbox_pb2.VERDICT_APPLIED] * len(events)

    async def call(self, run: pb.Run, step_key: str, content: int) -> gw.InvokeToolResponse:
        """An attempt's call; raises Refusal."""
        request = gw.InvokeToolRequest(
            tool=TOOL, arguments=to_value(arguments(run.run_id, step_key, content)), slot="post", wait=Duration(seconds=5)
        )
        metadata = (("authorization", f"Bearer {self.key}"), ("runway-lease-bin", self.scheduler.token(run, step_key)))
        try:
            answer: gw.InvokeToolResponse = await self.stub.InvokeTool(request, metadata=metadata, timeout=30)
        except grpc.aio.AioRpcError as error:
            raise refusal_of(error) from None
        return answer

    async def drained(self, run_id: str) -> None:
        """Waits until the run is paused: no point has anything of it under way."""

        async def there() -> bool:
            return (await self.launcher.get(run_id)).state == pb.RUN_STATE_PAUSED

        await wait_until(there, what="a paused run")


def path(run_id: str, step_key: str) -> str:
    return f"/{step_key}/{run_id}"


def arguments(run_id: str, step_key: str, content: int) -> dict[str, Any]:
    return {"target": "api", "method": "POST", "path": path(run_id, step_key), "json": {"amount": content}}


def command(run_id: str, step_key: str, slot: str, said: Mapping[str, str], content: int) -> ev.Event:
    """What an attempt that was refused for want of an approval yields with."""
    payload = {
        "slot": said["slot"],
        "tool": said["tool"],
        "digest": said["digest"],
        "version": int(said["version"]),
        "hold_micros": int(said["hold_micros"]),
        "content": arguments(run_id, step_key, content),
    }
    fact = ev.CommandRecorded(
        run_id=UUID(run_id).bytes,
        step_key=step_key,
        slot=slot,
        kind=ev.COMMAND_KIND_APPROVAL,
        payload=to_value(payload).SerializeToString(),
    )
    return ev.Event(event_id=uuid4().bytes, command_recorded=fact)


PEOPLE: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "rita": ("acme", ("reviewer",)),
    "rolf": ("acme", ("reviewer",)),
    "rosa": ("acme", ("reviewer",)),
    "lena": ("acme", ("reviewer", "automation")),
    "olga": ("acme", ("reviewer", "automation")),
    "otto": ("acme", ("operator",)),
    "eve": ("evil", ("reviewer", "operator")),
}
"""By name: tenant and roles. Olga publishes, Lena launches, Otto operates, Eve is another tenant's."""


@asynccontextmanager
async def opened_desk(stack_db: StackDatabase, provider: Provider, clock: ManualClock) -> AsyncIterator[Desk]:
    """`provider` is the target `api` of the gateway's environment."""
    urls = await stack_db(["launch", "gateway"])
    scheduler = Scheduler("scheduler")
    peers = [scheduler, Peer("readiness"), Peer("checkpoint"), Peer("reconciler")]
    gateway = await asyncpg.connect(urls["gateway"])
    people: dict[str, Person] = {}
    try:
        async with running_host(["launch", "gateway"], urls, peers=peers, clock=clock) as host:
            for name, (tenant, scopes) in PEOPLE.items():
                key = await make_key(host, name=name, scopes=scopes, tenant=tenant)
                client = Client(Target(host.addresses.public, key, host.addresses.control))
                people[name] = Person(name, client, ApproverKey.generate())
                await client.approvals.register(people[name].key)
            worker = await make_key(host, name="worker", scopes=("worker",))
            await people["olga"].client.publish(FLOW)
            async with open_channel(host.addresses.public) as channel:
                stub = gateway_service_pb2_grpc.GatewayServiceStub(channel)
                yield Desk(host, clock, scheduler, provider, people["lena"].client, people, gateway, stub, worker)
    finally:
        await asyncio.gather(*(person.client.close() for person in people.values()))
        await gateway.close()
