"""Health, reflection and drain, over real gRPC."""

import asyncio
from typing import Any

import grpc
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from runway.internal.inbox.v1 import inbox_pb2

from libs.kernel.refusal import Reason
from libs.rpc.status import refusal_of
from tests.rpc.wire.conftest import Wire, refused

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
GOOD = inbox_pb2.DeliverRequest(service="launch", events=[b"e"])


async def health(wire: Wire, name: str, port: str = "public") -> Any:
    stub = health_pb2_grpc.HealthStub(wire.channel(port))
    return (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status


async def test_health_follows_the_check_per_service_on_every_port(wire: Wire) -> None:
    state = {"up": True}

    async def healthy() -> bool:
        if not state["up"]:
            raise ConnectionError("the database is away")
        return True

    async def fine() -> bool:
        return True

    await wire.board.add("launch", ["runway.launch.v1.LaunchService"])
    await wire.board.add("gateway", ["runway.gateway.v1.GatewayService"])
    assert await health(wire, "launch") == NOT_SERVING
    for up, expected in ((True, SERVING), (False, NOT_SERVING), (True, SERVING)):
        state["up"] = up
        await wire.board.check("launch", healthy)
        await wire.board.check("gateway", fine)
        for port in wire.addresses:
            assert await health(wire, "launch", port) == expected
            assert await health(wire, "runway.launch.v1.LaunchService", port) == expected
            assert await health(wire, "", port) == expected
            assert await health(wire, "gateway", port) == SERVING


async def test_a_check_that_hangs_is_a_no(wire: Wire) -> None:
    async def hang() -> bool:
        await asyncio.Event().wait()
        return True

    await wire.board.add("launch", [])
    assert await wire.board.check("launch", hang, timeout_ms=20) is False


async def test_reflection_shows_the_services_and_the_policy_file(wire: Wire) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(wire.channel())
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_by_filename="runway/common/v1/policy.proto"),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="runway.gateway.v1.GatewayService"),
    ]
    answers = [answer async for answer in stub.ServerReflectionInfo(iter(requests), timeout=5)]
    names = {service.name for service in answers[0].list_services_response.service}
    assert {"runway.gateway.v1.GatewayService", "grpc.health.v1.Health"} <= names
    assert "runway.internal.fence.v1.FenceService" not in names, "it is served on the leaf port alone"
    file = descriptor_pb2.FileDescriptorProto.FromString(answers[1].file_descriptor_response.file_descriptor_proto[0])
    assert [extension.name for extension in file.extension] == ["fence", "port", "criticality", "lasting", "roles"]
    assert answers[2].file_descriptor_response.file_descriptor_proto


async def test_starting_and_draining_refuse_with_a_reason_to_come_again(wire: Wire) -> None:
    wire.gate.starting("launch", ["runway.internal.inbox.v1.InboxService"])
    error = await refused(wire.inbox().Deliver(GOOD))
    assert (error.code(), refusal_of(error).reason) == (grpc.StatusCode.UNAVAILABLE, Reason.AUTHORITY_UNREACHABLE)
    wire.gate.started("launch")
    await wire.inbox().Deliver(GOOD)
    await wire.board.drain()
    wire.gate.drain()
    error = await refused(wire.inbox().Deliver(GOOD))
    assert (error.code(), refusal_of(error).reason) == (grpc.StatusCode.UNAVAILABLE, Reason.DRAINING)
    assert refusal_of(error).retry_after_ms
    assert await health(wire, "") == NOT_SERVING


async def test_stopping_waits_for_calls_under_way(wire: Wire) -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    async def slow(_request: Any) -> None:
        entered.set()
        await go.wait()

    wire.act = slow
    call = asyncio.ensure_future(wire.inbox().Deliver(GOOD))
    async with asyncio.timeout(5):
        await entered.wait()
        stopping = asyncio.create_task(wire.servers["public"].stop(5_000))
        await asyncio.sleep(0)
        go.set()
        assert (await call).incarnation == 1
        await stopping


async def test_two_servers_never_share_a_port(wire: Wire) -> None:
    from libs.rpc.health import HealthBoard
    from libs.rpc.policy import Access
    from libs.rpc.server import serve
    from libs.runtime.clock import SystemClock

    taken = wire.addresses["public"]
    failed = False
    try:
        serve("public", taken, mounted=[], access=Access(), health_board=HealthBoard(), clock=SystemClock())
    except RuntimeError:
        failed = True
    assert failed
