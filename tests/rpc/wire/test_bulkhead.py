"""What a port does with more calls than it bears: places, turns, refusals that say when to come again; over real gRPC.

Can go wrong: a place that is lost with a cancelled call. Every test ends with every place given back.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from runway.gateway.v1 import gateway_service_pb2 as gateway
from runway.gateway.v1 import gateway_service_pb2_grpc
from runway.launch.v1 import launch_service_pb2 as launch
from runway.launch.v1 import launch_service_pb2_grpc
from runway.scheduler.v1 import worker_service_pb2 as worker
from runway.scheduler.v1 import worker_service_pb2_grpc
from runway_sdk.connection import Connection, Target

from libs.kernel.refusal import Reason, Refusal
from libs.rpc.bulkhead import FREE, Bulkhead, Strength
from libs.rpc.health import HealthBoard
from libs.rpc.identity import Caller
from libs.rpc.policy import Access, key_digest, read_policies
from libs.rpc.server import Mounted, serve
from libs.rpc.shedding import Bounds, Criticality
from libs.rpc.status import refusal_of
from libs.runtime.clock import SystemClock
from libs.telemetry.catalogue import RPC_SHED
from libs.testkit.waiting import wait_until

RUN = "01890000-0000-7000-8000-000000000000"
PATIENT = (60_000, 60_000, 60_000)
BULK, INTERACTIVE, WORK = Criticality.BULK, Criticality.INTERACTIVE, Criticality.WORK
KEYS = {
    "rk_a_worker_1": Caller("a", "", "1", frozenset({"caller", "worker"}), "a"),
    "rk_b_worker_1": Caller("b", "", "2", frozenset({"caller", "worker"}), "b"),
    "rk_b_bulk_1": Caller("b", "", "3", frozenset({"caller", "bulk"}), "b"),
    "rk_b_operator_1": Caller("b", "", "4", frozenset({"caller", "operator"}), "b"),
}


class Directory:
    async def resolve(self, digest: bytes) -> Caller | None:
        return next((caller for key, caller in KEYS.items() if key_digest(key) == digest), None)


@dataclass
class Served:
    """A public port whose handlers wait until they are let go."""

    bulkhead: Bulkhead
    address: str = ""
    go: asyncio.Event = field(default_factory=asyncio.Event)
    entered: list[str] = field(default_factory=list)

    async def handle(self, name: str, answer: Any) -> Any:
        self.entered.append(name)
        await self.go.wait()
        return answer


def servicers(served: Served) -> list[Mounted]:
    class Launch(launch_service_pb2_grpc.LaunchServiceServicer):
        async def LaunchRuns(self, request: Any, context: Any) -> Any:
            return await served.handle("LaunchRuns", launch.LaunchRunsResponse())

        async def GetRun(self, request: Any, context: Any) -> Any:
            return await served.handle("GetRun", launch.GetRunResponse())

        async def CancelRun(self, request: Any, context: Any) -> Any:
            served.entered.append("CancelRun")
            return launch.CancelRunResponse()

    class Gateway(gateway_service_pb2_grpc.GatewayServiceServicer):
        async def ListTools(self, request: Any, context: Any) -> Any:
            return await served.handle("ListTools", gateway.ListToolsResponse())

    class Worker(worker_service_pb2_grpc.WorkerServiceServicer):
        async def ClaimAttempts(self, request: Any, context: Any) -> Any:
            return await served.handle("ClaimAttempts", worker.ClaimAttemptsResponse())

        async def CompleteAttempts(self, request: Any, context: Any) -> Any:
            served.entered.append("CompleteAttempts")
            return worker.CompleteAttemptsResponse()

        async def HeartbeatAttempts(self, request: Any, context: Any) -> Any:
            served.entered.append("HeartbeatAttempts")
            return worker.HeartbeatAttemptsResponse()

    add = launch_service_pb2_grpc.add_LaunchServiceServicer_to_server
    return [
        Mounted(add, Launch(), "runway.launch.v1.LaunchService"),
        Mounted(gateway_service_pb2_grpc.add_GatewayServiceServicer_to_server, Gateway(), "runway.gateway.v1.GatewayService"),
        Mounted(worker_service_pb2_grpc.add_WorkerServiceServicer_to_server, Worker(), "runway.scheduler.v1.WorkerService"),
    ]


@asynccontextmanager
async def serving(**bounds: Any) -> AsyncIterator[Served]:
    lasting = bounds.pop("lasting", 3)
    served = Served(
        Bulkhead(
            "public", Strength(Bounds(**{"least_places": 4, "patience_ms": PATIENT, "hurried_ms": PATIENT, **bounds}), lasting)
        )
    )
    server = serve(
        "public",
        "127.0.0.1:0",
        mounted=servicers(served),
        access=Access(None, Directory()),
        health_board=HealthBoard(),
        clock=SystemClock(),
        bulkhead=served.bulkhead,
    )
    await server.start()
    served.address = server.address
    try:
        yield served
    finally:
        served.go.set()
        await server.stop(1_000)
    assert set(served.bulkhead.port.under_way.values()) == {0}, "a place was lost"
    assert not len(served.bulkhead.port.line)
    assert not served.bulkhead._lasting


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


def shed(criticality: str, bound: str) -> float:
    return float(RPC_SHED.labels("public", criticality, bound)._value.get())


class Calls:
    """Calls of one key, made and left waiting."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._launch = launch_service_pb2_grpc.LaunchServiceStub(channel)
        self._gateway = gateway_service_pb2_grpc.GatewayServiceStub(channel)
        self._worker = worker_service_pb2_grpc.WorkerServiceStub(channel)

    def list_tools(self, key: str) -> Any:
        return self._gateway.ListTools(gateway.ListToolsRequest(), metadata=bearer(key), timeout=20)

    def get_run(self, key: str) -> Any:
        return self._launch.GetRun(launch.GetRunRequest(run_id=RUN), metadata=bearer(key), timeout=20)

    def cancel(self, key: str) -> Any:
        return self._launch.CancelRun(launch.CancelRunRequest(run_id=RUN), metadata=bearer(key), timeout=20)

    def claim(self, key: str) -> Any:
        request = worker.ClaimAttemptsRequest(claim_id=b"c" * 16, worker_id="w", slots=1, handlers=["h@1"])
        return self._worker.ClaimAttempts(request, metadata=bearer(key), timeout=20)

    def complete(self, key: str) -> Any:
        request = worker.CompleteAttemptsRequest(completions=[worker.Completion(lease_token=b"t")])
        return self._worker.CompleteAttempts(request, metadata=bearer(key), timeout=20)

    def beat(self, key: str) -> Any:
        said = worker.Heartbeat(run_id=RUN, attempt_id=b"a" * 16, lease_epoch=1, step_key="s")
        request = worker.HeartbeatAttemptsRequest(worker_id="w", heartbeats=[said])
        return self._worker.HeartbeatAttempts(request, metadata=bearer(key), timeout=20)


async def outcome(call: Any) -> Refusal | None:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return refusal_of(error)
    return None


@pytest.mark.requirement("sched.bulkheads")
async def test_the_oldest_bulk_call_is_shed_with_a_time_to_come_again_and_what_matters_more_passes() -> None:
    async with serving(places=8, waiting=2) as served, grpc.aio.insecure_channel(served.address) as channel:
        calls = Calls(channel)
        before = shed("bulk", "overload")
        busy = [calls.list_tools("rk_a_worker_1") for _ in range(4)]
        await wait_until(lambda: len(served.entered) == 4, what="half of the places filled by bulk")
        waits = []
        for number in range(3):
            waits.append(calls.list_tools("rk_a_worker_1"))
            await wait_until(lambda n=number: served.bulkhead._numbers == n + 1, what="one more in line")
        refused = await outcome(waits[0])
        assert refused is not None
        assert refused.reason is Reason.OVERLOADED
        assert refused.status == "UNAVAILABLE"
        assert refused.detail["bound"] == "overload"
        assert refused.detail["criticality"] == "bulk"
        assert refused.retry_after_ms is not None
        assert refused.retry_after_ms >= 100
        assert shed("bulk", "overload") == before + 1
        for vital in (calls.beat, calls.cancel, calls.complete):
            assert await outcome(vital("rk_a_worker_1")) is None
        person = calls.get_run("rk_b_worker_1")
        await wait_until(lambda: "GetRun" in served.entered, what="a person's call passing the line of bulk")
        served.go.set()
        assert [await outcome(call) for call in (*busy, *waits[1:], person)] == [None] * 7


@pytest.mark.requirement("sched.bulkheads")
async def test_polls_of_one_tenant_are_bounded_and_keep_nobody_else_out() -> None:
    async with serving(places=8, lasting=3) as served, grpc.aio.insecure_channel(served.address) as channel:
        calls = Calls(channel)
        polls = [calls.claim("rk_a_worker_1") for _ in range(3)]
        await wait_until(lambda: len(served.entered) == 3, what="polls that wait")
        assert set(served.bulkhead.port.under_way.values()) == {0}, "a poll holds no place"
        refused = await outcome(calls.claim("rk_a_worker_1"))
        assert refused is not None
        assert refused.reason is Reason.OVERLOADED
        assert refused.detail["bound"] == "lasting_calls"
        assert refused.retry_after_ms is not None
        other = calls.claim("rk_b_worker_1")
        await wait_until(lambda: len(served.entered) == 4, what="the other tenant's poll")
        polls[0].cancel()
        await wait_until(lambda: served.bulkhead._lasting[("a", "/runway.scheduler.v1.WorkerService/ClaimAttempts")] == 2)
        again = calls.claim("rk_a_worker_1")
        await wait_until(lambda: len(served.entered) == 5, what="a poll in the place of one that left")
        served.go.set()
        assert [await outcome(call) for call in (*polls[1:], other, again)] == [None] * 4


@pytest.mark.requirement("sched.bulkheads")
async def test_a_call_that_is_cancelled_in_line_leaves_it() -> None:
    async with serving(places=8) as served, grpc.aio.insecure_channel(served.address) as channel:
        calls = Calls(channel)
        busy = [calls.list_tools("rk_a_worker_1") for _ in range(4)]
        await wait_until(lambda: len(served.entered) == 4, what="half of the places filled")
        waits = [calls.list_tools("rk_a_worker_1") for _ in range(3)]
        await wait_until(lambda: len(served.bulkhead.port.line) == 3, what="a line")
        for call in waits:
            call.cancel()
        await wait_until(lambda: len(served.bulkhead.port.line) == 0, what="an empty line")
        served.go.set()
        assert [await outcome(call) for call in busy] == [None] * 4
        assert served.entered.count("ListTools") == 4, "who left was not started"


@pytest.mark.requirement("sched.bulkheads")
async def test_what_a_call_counts_as_comes_from_records_alone() -> None:
    seen: list[tuple[Criticality, str]] = []

    class Watching(Bulkhead):
        async def enter(self, rank: Criticality, tenant: str, method: str, *, lasting: bool) -> Any:
            seen.append((rank, method.rpartition("/")[2]))
            return FREE

    async with serving(places=8) as served, grpc.aio.insecure_channel(served.address) as channel:
        served.bulkhead.enter = Watching("public", Strength()).enter  # type: ignore[method-assign]
        served.go.set()
        calls = Calls(channel)
        made: list[tuple[Callable[[str], Any], str, Criticality]] = [
            (calls.list_tools, "rk_b_worker_1", BULK),
            (calls.list_tools, "rk_b_operator_1", INTERACTIVE),
            (calls.list_tools, "rk_b_bulk_1", BULK),
            (calls.get_run, "rk_b_worker_1", INTERACTIVE),
            (calls.get_run, "rk_b_bulk_1", BULK),
            (calls.complete, "rk_b_worker_1", WORK),
            (calls.claim, "rk_b_worker_1", INTERACTIVE),
            (calls.beat, "rk_b_worker_1", Criticality.VITAL),
            (calls.cancel, "rk_b_bulk_1", Criticality.VITAL),
        ]
        for call, key, _ in made:
            assert await outcome(call(key)) is None
        assert [rank for rank, _ in seen] == [rank for _, _, rank in made]


@pytest.mark.requirement("sched.bulkheads")
async def test_the_sdk_comes_again_when_it_was_told_to_and_loses_nothing() -> None:
    async with serving(places=4, least_places=4, waiting=0) as served:
        connection = Connection(Target(served.address, "rk_a_worker_1"))
        stub = connection.stub("gateway", gateway_service_pb2_grpc.GatewayServiceStub)
        before = shed("bulk", "overload")
        calls = [asyncio.create_task(connection.call(stub.ListTools, gateway.ListToolsRequest())) for _ in range(20)]
        await wait_until(lambda: shed("bulk", "overload") - before >= 18, what="all but two sent away")
        served.go.set()
        assert len(await asyncio.gather(*calls)) == 20
        await connection.close()


@pytest.mark.requirement("sched.bulkheads")
async def test_a_generated_client_finds_the_delay_where_google_rpc_puts_it() -> None:
    async with serving(places=4, waiting=0) as served, grpc.aio.insecure_channel(served.address) as channel:
        calls = Calls(channel)
        busy = [calls.list_tools("rk_a_worker_1") for _ in range(2)]
        await wait_until(lambda: len(served.entered) == 2)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await calls.list_tools("rk_a_worker_1")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        raw = dict(caught.value.trailing_metadata() or ())["grpc-status-details-bin"]
        found = [
            packed for packed in status_pb2.Status.FromString(raw).details if packed.Is(error_details_pb2.RetryInfo.DESCRIPTOR)
        ]
        info = error_details_pb2.RetryInfo()
        assert len(found) == 1
        assert found[0].Unpack(info)
        assert info.retry_delay.ToMilliseconds() >= 100
        served.go.set()
        assert [await outcome(call) for call in busy] == [None, None]


def test_every_public_method_says_what_it_counts_as() -> None:
    """A method that says nothing is bulk, which is safe and seldom meant."""
    from google.protobuf import descriptor_pool
    from runway.common.v1 import policy_pb2

    names = [mounted.full_name for mounted in servicers(Served(Bulkhead("public", Strength())))]
    names += ["runway.readiness.v1.ReadinessService", "runway.scheduler.v1.SchedulerService"]
    names += ["runway.checkpoint.v1.CheckpointService", "runway.reconciler.v1.ReconcilerService"]
    pool = descriptor_pool.Default()
    for path, policy in read_policies(names).items():
        method = pool.FindMethodByName(path.strip("/").replace("/", "."))
        said = method.GetOptions().Extensions[policy_pb2.criticality]
        assert said or policy.port != policy_pb2.PORT_PUBLIC, f"{path} says nothing"
