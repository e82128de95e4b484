"""A model's rate limit through the whole installation: runs go on as it allows, and leases do not wait for it."""

import asyncio

import pytest
from runway.gateway.v1 import bucket_service_pb2 as pb
from runway.gateway.v1 import bucket_service_pb2_grpc
from runway_sdk.testing import Stack

from libs.rpc.channels import open_channel
from tests.system.conftest import FLOWS, Counter
from tests.system.flows import asking

RUNS, PER_S = 8, 2
WHO = {"actor": "ops@example.org", "reason": "the provider's limit"}
NAME = pb.BucketName(kind=pb.BUCKET_KIND_MODEL, name="summary", unit=pb.BUCKET_UNIT_CALLS)


@pytest.mark.requirement("sched.buckets")
@pytest.mark.requirement("gw.rate")
async def test_runs_go_on_as_the_model_s_bucket_fills_and_their_tickets_wait(stack: Stack, counter: Counter) -> None:
    await stack.client.publish(asking)
    loop, before = asyncio.get_running_loop(), counter.total("/v1/chat/completions")
    secret = (stack.folder / "data" / "service-secret").read_text().strip()
    target = stack.target
    address = target.control_services.get("gateway", "") or target.services.get("gateway", "") or target.control_address
    async with open_channel(address, secret=secret) as channel:
        buckets = bucket_service_pb2_grpc.BucketServiceStub(channel)
        await buckets.PutBucket(pb.PutBucketRequest(name=NAME, capacity=1, per_minute=60 * PER_S, **WHO))
        try:
            await asyncio.sleep(1)  # the scheduler looks twice a second: in force within one
            began = loop.time()
            async with stack.worker(f"{FLOWS}:asking", worker_id="asks", slots=RUNS):
                runs = [await stack.client.launch("asking", "what first?", budget_micros=1_000) for _ in range(RUNS)]
                finals = [await stack.client.wait(run.run_id, settled=True, timeout_s=60) for run in runs]
            took_s = loop.time() - began
        finally:
            await buckets.RemoveBucket(pb.RemoveBucketRequest(name=NAME, **WHO))
    assert {final.outcome for final in finals} == {"succeeded"}
    assert counter.total("/v1/chat/completions") == before + RUNS
    assert took_s >= (RUNS - 1) / PER_S * 0.95, "no faster than the bucket fills"
    attempts = [await stack.client.attempts(run.run_id) for run in runs]
    held_ms = sorted(a.ended_at.ToMilliseconds() - a.leased_at.ToMilliseconds() for each in attempts for a in each)
    assert len(held_ms) == RUNS
    assert held_ms[RUNS // 2] < 1_000 / PER_S, f"leases were held for {held_ms} ms: they waited at the gateway"
