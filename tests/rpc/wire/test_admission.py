"""Who gets in, what is refused before a handler runs, and what an answer never tells; over real gRPC."""

import asyncio
import logging
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from runway.common.v1 import policy_pb2
from runway.gateway.v1 import gateway_service_pb2 as gateway
from runway.gateway.v1 import gateway_service_pb2_grpc
from runway.internal.fence.v1 import fence_pb2, fence_pb2_grpc
from runway.internal.inbox.v1 import inbox_pb2
from runway.reconciler.v1 import reconciler_service_pb2 as reconciler
from runway.reconciler.v1 import reconciler_service_pb2_grpc

from libs.kernel.refusal import Reason, Refusal
from libs.rpc.admission import Limits
from libs.rpc.health import HealthBoard
from libs.rpc.policy import Access
from libs.rpc.server import Mounted, serve
from libs.rpc.status import refusal_of
from libs.runtime.clock import SystemClock
from tests.rpc.wire.conftest import KEYS, LEASE, SECRET, Wire, bearer, refused

GOOD = inbox_pb2.DeliverRequest(service="launch", events=[b"e"])
UNKNOWN_KEYS = [(), bearer("rk_nobody_1234"), (("authorization", "rk_caller_1234"),), (("authorization", "Bearer x"),)]


async def test_the_service_secret_opens_service_methods_and_nothing_else_does(wire: Wire) -> None:
    answer = await wire.inbox().Deliver(GOOD)
    assert answer.incarnation == 1
    assert wire.calls[0].caller is None
    for secret in (None, "wrong", SECRET + "x", SECRET[:-1]):
        got = refusal_of(await refused(wire.inbox(secret).Deliver(GOOD)))
        assert got.reason is Reason.UNAUTHENTICATED
        assert "runway-service-secret" in got.remedy
    assert len(wire.calls) == 1


@pytest.mark.parametrize("metadata", UNKNOWN_KEYS)
async def test_a_caller_method_needs_a_known_key(wire: Wire, metadata: Any) -> None:
    stub = gateway_service_pb2_grpc.GatewayServiceStub(wire.channel(metadata=metadata, secret=SECRET))
    assert refusal_of(await refused(stub.ListTools(gateway.ListToolsRequest()))).reason is Reason.UNAUTHENTICATED
    assert wire.calls == []


@pytest.mark.parametrize("key", list(KEYS))
async def test_every_key_may_call_and_says_whose_it_is(wire: Wire, key: str) -> None:
    stub = gateway_service_pb2_grpc.GatewayServiceStub(wire.channel(metadata=bearer(key)))
    await stub.ListTools(gateway.ListToolsRequest())
    caller = wire.calls[0].require_caller()
    assert (caller.tenant, caller.project, caller.scopes) == ("acme", "web", KEYS[key])


@pytest.mark.parametrize("key", list(KEYS))
async def test_an_operator_method_needs_the_scope(wire: Wire, key: str) -> None:
    stub = reconciler_service_pb2_grpc.ReconcilerServiceStub(wire.channel("control", metadata=bearer(key)))
    call = stub.ListStuckWork(reconciler.ListStuckWorkRequest())
    if "operator" in KEYS[key]:
        await call
    else:
        got = refusal_of(await refused(call))
        assert got.reason is Reason.METHOD_DENIED
        assert "operator" in got.remedy


async def test_a_lease_method_needs_a_worker_key_and_a_genuine_lease_of_the_same_tenant(wire: Wire) -> None:
    async def reason(key: str, token: bytes | None) -> Reason:
        metadata = (*bearer(key), *((("runway-lease-bin", token),) if token is not None else ()))
        stub = gateway_service_pb2_grpc.GatewayServiceStub(wire.channel(metadata=metadata))
        return refusal_of(await refused(stub.WaitEffect(gateway.WaitEffectRequest(slot="s")))).reason

    assert await reason("rk_caller_1234", LEASE) is Reason.METHOD_DENIED
    assert await reason("rk_worker_1234", None) is Reason.LEASE_INVALID
    assert await reason("rk_worker_1234", b"") is Reason.LEASE_INVALID
    assert await reason("rk_worker_1234", b"forged") is Reason.LEASE_INVALID
    assert await reason("rk_worker_1234", LEASE * 1000) in (Reason.LEASE_INVALID, Reason.TOO_LARGE)
    assert await reason("rk_worker_1234", LEASE + b"other") is Reason.LEASE_INVALID
    assert wire.calls == []
    metadata = (*bearer("rk_worker_1234"), ("runway-lease-bin", LEASE))
    stub = gateway_service_pb2_grpc.GatewayServiceStub(wire.channel(metadata=metadata))
    await stub.WaitEffect(gateway.WaitEffectRequest(slot="s"))
    assert wire.calls[0].require_lease().step_key == "fetch"
    assert wire.calls[0].lease_token == LEASE


async def test_a_fleet_acts_under_a_lease_as_its_runs_tenant_and_as_itself_without(wire: Wire) -> None:
    def stub(*lease: tuple[str, bytes]) -> gateway_service_pb2_grpc.GatewayServiceStub:
        return gateway_service_pb2_grpc.GatewayServiceStub(wire.channel(metadata=(*bearer("rk_fleet_1234"), *lease)))

    foreign = ("runway-lease-bin", LEASE + b"other")
    for bad in ((), (("runway-lease-bin", b"forged"),)):
        error = await refused(stub(*bad).WaitEffect(gateway.WaitEffectRequest(slot="s")))
        assert refusal_of(error).reason is Reason.LEASE_INVALID
    await stub(foreign).WaitEffect(gateway.WaitEffectRequest(slot="s"))
    await stub(foreign).ListTools(gateway.ListToolsRequest())
    await stub(("runway-lease-bin", LEASE)).WaitEffect(gateway.WaitEffectRequest(slot="s"))
    seen = [(call.require_caller().tenant, call.require_caller().project, call.lease is not None) for call in wire.calls]
    assert seen == [("other", "far", True), ("acme", "web", False), ("acme", "web", True)]
    assert {call.require_caller().name for call in wire.calls} == {"fleet"}


async def test_each_port_serves_its_own_methods(wire: Wire) -> None:
    raising = fence_pb2.RaiseFencesRequest(service="gateway")
    for port in ("public", "control"):
        error = await refused(fence_pb2_grpc.FenceServiceStub(wire.channel(port, secret=SECRET)).RaiseFences(raising))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    await fence_pb2_grpc.FenceServiceStub(wire.channel("leaf", secret=SECRET)).RaiseFences(raising)
    keyed = bearer("rk_operator_1234")
    for port in ("public", "control"):
        stub = reconciler_service_pb2_grpc.ReconcilerServiceStub(wire.channel(port, metadata=keyed))
        await stub.ListStuckWork(reconciler.ListStuckWorkRequest())
    tools = gateway_service_pb2_grpc.GatewayServiceStub(wire.channel("control", metadata=keyed))
    assert (await refused(tools.ListTools(gateway.ListToolsRequest()))).code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.fixture
def unguarded() -> str:
    """A gRPC service with a method that has no policy, and one that lives on the control port."""
    name = "wiretest/unguarded.proto"
    pool = descriptor_pool.Default()
    try:
        pool.FindFileByName(name)
    except KeyError:
        file = descriptor_pb2.FileDescriptorProto(name=name, package="wiretest", syntax="proto3")
        file.dependency.extend(["runway/common/v1/policy.proto"])
        file.message_type.add(name="Empty")
        service = file.service.add(name="Unguarded")
        for method in ("Forgotten", "Controlled", "Open"):
            service.method.add(name=method, input_type=".wiretest.Empty", output_type=".wiretest.Empty")
        service.method[1].options.Extensions[policy_pb2.fence] = policy_pb2.FENCE_OPEN
        service.method[2].options.Extensions[policy_pb2.fence] = policy_pb2.FENCE_OPEN
        service.method[1].options.Extensions[policy_pb2.port] = policy_pb2.PORT_CONTROL
        pool.AddSerializedFile(file.SerializeToString())
    return "wiretest.Unguarded"


async def test_a_method_without_a_policy_is_denied_and_one_on_another_port_says_where(unguarded: str) -> None:
    async def echo(request: inbox_pb2.ListStuckResponse, context: Any) -> inbox_pb2.ListStuckResponse:
        return request

    def add(_servicer: object, server: Any) -> None:
        handler = grpc.unary_unary_rpc_method_handler(
            echo, inbox_pb2.ListStuckResponse.FromString, inbox_pb2.ListStuckResponse.SerializeToString
        )
        handlers = {"Forgotten": handler, "Controlled": handler, "Open": handler}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(unguarded, handlers),))

    async def call(port: str, method: str) -> bytes:
        server = serve(
            port,
            "127.0.0.1:0",
            mounted=[Mounted(add, None, unguarded)],
            access=Access(SECRET),
            health_board=HealthBoard(),
            clock=SystemClock(),
        )
        await server.start()
        try:
            async with grpc.aio.insecure_channel(server.address) as channel:
                answer: bytes = await channel.unary_unary(f"/{unguarded}/{method}")(b"")
                return answer
        finally:
            await server.stop(0)

    denied = refusal_of(await refused(call("public", "Forgotten")))
    assert denied.reason is Reason.METHOD_DENIED
    assert "has no policy" in denied.message
    assert await call("public", "Controlled") == b""
    assert await call("control", "Controlled") == b""
    elsewhere = refusal_of(await refused(call("control", "Open")))
    assert elsewhere.reason is Reason.METHOD_DENIED
    assert "is served on the public port" in elsewhere.message
    assert await call("public", "Open") == b""


async def test_every_violated_rule_is_named_at_once(wire: Wire) -> None:
    gates = [
        fence_pb2.RunGate(run_id=b"0" * 16),
        fence_pb2.RunGate(run_id=b"short", epoch=-1, mode=9),  # type: ignore[arg-type]
    ]
    stub = fence_pb2_grpc.FenceServiceStub(wire.channel("leaf", secret=SECRET))
    got = refusal_of(await refused(stub.RaiseFences(fence_pb2.RaiseFencesRequest(gates=gates))))
    assert got.reason is Reason.INVALID_FIELD
    assert {field for field, _ in got.violations} == {"service", "gates[1].run_id", "gates[1].epoch", "gates[1].mode"}
    assert dict(got.violations)["gates[1].run_id"] == "must be 16 bytes"
    assert got.remedy
    assert wire.calls == []


@pytest.mark.parametrize("wire", [Limits(message_bytes=10_000, metadata_bytes=2_000)], indirect=True)
async def test_oversized_and_unreadable_calls_are_typed_refusals_and_the_next_one_is_fine(wire: Wire) -> None:
    large = inbox_pb2.DeliverRequest(service="launch", events=[b"x" * 20_000])
    got = refusal_of(await refused(wire.inbox().Deliver(large)))
    assert (got.reason, got.detail["limit_bytes"]) == (Reason.TOO_LARGE, "10000")
    got = refusal_of(await refused(wire.inbox(metadata=(("x-much", "y" * 3_000),)).Deliver(GOOD)))
    assert got.reason is Reason.TOO_LARGE
    raw = wire.channel(secret=SECRET).unary_unary("/runway.internal.inbox.v1.InboxService/Deliver")
    got = refusal_of(await refused(raw(b"\xff\xff\xff")))
    assert got.reason is Reason.INVALID_FIELD
    assert wire.calls == []
    await wire.inbox().Deliver(GOOD)


async def test_a_fault_is_logged_under_a_trace_and_tells_the_caller_nothing(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    async def break_down(_request: Any) -> None:
        raise RuntimeError("connect to postgresql://runway:hunter2hunter2@db failed")

    wire.act = break_down
    with caplog.at_level(logging.ERROR):
        error = await refused(wire.inbox().Deliver(GOOD))
    got = refusal_of(error)
    assert (error.code(), got.reason) == (grpc.StatusCode.INTERNAL, Reason.INTERNAL)
    assert "hunter2" not in repr(error)
    assert "postgresql" not in repr(error)
    assert got.detail["trace_id"] in caplog.text
    assert "connect to" in caplog.text
    assert "hunter2" not in caplog.text


async def test_a_refusal_of_a_handler_reaches_the_client_typed(wire: Wire) -> None:
    async def refuse(_request: Any) -> None:
        raise Refusal(Reason.EPOCH_STALE, "the run moved", remedy="renew", detail={"epoch": "9"})

    wire.act = refuse
    error = await refused(wire.inbox().Deliver(GOOD))
    got = refusal_of(error)
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert (got.reason, got.detail, got.remedy) == (Reason.EPOCH_STALE, {"epoch": "9"}, "renew")


async def test_what_another_service_refused_on_the_way_is_handed_on(wire: Wire) -> None:
    async def forward(request: Any) -> None:
        if request.service == "launch":
            await wire.inbox("wrong").Deliver(inbox_pb2.DeliverRequest(service="x", events=[b"e"]))

    wire.act = forward
    assert refusal_of(await refused(wire.inbox().Deliver(GOOD))).reason is Reason.UNAUTHENTICATED


@pytest.mark.parametrize("wire", [Limits(deadline_ms=50)], indirect=True)
async def test_a_client_without_a_deadline_gets_the_servers(wire: Wire) -> None:
    forever = asyncio.Event()

    async def hang(_request: Any) -> None:
        await forever.wait()

    wire.act = hang
    async with grpc.aio.insecure_channel(wire.addresses["public"]) as plain:
        call = plain.unary_unary("/runway.internal.inbox.v1.InboxService/Deliver")
        error = await refused(call(GOOD.SerializeToString(), metadata=(("runway-service-secret", SECRET),)))
    got = refusal_of(error)
    assert (error.code(), got.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, Reason.DEADLINE_EXCEEDED)
    assert got.detail == {"commit": "unknown"}
    assert wire.calls[0].deadline_ms is not None


@pytest.mark.parametrize(
    "wire",
    [Limits(deadline_ms=20, deadline_ms_of={"/runway.internal.inbox.v1.InboxService/Deliver": 60_000})],
    indirect=True,
)
async def test_a_long_poll_may_have_a_deadline_of_its_own(wire: Wire) -> None:
    before = SystemClock().now_ms()
    async with grpc.aio.insecure_channel(wire.addresses["public"]) as plain:
        call = plain.unary_unary("/runway.internal.inbox.v1.InboxService/Deliver")
        await call(GOOD.SerializeToString(), metadata=(("runway-service-secret", SECRET),))
    deadline_ms = wire.calls[0].deadline_ms
    assert deadline_ms is not None
    assert 59_000 < deadline_ms - before < 62_000


async def test_the_clients_deadline_cancels_the_handler(wire: Wire) -> None:
    cancelled = asyncio.Event()

    async def hang(_request: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    wire.act = hang
    error = await refused(wire.inbox().Deliver(GOOD, timeout=0.05))
    assert refusal_of(error).reason is Reason.DEADLINE_EXCEEDED
    async with asyncio.timeout(5):
        await cancelled.wait()


async def test_a_call_made_while_handling_one_inherits_what_is_left_of_its_deadline(wire: Wire) -> None:
    async def onward(request: Any) -> None:
        if request.service == "launch":
            await wire.inbox().Deliver(inbox_pb2.DeliverRequest(service="inner", events=[b"e"]))

    wire.act = onward
    await wire.inbox().Deliver(GOOD, timeout=7)
    outer, inner = (call.deadline_ms for call in wire.calls)
    assert outer is not None
    assert inner is not None
    assert abs(outer - inner) < 1_000
