"""A server of our own making, over real gRPC, with handlers the test decides."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import grpc
import pytest
from runway.gateway.v1 import gateway_service_pb2, gateway_service_pb2_grpc
from runway.internal.fence.v1 import fence_pb2, fence_pb2_grpc
from runway.internal.inbox.v1 import inbox_pb2, inbox_pb2_grpc
from runway.reconciler.v1 import reconciler_service_pb2, reconciler_service_pb2_grpc

from libs.kernel.refusal import Reason, Refusal
from libs.rpc.admission import Limits
from libs.rpc.channels import CarryingChannel, open_channel
from libs.rpc.health import HealthBoard
from libs.rpc.identity import Call, Caller, VerifiedLease, current_call
from libs.rpc.policy import Access, key_digest
from libs.rpc.server import Gate, Mounted, PortServer, serve
from libs.runtime.clock import SystemClock

SECRET = "the-secret-of-this-installation"
KEYS = {
    "rk_caller_1234": frozenset({"caller"}),
    "rk_worker_1234": frozenset({"caller", "worker"}),
    "rk_operator_1234": frozenset({"caller", "operator"}),
    "rk_fleet_1234": frozenset({"caller", "fleet"}),
}
RUN, ATTEMPT = UUID(int=7), UUID(int=9)
LEASE = b"\x00\x01signed-lease-token\xff"


@dataclass(frozen=True)
class Lease:
    """What the test's verifier says."""

    tenant: str = "acme"
    project: str = "web"
    run_id: UUID = RUN
    step_key: str = "fetch"
    authority_epoch: int = 1
    lease_epoch: int = 1
    attempt_id: UUID = ATTEMPT
    epoch: int = 3


class Directory:
    async def resolve(self, digest: bytes) -> Caller | None:
        found = {key_digest(key): (key, scopes) for key, scopes in KEYS.items()}.get(digest)
        return Caller("acme", "web", "id", found[1], found[0].split("_")[1]) if found else None


class Verifier:
    async def verify(self, token: bytes) -> VerifiedLease:
        if token == LEASE:
            return Lease()
        if token == LEASE + b"other":
            return Lease(tenant="other", project="far")
        raise Refusal(Reason.LEASE_INVALID, "the signature does not fit")


@dataclass
class Wire:
    """Three servers with the same handlers; `act` is what each handler does."""

    addresses: dict[str, str]
    servers: dict[str, PortServer]
    board: HealthBoard
    gate: Gate
    act: Callable[[Any], Awaitable[None]]
    calls: list[Call] = field(default_factory=list)
    channels: list[CarryingChannel] = field(default_factory=list)

    def channel(self, port: str = "public", *, secret: str | None = None, metadata: Any = ()) -> CarryingChannel:
        channel = open_channel(self.addresses[port], secret=secret, metadata=tuple(metadata))
        self.channels.append(channel)
        return channel

    def inbox(self, secret: str | None = SECRET, metadata: Any = ()) -> Any:
        return inbox_pb2_grpc.InboxServiceStub(self.channel(secret=secret, metadata=metadata))

    async def seen(self, request: Any) -> None:
        self.calls.append(current_call())
        await self.act(request)


async def nothing(_request: Any) -> None:
    return None


def servicers(wire: Wire) -> list[Mounted]:
    class Inbox(inbox_pb2_grpc.InboxServiceServicer):
        async def Deliver(self, request: Any, context: Any) -> Any:
            await wire.seen(request)
            return inbox_pb2.DeliverResponse(incarnation=len(request.events))

    class Fences(fence_pb2_grpc.FenceServiceServicer):
        async def RaiseFences(self, request: Any, context: Any) -> Any:
            await wire.seen(request)
            return fence_pb2.RaiseFencesResponse(incarnation=5)

    class Gateway(gateway_service_pb2_grpc.GatewayServiceServicer):
        async def ListTools(self, request: Any, context: Any) -> Any:
            await wire.seen(request)
            return gateway_service_pb2.ListToolsResponse()

        async def WaitEffect(self, request: Any, context: Any) -> Any:
            await wire.seen(request)
            return gateway_service_pb2.WaitEffectResponse()

    class Reconciler(reconciler_service_pb2_grpc.ReconcilerServiceServicer):
        async def ListStuckWork(self, request: Any, context: Any) -> Any:
            await wire.seen(request)
            return reconciler_service_pb2.ListStuckWorkResponse()

    return [
        Mounted(inbox_pb2_grpc.add_InboxServiceServicer_to_server, Inbox(), "runway.internal.inbox.v1.InboxService"),
        Mounted(fence_pb2_grpc.add_FenceServiceServicer_to_server, Fences(), "runway.internal.fence.v1.FenceService"),
        Mounted(gateway_service_pb2_grpc.add_GatewayServiceServicer_to_server, Gateway(), "runway.gateway.v1.GatewayService"),
        Mounted(
            reconciler_service_pb2_grpc.add_ReconcilerServiceServicer_to_server,
            Reconciler(),
            "runway.reconciler.v1.ReconcilerService",
        ),
    ]


@pytest.fixture
async def wire(request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    limits: Limits = getattr(request, "param", None) or Limits()
    made = Wire({}, {}, HealthBoard(), Gate(), nothing)
    mounted = servicers(made)
    access = Access(SECRET, Directory(), lambda service: Verifier() if service.endswith("GatewayService") else None)
    for port in ("public", "control", "leaf"):
        server = serve(
            port,
            "127.0.0.1:0",
            mounted=mounted,
            access=access,
            health_board=made.board,
            clock=SystemClock(),
            gate=made.gate,
            limits=limits,
        )
        await server.start()
        made.servers[port] = server
        made.addresses[port] = server.address
    yield made
    for channel in made.channels:
        await channel.close()
    for server in made.servers.values():
        await server.stop(0)


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


async def refused(call: Awaitable[Any]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value
