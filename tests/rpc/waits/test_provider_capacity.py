"""Steps that wait for calls of a provider, whose tools call several: by `provider:NAME`, over real gRPC with the gateway's own buckets."""

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from runway.gateway.v1 import bucket_service_pb2 as pb
from runway.gateway.v1 import bucket_service_pb2_grpc
from runway.launch.v1 import launch_service_pb2 as la
from runway.scheduler.v1 import scheduler_service_pb2 as sc
from runway_sdk import CapacityTimedOut, Context, RunFailed, step, workflow

from libs.testkit.hosts import service_channel
from libs.testkit.waiting import wait_until
from tests.rpc.gateway.provider import Provider, provider_on_loopback
from tests.rpc.waits.conftest import Bench
from tests.rpc.waits.test_capacity import KNOWN, WHO
from tests.rpc.waits.test_capacity import room as capacity_room

__all__ = ["capacity_room"]
pytestmark = [pytest.mark.requirement("step.wait"), pytest.mark.requirement("sched.buckets")]


@step(tools=["http.request"])
async def call(run: dict[str, Any], context: Context) -> str:
    """Waits for so many calls of a provider, then makes one."""
    try:
        timeout = timedelta(seconds=run["timeout_s"]) if "timeout_s" in run else None
        await context.wait_for_capacity(run.get("of", "provider:api"), calls=run.get("calls", 1), timeout=timeout)
    except CapacityTimedOut:
        return "came late"
    arguments = {"target": run.get("target", "api"), "method": "POST", "path": f"/{context.run_id}"}
    await context.tool("http.request", arguments, slot="call")
    return "called"


@step(tools=["git.push"])
async def elsewhere(context: Context) -> str:
    """Can call nothing of that provider."""
    await context.wait_for_capacity("provider:api", calls=5)
    return "passed"


@step
async def nothing(context: Context) -> str:
    """Calls nothing at all."""
    await context.wait_for_capacity("provider:api")
    return "passed"


CALL, ELSEWHERE, NOTHING = (workflow(name, steps=[one]) for name, one in (("call", call), ("push", elsewhere), ("no", nothing)))


@pytest.fixture
async def provider(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Provider]:
    async with provider_on_loopback() as found:
        targets = {name: {"base_url": found.url, "settle_ms": 0} for name in ("api", "other")}
        monkeypatch.setenv("RUNWAY_GATEWAY_HTTP_TARGETS", json.dumps(targets))
        yield found


@pytest.fixture
async def room(provider: Provider, capacity_room: Bench) -> Bench:
    assert provider.requests == []
    return capacity_room


async def put(room: Bench, capacity: int, per_minute: int = 0) -> None:
    name = pb.BucketName(kind=pb.BUCKET_KIND_PROVIDER, name="api", unit=pb.BUCKET_UNIT_CALLS)
    async with service_channel(room.host) as channel:
        stub = bucket_service_pb2_grpc.BucketServiceStub(channel)
        await stub.PutBucket(pb.PutBucketRequest(name=name, capacity=capacity, per_minute=per_minute, **WHO))


async def holds(room: Bench, level: int, capacity: int) -> None:
    """A bucket of so many calls with so many in it, which nothing flows into; known to the scheduler."""
    await put(room, level)
    await put(room, capacity)
    known = (capacity, level)
    await wait_until(
        lambda: [(v.capacity, v.level) for v in KNOWN] == [known], timeout_s=15, what="the scheduler sees the bucket"
    )


async def yielded(room: Bench, run_id: str) -> bool:
    """Whether nobody holds its step."""
    return [attempt.state for attempt in await room.client.attempts(run_id)] == [sc.ATTEMPT_STATE_YIELDED]


async def test_a_step_waits_for_calls_of_a_provider_as_a_ticket(room: Bench, provider: Provider) -> None:
    await holds(room, 2, 10)
    async with room.worker(CALL):
        run = await room.client.launch("call", {"calls": 5})
        await room.waiting(run.run_id, "provider_capacity")
        assert await yielded(room, run.run_id)

        async def explained() -> bool:
            found = (await room.client.explain(run.run_id)).steps[0].blockers
            said = [b.message for b in found if b.code == "BUCKET_EMPTY"]
            return any("the bucket of provider api (calls)" in text and "the 5 calls of it" in text for text in said)

        await wait_until(explained, timeout_s=15, what="the bucket is named")
        other = await room.client.launch("call", {"calls": 5, "of": "provider:other", "target": "other"})
        assert await room.client.result(other.run_id, timeout_s=20) == "called", "that one has no bucket"
        late = await room.client.launch("call", {"calls": 5, "timeout_s": 0.4})
        assert await room.client.result(late.run_id, timeout_s=20) == "came late"
        assert provider.asked(f"/{run.run_id}") == []
        await put(room, 10, 6_000)
        assert await room.client.result(run.run_id, timeout_s=20) == "called"
    assert len(provider.asked(f"/{run.run_id}")) == 1


async def test_what_one_step_waited_for_another_does_not_get_beside_it(room: Bench, provider: Provider) -> None:
    await holds(room, 7, 10)
    async with room.worker(CALL):
        runs = [await room.client.launch("call", {"calls": 5}) for _ in range(2)]

        async def one_called() -> list[la.Run]:
            found = [await room.client.get(run.run_id) for run in runs]
            return [run for run in found if run.outcome == "succeeded"]

        (first,) = await wait_until(one_called, timeout_s=20, what="one of both") or []
        (second,) = [run.run_id for run in runs if run.run_id != first.run_id]
        await room.waiting(second, "provider_capacity")
        await put(room, 10, 6_000)
        assert await room.client.result(second, timeout_s=20) == "called"


async def test_even_one_call_of_a_provider_is_waited_for(room: Bench) -> None:
    await put(room, 1)
    async with room.worker(CALL):
        taken = await room.client.launch("call", {"of": "http.request"})
        assert await room.client.result(taken.run_id, timeout_s=20) == "called"
        await wait_until(lambda: [v.level for v in KNOWN] == [0], timeout_s=15, what="the scheduler sees that it is empty")
        run = await room.client.launch("call", {})
        await room.waiting(run.run_id, "provider_capacity")
        assert await yielded(room, run.run_id)
        await put(room, 10, 6_000)
        assert await room.client.result(run.run_id, timeout_s=20) == "called"


REFUSED = (
    ("no", "", ("capacity names provider:api", "declares nothing that could call it", "tools or models")),
    ("call", "provider:", ("capacity must be provider: and a provider's name", "runway bucket list")),
    ("call", "provider:a\tb", ("capacity must be provider: and a provider's name", "runway bucket list")),
    ("call", "providers:api", ("capacity names providers:api", "does not declare", "http.request")),
)
"""Workflow, what it waits for, and what it is told."""


async def test_what_cannot_be_waited_for_is_refused_and_what_is_not_reached_keeps_nobody_back(room: Bench) -> None:
    await holds(room, 2, 10)
    async with room.worker(CALL, NOTHING, ELSEWHERE):
        apart = await room.client.launch("push", {})
        runs = [await room.client.launch(flow, {"of": of}) for flow, of, _ in REFUSED]
        assert await room.client.result(apart.run_id, timeout_s=20) == "passed", "no call of its tool goes there"
        for run, (_, _, words) in zip(runs, REFUSED, strict=True):
            with pytest.raises(RunFailed) as failed:
                await room.client.result(run.run_id, timeout_s=20)
            for word in words:
                assert word in str(failed.value)
