"""An attempt from its ticket to its end, as a worker sees it: real gRPC, PostgreSQL, etcd."""

import asyncio
from uuid import uuid4

import grpc
import pytest
from runway.common.v1 import common_pb2
from runway.events.v1 import events_pb2
from runway.scheduler.v1 import worker_service_pb2 as pb

from libs.rpc.status import refusal_of
from libs.testkit.waiting import wait_until
from tests.rpc.scheduler.harness import (
    EPOCH,
    Replica,
    World,
    attempts,
    beat,
    bearer,
    claim,
    complete,
    new_run,
    value,
)

FAILED = {"failure": common_pb2.Failure(failure_class="transient", message="broke", type="ValueError")}


@pytest.mark.requirement("sched.claim")
async def test_a_step_is_claimed_beats_and_completes(world: World, replica: Replica) -> None:
    run_id = new_run()
    assert (await world.ready(replica, run_id)).verdict == 1
    worker = replica.worker()
    (lease,) = await claim(worker)
    assert (lease.run_id, lease.step_key, lease.lease_epoch, lease.epoch) == (str(run_id), "s", 1, EPOCH)
    assert lease.input.struct_value.fields["run"].string_value == "in"
    assert len(lease.lease_token) < 1024
    assert (await beat(worker, lease)).status == pb.LEASE_STATUS_LIVE
    assert (await complete(worker, lease.lease_token)).recorded
    (finished,) = await world.finished(run_id)
    assert finished.end == events_pb2.ATTEMPT_END_SUCCEEDED
    assert finished.output == value("out").SerializeToString()
    assert (finished.attempt_id, finished.lease_epoch, finished.ticket_sequence) == (lease.attempt_id, 1, 1)
    await wait_until(lambda: world.to_launch.of("first_lease", run_id))
    assert (await beat(worker, lease)).status == pb.LEASE_STATUS_FENCED
    (attempt,) = await attempts(replica, run_id)
    assert (attempt.attempt_id, attempt.attempt_number) == (lease.attempt_id.hex(), 1)


async def test_a_waiting_worker_gets_a_ticket_as_it_comes(world: World, replica: Replica) -> None:
    run_id = new_run()
    waiting = asyncio.create_task(claim(replica.worker()))
    await wait_until(lambda: replica.book.workers)
    await world.ready(replica, run_id)
    (lease,) = await asyncio.wait_for(waiting, 3)
    assert lease.run_id == str(run_id)


async def test_an_empty_wait_ends_with_no_leases(world: World, replica: Replica) -> None:
    assert await claim(replica.worker(), wait_ms=50) == []
    assert await claim(replica.worker(), wait_ms=0) == []


@pytest.mark.requirement("attempt.fenced")
async def test_a_failure_is_told_after_every_point_acknowledged(world: World, replica: Replica) -> None:
    run_id = new_run()
    world.gateway.open.clear()
    await world.ready(replica, run_id, points=3)
    worker = replica.worker()
    (lease,) = await claim(worker)
    assert (await complete(worker, lease.lease_token, **FAILED)).recorded
    await wait_until(lambda: world.checkpoint.of(run_id) and world.gateway.asked)
    assert world.to_readiness.of("attempt_finished", run_id) == []
    world.gateway.open.set()
    (finished,) = await world.finished(run_id)
    assert finished.end == events_pb2.ATTEMPT_END_FAILED
    assert finished.failure.type == "ValueError"
    (step,) = world.gateway.of(run_id)
    assert (step.lease_epoch, step.attempt_id) == (2, bytes(16))


async def test_other_tenants_and_plain_keys_get_nothing(world: World, replica: Replica) -> None:
    await world.ready(replica, new_run())
    worker = replica.worker()
    assert await claim(worker, key="rk_b", wait_ms=0) == []
    assert await claim(worker, key="rk_a_other", wait_ms=0) == []
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await claim(worker, key="rk_a_plain", wait_ms=0)
    assert refusal_of(error.value).reason == "METHOD_DENIED"
    (lease,) = await claim(worker, wait_ms=0)
    assert (await beat(worker, lease, key="rk_b")).status == pb.LEASE_STATUS_FENCED
    assert (await complete(worker, lease.lease_token, key="rk_b")).error.reason == "LEASE_INVALID"
    request = pb.HeartbeatAttemptsRequest(
        worker_id="w", heartbeats=[pb.Heartbeat(run_id=str(uuid4()), attempt_id=bytes(16), step_key="s")]
    )
    answer = await worker.HeartbeatAttempts(request, metadata=bearer())
    assert answer.results[0].status == pb.LEASE_STATUS_FENCED
