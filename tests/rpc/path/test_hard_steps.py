"""Steps that behave badly, and neighbours that must not suffer: over real gRPC, a worker in this process."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk import Client, InvalidRequest, Retry, SyncContext, Target, Worker, Workflow, step, workflow

from libs.testkit.fixtures import StackDatabase
from libs.testkit.hosts import Peer, make_key, running_host

ONCE = Retry(max_attempts=1)


def nested(levels: int) -> Any:
    data: Any = 1
    for _ in range(levels):
        data = {"a": data}
    return data


@step(retry=ONCE)
def stops() -> int:
    return next(iter([]))


@step(retry=ONCE)
def leaves() -> int:
    raise SystemExit(3)


@step(retry=ONCE)
async def gives_up() -> int:
    raise asyncio.CancelledError


@step(retry=ONCE)
def says_nul() -> int:
    raise ValueError("a\0b \ud800")


@step(retry=ONCE)
def digs() -> Any:
    return nested(27)


@step(retry=ONCE, timeout=timedelta(seconds=1))
async def stubborn() -> int:
    for _ in range(100):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue
    return 1


@step
def deepest() -> Any:
    return nested(26)


@step
def digger(run: Any, deepest: Any) -> bool:
    return bool(run == deepest)


@dataclass
class Bench:
    client: Client
    target: Target

    @asynccontextmanager
    async def worker(self, *flows: Workflow) -> AsyncIterator[None]:
        for found in flows:
            await self.client.publish(found)
        worker = Worker(flows, target=self.target)
        running = asyncio.create_task(worker.run())
        try:
            yield
            assert not running.done(), "the worker ended"
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def end_of(self, flow: Workflow, run_input: Any = None) -> pb.Run:
        run = await self.client.launch(flow.name, run_input)
        return await self.client.wait(run.run_id, settled=True, timeout_s=30)


@pytest.fixture
async def bench(
    stack_db: StackDatabase, etcd_server: list[str], etcd_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    urls = await stack_db(["launch", "readiness", "scheduler"])
    monkeypatch.setenv("RUNWAY_ETCD_ENDPOINTS", ",".join(etcd_server))
    monkeypatch.setenv("RUNWAY_SCHEDULER_ETCD_PREFIX", etcd_prefix)
    environ = {"RUNWAY_ETCD_ENDPOINTS": ",".join(etcd_server)}
    peers = [Peer("gateway"), Peer("checkpoint")]
    async with running_host(["launch", "readiness", "scheduler"], urls, peers=peers, environ=environ) as host:
        target = Target(host.addresses.public, await make_key(host), host.addresses.control)
        async with Client(target) as client:
            yield Bench(client, target)


async def test_a_step_that_exits_stops_or_cancels_itself_fails_alone(bench: Bench) -> None:
    flows = [workflow(f.key.replace("_", "-"), steps=[f]) for f in (stops, leaves, gives_up, says_nul, digs, stubborn)]
    plain = workflow("deep", steps=[deepest, digger])
    async with bench.worker(*flows, plain):
        ends = await asyncio.gather(*(bench.end_of(flow) for flow in flows), bench.end_of(plain, nested(26)))
    assert [(run.workflow.name, run.failure.failure_class, run.failure.type) for run in ends[:-1]] == [
        ("stops", "attempt", "RuntimeError"),
        ("leaves", "attempt", "SystemExit"),
        ("gives-up", "attempt", "CancelledError"),
        ("says-nul", "attempt", "ValueError"),
        ("digs", "validation", "INVALID_FIELD"),
        ("stubborn", "attempt", "TIMED_OUT"),
    ]
    assert ends[-1].output.bool_value


async def test_plain_functions_that_wait_for_each_other_all_have_a_thread(bench: Bench) -> None:
    together = threading.Barrier(12, timeout=20)

    @step(retry=ONCE)
    def meets(ctx: SyncContext) -> bool:
        together.wait()
        return ctx.cancelled

    flow = workflow("meeting", steps=[meets])
    async with bench.worker(flow):
        ends = await asyncio.gather(*(bench.end_of(flow) for _ in range(12)))
    assert [run.state for run in ends] == [pb.RUN_STATE_SUCCEEDED] * 12


async def test_a_plain_function_that_took_too_long_learns_that_it_is_over(bench: Bench) -> None:
    told = threading.Event()

    @step(retry=ONCE, timeout=timedelta(seconds=1))
    def lingers(ctx: SyncContext) -> None:
        while not ctx.cancelled:
            told.wait(0.01)
        told.set()

    flow = workflow("lingers", steps=[lingers])
    async with bench.worker(flow):
        assert (await bench.end_of(flow)).failure.type == "TIMED_OUT"
        assert await asyncio.to_thread(told.wait, 10)


async def test_a_bad_launch_does_not_spoil_those_of_the_same_moment(bench: Bench) -> None:
    await bench.client.publish(workflow("deep", steps=[deepest]))
    launches = (bench.client.launch("deep", priority=5000 if number == 7 else 0) for number in range(20))
    made = await asyncio.gather(*launches, return_exceptions=True)
    refused = made.pop(7)
    assert isinstance(refused, InvalidRequest)
    assert refused.field == "priority"
    assert all(isinstance(run, pb.Run) for run in made)
