"""Processes: two hosts in one test, peers over the wire and inside, starting, health, drain."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from runway.gateway.v1 import gateway_service_pb2, gateway_service_pb2_grpc
from runway.internal.fence.v1 import fence_pb2
from runway.internal.inbox.v1 import inbox_pb2, inbox_pb2_grpc
from runway.internal.launch.v1 import launch_internal_pb2, launch_internal_pb2_grpc

from libs.kernel.refusal import Reason, Refusal, unreachable
from libs.rpc.channels import open_channel
from libs.rpc.identity import Caller, in_call
from libs.rpc.policy import key_digest
from libs.rpc.status import refusal_of
from libs.runtime.host import Host
from libs.runtime.service import Composed, Every, Mounted, Service
from libs.runtime.settings import HostSettings
from libs.telemetry.traces import continued, traceparent

SECRET = "one-secret-for-both-hosts"
APPLIED = inbox_pb2.EventVerdict(verdict=inbox_pb2.VERDICT_APPLIED)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Echo:
    """A service that records what it is asked, and fails on demand."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: list[bytes] = []
        self.calls: list[Any] = []
        self.failure: Exception | None = None
        self.up = True
        self.started = 0
        self.start_failures = 0
        self.stopped = 0
        self.ticked = asyncio.Event()

    async def inbox(self, events: list[bytes]) -> tuple[int, list[inbox_pb2.EventVerdict]]:
        call = in_call()
        self.calls.append(call.method if call else None)
        if self.failure is not None:
            raise self.failure
        self.events += events
        return 42, [APPLIED for event in events if event != b"lost"]

    async def raise_fences(self, request: fence_pb2.RaiseFencesRequest) -> fence_pb2.RaiseFencesResponse:
        return fence_pb2.RaiseFencesResponse(
            gates=[fence_pb2.RaiseAnswer(committed=True, gate=gate) for gate in request.gates], incarnation=3
        )

    async def get_fences(self, request: fence_pb2.GetFencesRequest) -> fence_pb2.GetFencesResponse:
        return fence_pb2.GetFencesResponse(gates=[fence_pb2.RunGate(run_id=run, epoch=9) for run in request.run_ids])

    async def stuck(self, request: inbox_pb2.ListStuckRequest) -> inbox_pb2.ListStuckResponse:
        return inbox_pb2.ListStuckResponse(items=[inbox_pb2.StuckItem(kind=self.name)])

    async def start(self) -> None:
        if self.start_failures:
            self.start_failures -= 1
            raise unreachable("the database")
        self.started += 1

    async def stop(self) -> None:
        self.stopped += 1

    async def healthy(self) -> bool:
        return self.up

    async def tick(self) -> None:
        self.ticked.set()

    def service(self, **more: Any) -> Service:
        return Composed(
            name=self.name,
            healthy=self.healthy,
            inbox=self.inbox,
            stuck=self.stuck,
            fences=self,
            loops=[Every(1, self.tick, "tick")],
            start=self.start,
            stop=self.stop,
            **more,
        )


def composing(*services: Service) -> Callable[[str], Callable[[Host], Awaitable[Service]]]:
    by_name = {service.name: service for service in services}

    def compose_of(name: str) -> Callable[[Host], Awaitable[Service]]:
        async def compose(_host: Host) -> Service:
            return by_name[name]

        return compose

    return compose_of


@asynccontextmanager
async def hosted(*services: Service, environ: dict[str, str] | None = None, **settings: Any) -> AsyncIterator[Host]:
    chosen = {"service_secret": SECRET, "health_interval_ms": 5, "start_retry_ms": 1, **settings}
    host = Host(HostSettings(**chosen), environ=environ or {})
    try:
        await host.start([service.name for service in services], composing(*services))
        yield host
    finally:
        await host.stop(0)


def environ_of(host: Host, *names: str) -> dict[str, str]:
    found = {}
    for name in names:
        found[f"RUNWAY_{name.upper()}_ADDRESS"] = host.addresses.public
        found[f"RUNWAY_{name.upper()}_CONTROL_ADDRESS"] = host.addresses.control
        found[f"RUNWAY_{name.upper()}_LEAF_ADDRESS"] = host.addresses.leaf
    return found


@pytest.fixture
async def both() -> AsyncIterator[tuple[Echo, Host, Host]]:
    """The host of `launch`, and another that reaches it over the wire."""
    launch, gateway = Echo("launch"), Echo("gateway")
    async with AsyncExitStack() as stack:
        near = await stack.enter_async_context(hosted(launch.service()))
        far = await stack.enter_async_context(hosted(gateway.service(), environ=environ_of(near, "launch")))
        yield launch, near, far


async def test_events_and_fences_cross_inside_and_over_the_wire_alike(both: tuple[Echo, Host, Host]) -> None:
    launch, near, far = both
    answers = []
    for host in (near, far):
        delivered = await host.peers.deliver("launch", inbox_pb2.DeliverRequest(service="launch", events=[b"a", b"b"]))
        gate = fence_pb2.RunGate(run_id=b"r" * 16, epoch=5)
        raised = await host.peers.raise_fences("launch", fence_pb2.RaiseFencesRequest(service="launch", gates=[gate]))
        read = await host.peers.get_fences("launch", fence_pb2.GetFencesRequest(service="launch", run_ids=[b"r" * 16]))
        stuck = await host.peers.list_stuck("launch", inbox_pb2.ListStuckRequest(service="launch"))
        answers.append((delivered, raised, read, stuck))
    assert answers[0] == answers[1]
    assert answers[0][0].incarnation == 42
    assert len(answers[0][0].verdicts) == 2
    assert launch.events == [b"a", b"b"] * 2
    assert launch.calls == [None, "/runway.internal.inbox.v1.InboxService/Deliver"]


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (unreachable("the database"), Reason.AUTHORITY_UNREACHABLE),
        (RuntimeError("secret detail"), Reason.INTERNAL),
    ],
)
async def test_failures_look_the_same_inside_and_over_the_wire(
    both: tuple[Echo, Host, Host], failure: Exception, reason: Reason
) -> None:
    launch, near, far = both
    launch.failure = failure
    for host in (near, far):
        with pytest.raises(Refusal) as refused:
            await host.peers.deliver("launch", inbox_pb2.DeliverRequest(service="launch", events=[b"a"]))
        assert refused.value.reason is reason
        assert "secret detail" not in str(refused.value)


async def test_bad_requests_and_miscounted_answers_look_the_same_too(both: tuple[Echo, Host, Host]) -> None:
    _, near, far = both
    for host in (near, far):
        for events, reason in (([], Reason.INVALID_FIELD), ([b"lost"], Reason.INTERNAL)):
            with pytest.raises(Refusal) as refused:
                await host.peers.deliver("launch", inbox_pb2.DeliverRequest(service="launch", events=events))
            assert refused.value.reason is reason
        with pytest.raises(Refusal) as refused:
            await host.peers.deliver("launch", inbox_pb2.DeliverRequest(service="checkpoint", events=[b"a"]))
        assert refused.value.reason is Reason.NOT_FOUND


async def test_a_service_nobody_placed_is_a_refusal_that_says_what_to_set() -> None:
    async with hosted(Echo("launch").service()) as host:
        with pytest.raises(Refusal) as refused:
            await host.peers.get_fences("scheduler", fence_pb2.GetFencesRequest(service="scheduler"))
        assert refused.value.reason is Reason.AUTHORITY_UNREACHABLE
        assert "RUNWAY_SCHEDULER_LEAF_ADDRESS" in refused.value.remedy


async def test_a_host_with_another_secret_is_refused(both: tuple[Echo, Host, Host]) -> None:
    launch, near, _ = both
    async with hosted(
        Echo("gateway").service(), environ=environ_of(near, "launch"), service_secret="another-secret"
    ) as stranger:
        with pytest.raises(Refusal) as refused:
            await stranger.peers.deliver("launch", inbox_pb2.DeliverRequest(service="launch", events=[b"a"]))
        assert refused.value.reason is Reason.UNAUTHENTICATED
    assert launch.events == []


async def health(host: Host, name: str) -> Any:
    async with grpc.aio.insecure_channel(host.addresses.control) as channel:
        return (await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=name))).status


async def until_health(host: Host, name: str, expected: Any) -> None:
    async with asyncio.timeout(5), grpc.aio.insecure_channel(host.addresses.control) as channel:
        async for answer in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=name)):
            if answer.status == expected:
                return


async def test_health_follows_the_service_and_recovers_without_a_restart() -> None:
    echo = Echo("launch")
    async with hosted(echo.service()) as host:
        assert await health(host, "launch") == SERVING
        echo.up = False
        await until_health(host, "launch", NOT_SERVING)
        echo.up = True
        await until_health(host, "launch", SERVING)
        await until_health(host, "", SERVING)


async def test_a_service_whose_database_is_away_is_started_when_it_comes_back() -> None:
    echo = Echo("launch")
    echo.start_failures = 3
    async with hosted(echo.service()) as host:
        assert (echo.started, echo.start_failures) == (1, 0)
        assert await health(host, "launch") == SERVING
        async with asyncio.timeout(5):
            await echo.ticked.wait()
    assert echo.stopped == 1


async def test_while_starting_calls_are_refused_and_health_says_so() -> None:
    echo, go = Echo("launch"), asyncio.Event()
    host = Host(HostSettings(service_secret=SECRET), environ={})  # type: ignore[arg-type]
    entered = asyncio.Event()

    async def slow() -> None:
        entered.set()
        await go.wait()

    service = Composed(name="launch", healthy=echo.healthy, inbox=echo.inbox, start=slow)
    starting = asyncio.create_task(host.start(["launch"], composing(service)))
    request = inbox_pb2.DeliverRequest(service="launch", events=[b"a"])
    async with asyncio.timeout(5), open_channel_to(host, entered) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await inbox_pb2_grpc.InboxServiceStub(channel).Deliver(request)
        assert refusal_of(error.value).reason is Reason.AUTHORITY_UNREACHABLE
        assert await health(host, "launch") == NOT_SERVING
        with pytest.raises(Refusal):
            await host.peers.deliver("launch", request)
        go.set()
        await starting
        assert (await inbox_pb2_grpc.InboxServiceStub(channel).Deliver(request)).incarnation == 42
    await host.stop(0)


@asynccontextmanager
async def open_channel_to(host: Host, entered: asyncio.Event) -> AsyncIterator[Any]:
    await entered.wait()
    async with open_channel(host.addresses.public, secret=SECRET) as channel:
        yield channel


async def test_a_start_that_fails_for_another_reason_ends_the_start() -> None:
    async def broken() -> None:
        raise ValueError("no such setting")

    echo = Echo("launch")
    service = Composed(name="launch", healthy=echo.healthy, start=broken, stop=echo.stop)
    with pytest.raises(ValueError, match="no such setting"):
        async with hosted(service):
            raise AssertionError("it started")
    assert echo.stopped == 1


async def test_a_process_without_launch_learns_callers_from_it() -> None:
    asked: list[bytes] = []

    class Internal(launch_internal_pb2_grpc.LaunchInternalServiceServicer):
        async def ResolveCallers(self, request: Any, context: Any) -> Any:
            asked.extend(request.key_digests)
            known = request.key_digests[0] == key_digest("rk_anna_12345678")
            record = launch_internal_pb2.CallerRecord(known=known, tenant="acme", key_id=b"k" * 16, scopes=["caller", "worker"])
            return launch_internal_pb2.ResolveCallersResponse(callers=[record])

    callers: list[Caller] = []

    class Gateway(gateway_service_pb2_grpc.GatewayServiceServicer):
        async def ListTools(self, request: Any, context: Any) -> Any:
            call = in_call()
            assert call is not None
            callers.append(call.require_caller())
            return gateway_service_pb2.ListToolsResponse()

    internal = Mounted(
        launch_internal_pb2_grpc.add_LaunchInternalServiceServicer_to_server,
        Internal(),
        "runway.internal.launch.v1.LaunchInternalService",
    )
    public = Mounted(
        gateway_service_pb2_grpc.add_GatewayServiceServicer_to_server, Gateway(), "runway.gateway.v1.GatewayService"
    )
    launch, gateway = Echo("launch"), Echo("gateway")
    async with AsyncExitStack() as stack:
        near = await stack.enter_async_context(hosted(launch.service(servicers=[internal])))
        environ = environ_of(near, "launch")
        far = await stack.enter_async_context(hosted(gateway.service(servicers=[public]), environ=environ))

        async def ask(key: str) -> None:
            async with open_channel(far.addresses.public, metadata=(("authorization", f"Bearer {key}"),)) as channel:
                stub = gateway_service_pb2_grpc.GatewayServiceStub(channel)
                await stub.ListTools(gateway_service_pb2.ListToolsRequest())

        for _ in range(2):
            await ask("rk_anna_12345678")
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await ask("rk_other_1234567")
            assert refusal_of(error.value).reason is Reason.UNAUTHENTICATED
    assert [caller.tenant for caller in callers] == ["acme", "acme"]
    assert len(asked) == 2, "each key is asked for once"


async def test_traces_cross_calls() -> None:
    launch = Echo("launch")
    seen: list[str] = []
    original = launch.inbox

    async def tracing_inbox(events: list[bytes]) -> Any:
        seen.append(traceparent())
        return await original(events)

    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    service = Composed(name="launch", healthy=launch.healthy, inbox=tracing_inbox)
    async with hosted(service) as near, hosted(Echo("gateway").service(), environ=environ_of(near, "launch")) as other:
        with continued(parent):
            await other.peers.deliver("launch", inbox_pb2.DeliverRequest(service="launch", events=[b"a"]))
    assert seen == [parent]
