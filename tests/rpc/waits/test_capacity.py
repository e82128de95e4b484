"""Steps that wait for capacity by name: the ticket waits, no lease; how it ended is said once; over real gRPC with the gateway's
own buckets."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from runway.gateway.v1 import bucket_service_pb2 as buckets_pb
from runway.gateway.v1 import bucket_service_pb2_grpc
from runway.readiness.v1 import readiness_service_pb2 as rd
from runway.scheduler.v1 import scheduler_service_pb2 as sc
from runway_sdk import CapacityTimedOut, Context, RunFailed, StepFailed, SyncContext, step, workflow

from libs.testkit.fixtures import StackDatabase
from libs.testkit.hosts import service_channel
from libs.testkit.waiting import wait_until
from services.scheduler.app.gauges import Gauges
from services.scheduler.domain.buckets import View
from tests.rpc.waits.conftest import Bench, opened

WHO = {"actor": "ops@example.org", "reason": "the provider's limit"}
TOOL = buckets_pb.BucketName(kind=buckets_pb.BUCKET_KIND_TOOL, name="http.request", unit=buckets_pb.BUCKET_UNIT_CALLS)
BEGUN: list[int] = []
SEEN: list[str] = []
KNOWN: list[View] = []
"""Buckets as the scheduler saw them last."""


@step(tools=["http.request"])
async def asks(run: dict[str, Any], context: Context) -> str:
    BEGUN.append(context.attempt_number)
    timeout = timedelta(seconds=run["timeout_s"]) if "timeout_s" in run else None
    try:
        await context.wait_for_capacity(run.get("call", "http.request"), calls=run.get("calls", 1), timeout=timeout)
        SEEN.append("there is")
    except CapacityTimedOut:
        SEEN.append("came late")
        if not run.get("mild"):
            raise
    if run.get("fails") and len(SEEN) == 1:
        raise StepFailed("once more", "transient")
    return SEEN[-1]


@step(tools=["http.request"])
def asks_in_a_thread(asks: str, context: SyncContext) -> str:
    context.wait_for_capacity("http.request")
    return asks + " twice"


ASK = workflow("ask", steps=[asks])
BOTH = workflow("both", steps=[asks, asks_in_a_thread])


@pytest.fixture
async def room(
    stack_db: StackDatabase, etcd_server: list[str], etcd_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    BEGUN.clear()
    SEEN.clear()
    KNOWN.clear()
    see = Gauges.see

    def spy(gauges: Gauges, views: Sequence[View]) -> None:
        see(gauges, views)
        KNOWN[:] = views

    monkeypatch.setattr(Gauges, "see", spy)
    async with opened(stack_db, etcd_server, etcd_prefix, monkeypatch, gateway=True) as found:
        yield found


async def put(room: Bench, capacity: int, per_minute: int = 0) -> None:
    async with service_channel(room.host) as channel:
        stub = bucket_service_pb2_grpc.BucketServiceStub(channel)
        await stub.PutBucket(buckets_pb.PutBucketRequest(name=TOOL, capacity=capacity, per_minute=per_minute, **WHO))


async def nearly_empty(room: Bench) -> None:
    """A bucket of ten calls with two in it, which nothing flows into; known to the scheduler."""
    await put(room, 2)
    await put(room, 10)

    def known() -> bool:
        return [(view.capacity, view.level) for view in KNOWN] == [(10, 2)]

    await wait_until(known, timeout_s=15, what="the scheduler sees the bucket")


async def the_slot(room: Bench, run_id: str) -> tuple[int, int]:
    """Kind and state of the one wait."""
    rows = await room.db.fetch("SELECT kind, state FROM wait WHERE run_id = $1::text::uuid", run_id)
    return (rows[0]["kind"], rows[0]["state"])


@pytest.mark.requirement("step.wait")
@pytest.mark.requirement("sched.buckets")
async def test_a_step_waits_for_calls_of_a_bucket_as_a_ticket_and_goes_on_when_they_are_there(room: Bench) -> None:
    await nearly_empty(room)
    async with room.worker(BOTH):
        run = await room.client.launch("both", {"calls": 5})
        await room.waiting(run.run_id, "provider_capacity")
        found = (await room.client.steps(run.run_id))[0]
        assert (found.state, found.wait_reason, found.attempts) == (rd.STEP_STATE_READY, "provider_capacity", 0)
        (attempt,) = await room.client.attempts(run.run_id)
        assert attempt.state == sc.ATTEMPT_STATE_YIELDED, "nobody holds the step"

        async def explained() -> bool:
            blockers = (await room.client.explain(run.run_id)).steps[0].blockers
            return any(b.code == "BUCKET_EMPTY" and "the 5 calls of it" in b.message for b in blockers)

        await wait_until(explained, timeout_s=15, what="the bucket is named")
        await put(room, 10, 6_000)
        assert await room.client.result(run.run_id, timeout_s=20) == "there is twice"
    assert SEEN == ["there is"]
    assert BEGUN == [1, 1]
    assert await the_slot(room, run.run_id) == (9, 2)


@pytest.mark.requirement("step.wait")
async def test_a_wait_for_capacity_whose_time_passes_says_so_once_and_a_later_attempt_hears_the_same(room: Bench) -> None:
    await nearly_empty(room)
    async with room.worker(ASK):
        run = await room.client.launch("ask", {"calls": 9, "timeout_s": 0.4, "mild": True, "fails": True})
        await room.waiting(run.run_id, "provider_capacity")
        assert await room.client.result(run.run_id, timeout_s=20) == "came late"
        assert SEEN == ["came late", "came late"], "the retried attempt did not wait again, nor see it otherwise"
        assert await the_slot(room, run.run_id) == (9, 3)
        other = await room.client.launch("ask", {"calls": 9, "timeout_s": 0})
        with pytest.raises(RunFailed) as failed:
            await room.client.result(other.run_id, timeout_s=20)
        assert "CAPACITY_TIMED_OUT" in str(failed.value) or "no capacity for http.request" in str(failed.value)


@pytest.mark.requirement("step.wait")
async def test_what_has_no_bucket_passes_and_what_the_step_does_not_declare_is_refused_with_the_remedy(room: Bench) -> None:
    async with room.worker(ASK):
        run = await room.client.launch("ask", {"calls": 1_000})
        assert await room.client.result(run.run_id, timeout_s=20) == "there is"
        wrong = await room.client.launch("ask", {"call": "model:summarry"})
        with pytest.raises(RunFailed) as failed:
            await room.client.result(wrong.run_id, timeout_s=20)
    for word in ("capacity names model:summarry", "does not declare", "http.request"):
        assert word in str(failed.value)


@pytest.mark.requirement("step.wait")
async def test_a_cancel_ends_a_wait_for_capacity_and_more_than_a_bucket_holds_means_a_full_one(room: Bench) -> None:
    await nearly_empty(room)
    async with room.worker(ASK):
        gone = await room.client.launch("ask", {"calls": 5})
        run = await room.client.launch("ask", {"calls": 500})
        await asyncio.gather(*(room.waiting(one.run_id, "provider_capacity") for one in (gone, run)))
        await room.client.cancel(gone.run_id)
        assert (await room.client.wait(gone.run_id, settled=True, timeout_s=20)).outcome == "cancelled"
        await put(room, 10, 60_000)
        assert await room.client.result(run.run_id, timeout_s=20) == "there is"
