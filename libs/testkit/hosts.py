"""Real services in the test's own process, over real gRPC, with stand-ins only for peers that a test does not host.

Authoritative for nothing. Can go wrong: a peer that records and never refuses hides a fault; `Peer` therefore answers what the
test tells it to, and counts.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pydantic import SecretStr
from runway.events.v1 import events_pb2
from runway.internal.fence.v1 import fence_pb2
from runway.internal.inbox.v1 import inbox_pb2
from runway.launch.v1 import admin_service_pb2, admin_service_pb2_grpc, project_service_pb2, project_service_pb2_grpc

from libs.kernel.clock import Clock
from libs.kernel.refusal import Refusal
from libs.rpc.channels import CarryingChannel, open_channel
from libs.runtime.host import Compose, Host, load_compose
from libs.runtime.service import Composed, Service
from libs.runtime.settings import HostSettings

SECRET = "a-secret-of-the-tests"  # noqa: S105  (of tests)


@dataclass
class Peer:
    """A service that the test does not host: records what it is sent, answers as told."""

    name: str
    events: list[events_pb2.Event] = field(default_factory=list)
    raised: list[fence_pb2.RaiseFencesRequest] = field(default_factory=list)
    quiesced: bool = True
    refuse: Refusal | None = None
    answer: Callable[[fence_pb2.GetFencesRequest], fence_pb2.GetFencesResponse] | None = None
    incarnation: int = 256
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)
    standing: int = 0
    """How approvals stand at this gateway, whatever it is sent; 0: as they are sent."""

    async def take(self, raws: list[bytes]) -> tuple[int, list[inbox_pb2.EventVerdict]]:
        """The inbox."""
        if self.refuse is not None:
            raise self.refuse
        self.events += [events_pb2.Event.FromString(raw) for raw in raws]
        async with self.arrived:
            self.arrived.notify_all()
        return self.incarnation, [inbox_pb2.EventVerdict(verdict=inbox_pb2.VERDICT_APPLIED) for _ in raws]

    async def raise_fences(self, request: fence_pb2.RaiseFencesRequest) -> fence_pb2.RaiseFencesResponse:
        """A point that commits every raise."""
        if self.refuse is not None:
            raise self.refuse
        self.raised.append(request)
        gates = [fence_pb2.RaiseAnswer(committed=True, gate=gate, quiesced=self.quiesced) for gate in request.gates]
        steps = [fence_pb2.RaiseAnswer(committed=True) for _ in request.steps]
        scopes = [fence_pb2.RaiseAnswer(committed=True) for _ in request.scopes]
        approvals = [
            fence_pb2.ApprovalAnswer(
                committed=True, standing=fence_pb2.ApprovalStanding.ValueType(self.standing or item.standing), consumed_ms=5
            )
            for item in request.approvals
        ]
        return fence_pb2.RaiseFencesResponse(
            gates=gates, steps=steps, scopes=scopes, approvals=approvals, incarnation=self.incarnation
        )

    async def get_fences(self, request: fence_pb2.GetFencesRequest) -> fence_pb2.GetFencesResponse:
        """An authority that knows what the test told it."""
        if self.refuse is not None:
            raise self.refuse
        return self.answer(request) if self.answer else fence_pb2.GetFencesResponse(incarnation=self.incarnation)

    def facts(self, kind: str) -> list[events_pb2.Event]:
        """Events of one kind, in the order they came."""
        return [event for event in self.events if event.WhichOneof("fact") == kind]

    async def wait_for(self, kind: str, count: int = 1, timeout_s: float = 10.0) -> list[events_pb2.Event]:
        """Events of a kind, once there are so many."""
        async with asyncio.timeout(timeout_s), self.arrived:
            await self.arrived.wait_for(lambda: len(self.facts(kind)) >= count)
        return self.facts(kind)

    async def compose(self, host: Host) -> Service:
        """This peer as a hosted service."""

        async def healthy() -> bool:
            return self.refuse is None

        return Composed(name=self.name, healthy=healthy, inbox=self.take, fences=self)


@asynccontextmanager
async def running_host(
    names: Sequence[str],
    urls: Mapping[str, str],
    *,
    peers: Sequence[Peer] = (),
    environ: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Host]:
    """A process's worth of services, started; `peers` stand in for services that are not hosted."""
    by_name = {peer.name: peer.compose for peer in peers}
    surroundings = {f"RUNWAY_{name.upper()}_DATABASE_URL": url for name, url in urls.items()} | dict(environ or {})
    settings = HostSettings(service_secret=SecretStr(SECRET))
    host = Host(settings, environ=surroundings, clock=clock)

    def compose_of(name: str) -> Compose:
        return by_name.get(name) or load_compose(name)

    try:
        await host.start([*names, *by_name], compose_of)
        yield host
    finally:
        await host.stop(grace_ms=200)


def service_channel(host: Host, port: str = "control") -> CarryingChannel:
    """A channel that shows the installation's secret."""
    return open_channel(getattr(host.addresses, port), secret=SECRET)


async def make_project(host: Host, admin_key: str, project: str) -> None:
    """A project of the key's tenant, as its admin would make it; one that is there stays."""
    async with open_channel(host.addresses.public, metadata=(("authorization", f"Bearer {admin_key}"),)) as channel:
        stub = project_service_pb2_grpc.ProjectServiceStub(channel)
        await stub.CreateProject(project_service_pb2.CreateProjectRequest(project=project))


async def make_key(
    host: Host,
    *,
    tenant: str = "acme",
    project: str = "",
    scopes: Sequence[str] = ("worker", "operator"),
    limit_micros: int = 1_000_000_000_000,
    max_active_runs: int = 1_000_000,
    name: str = "tests",
) -> str:
    """A tenant, its project where one is named, and an API key of it, as an operator would make them."""
    async with service_channel(host) as channel:
        admin = admin_service_pb2_grpc.AdminServiceStub(channel)
        await admin.PutTenant(
            admin_service_pb2.PutTenantRequest(tenant=tenant, limit_micros=limit_micros, max_active_runs=max_active_runs)
        )
        if project:
            first = admin_service_pb2.CreateApiKeyRequest(tenant=tenant, scopes=["admin"], name="tests-admin")
            await make_project(host, str((await admin.CreateApiKey(first)).api_key), project)
        request = admin_service_pb2.CreateApiKeyRequest(tenant=tenant, project=project, scopes=scopes, name=name)
        return str((await admin.CreateApiKey(request)).api_key)
