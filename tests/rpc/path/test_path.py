"""The main path in one process, over real gRPC: launch → readiness → scheduler → worker → result."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from runway.launch.v1 import launch_service_pb2 as pb
from runway.scheduler.v1 import scheduler_service_pb2 as sc
from runway.scheduler.v1 import worker_service_pb2 as wk
from runway_sdk import Client, Retry, StepFailed, Target, Worker, Workflow, step, workflow
from runway_sdk.examples.hello import flow as hello

from libs.runtime.host import Host
from libs.telemetry.traces import configure_traces, shutdown_traces
from libs.testkit.fixtures import StackDatabase
from libs.testkit.hosts import Peer, make_key, running_host
from libs.testkit.waiting import wait_until
from tests.rpc.path.regional import flow as regional


@dataclass
class Bench:
    host: Host
    client: Client
    target: Target

    @asynccontextmanager
    async def worker(self, *flows: Workflow, slots: int = 50, **more: Any) -> AsyncIterator[Worker]:
        for found in flows:
            await self.client.publish(found)
        worker = Worker(flows, target=self.target, slots=slots, **more)
        running = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.drain()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


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
            yield Bench(host, client, target)


@pytest.mark.requirement("dag.ready")
@pytest.mark.requirement("sched.claim")
async def test_hello(bench: Bench) -> None:
    async with bench.worker(hello):
        run = await bench.client.launch("hello", {"item": "tea", "pieces": 9})
        assert await bench.client.result(run.run_id, timeout_s=20) == "7 x tea for 7.21"
        final = await bench.client.wait(run.run_id, settled=True, timeout_s=20)
        assert final.state == pb.RUN_STATE_SUCCEEDED
        attempts = await bench.client.attempts(run.run_id)
        assert {(attempt.step_key, attempt.state, attempt.lease_epoch) for attempt in attempts} == {
            (key, sc.ATTEMPT_STATE_SUCCEEDED, 1) for key in ("price", "stock", "offer")
        }


@pytest.mark.requirement("sched.claim")
async def test_many_runs_by_two_workers_each_step_once(bench: Bench) -> None:
    seen: list[tuple[str, int]] = []

    @step
    async def first(run: int) -> int:
        seen.append(("first", run))
        return run

    @step
    async def second(first: int) -> int:
        seen.append(("second", first))
        return first * 2

    flow = workflow("many", steps=[first, second])
    async with bench.worker(flow), bench.worker(flow):
        runs = await asyncio.gather(*(bench.client.launch("many", number) for number in range(60)))
        results = await asyncio.gather(*(bench.client.result(run.run_id, timeout_s=40) for run in runs))
    assert results == [number * 2 for number in range(60)]
    assert len(seen) == len(set(seen)) == 120


@pytest.mark.requirement("step.retry")
async def test_a_step_that_fails_twice_succeeds_on_its_third_attempt(bench: Bench) -> None:
    calls = []

    @step(retry=Retry(max_attempts=3))
    def shaky() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise StepFailed("not yet", "transient")
        return "done"

    async with bench.worker(workflow("shaky", steps=[shaky])):
        run = await bench.client.launch("shaky")
        assert await bench.client.result(run.run_id, timeout_s=20) == "done"
    attempts = await bench.client.attempts(run.run_id)
    assert [attempt.state for attempt in attempts] == [
        sc.ATTEMPT_STATE_FAILED,
        sc.ATTEMPT_STATE_FAILED,
        sc.ATTEMPT_STATE_SUCCEEDED,
    ]
    assert [attempt.lease_epoch for attempt in attempts] == [1, 3, 5]


@pytest.mark.requirement("run.states")
async def test_a_policy_failure_fails_the_run_at_once_and_skips_what_needs_it(bench: Bench) -> None:
    @step
    def refuses() -> str:
        raise StepFailed("never", "policy")

    @step
    def after(refuses: str) -> str:
        return refuses

    async with bench.worker(workflow("strict", steps=[refuses, after])):
        run = await bench.client.launch("strict")
        final = await bench.client.wait(run.run_id, settled=True, timeout_s=20)
    assert (final.state, final.failure.failure_class) == (pb.RUN_STATE_FAILED, "policy")
    kinds = [event.kind for event in await bench.client.events(run.run_id)]
    assert "step.failed" in kinds
    assert "step.skipped" in kinds


async def test_one_trace_from_the_launch_to_every_lease(bench: Bench) -> None:
    spans = InMemorySpanExporter()
    configure_traces(endpoint=None, service="test", exporter=spans)
    try:
        async with bench.worker(hello) as worker:
            leases: list[wk.Lease] = []
            worker._on_lease = leases.append
            run = await bench.client.launch("hello", {"item": "tea", "pieces": 1})
            await bench.client.result(run.run_id, timeout_s=20)
    finally:
        shutdown_traces()
    by_trace: dict[str, set[str]] = {}
    for span in spans.get_finished_spans():
        assert span.context is not None
        by_trace.setdefault(f"{span.context.trace_id:032x}", set()).add(span.name)
    traces = {lease.traceparent.split("-")[1] for lease in leases}
    assert len(leases) == 3
    assert len(traces) == 1
    names = by_trace[traces.pop()]
    assert any("LaunchRun" in name for name in names)
    assert "readiness run_launched" in names
    assert "scheduler step_ready" in names


@pytest.mark.requirement("sched.capability")
async def test_a_step_of_a_region_runs_there_and_nowhere_else(bench: Bench) -> None:
    async with bench.worker(regional, region="us", capabilities=["gpu"]):
        run = await bench.client.launch("regional")

        async def told() -> bool:
            steps = (await bench.client.explain(run.run_id)).steps
            return [dict(why.detail).get("missing") for step in steps for why in step.blockers] == ["region:eu"]

        await wait_until(told, 10.0, what="the region that no worker stands in")
    words = ["tests.rpc.path.regional:flow", "--label", "gpu", "--region", "eu"]
    names = {"RUNWAY_ADDRESS": "address", "RUNWAY_API_KEY": "api_key", "RUNWAY_CONTROL_ADDRESS": "control_address"}
    environ = {**os.environ, **{name: getattr(bench.target, field) for name, field in names.items()}}
    worker = await asyncio.create_subprocess_exec(sys.executable, "-m", "runway_sdk.serve", *words, env=environ)
    try:
        assert await bench.client.result(run.run_id, timeout_s=30) == "eu"
    finally:
        worker.terminate()
        await worker.wait()
