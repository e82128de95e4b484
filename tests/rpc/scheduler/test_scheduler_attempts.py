"""An attempt from its ticket to its end, as a worker sees it: real gRPC, PostgreSQL, etcd."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import grpc
import pytest
from runway.common.v1 import common_pb2
from runway.events.v1 import events_pb2
from runway.internal.fence.v1 import fence_pb2
from runway.scheduler.v1 import worker_service_pb2 as pb

from libs.fence.claims import Claims
from libs.fence.token import Signer
from libs.kernel.epochs import StepFence
from libs.rpc.status import refusal_of
from libs.testkit.waiting import wait_until
from tests.rpc.scheduler.calls import attempts, bearer, beat, claim, complete, renew
from tests.rpc.scheduler.harness import EPOCH, Replica, World, new_run, value

FAILED: dict[str, Any] = {"failure": common_pb2.Failure(failure_class="transient", message="broke", type="ValueError")}


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


@pytest.mark.requirement("sched.claim")
async def test_a_repeated_claim_gets_the_same_leases_with_fresh_tokens(world: World, replica: Replica) -> None:
    run_id, other = new_run(), new_run()
    await world.ready(replica, run_id)
    worker, name = replica.worker(), uuid4().bytes
    (first,) = await claim(worker, claim_id=name)
    await world.ready(replica, other)
    (again,) = await claim(worker, claim_id=name)
    assert (again.attempt_id, again.lease_epoch, again.run_id) == (first.attempt_id, 1, str(run_id))
    assert again.input == first.input
    assert (await beat(worker, again)).status == pb.LEASE_STATUS_LIVE
    assert (await complete(worker, again.lease_token)).recorded
    assert await claim(worker, claim_id=name, wait_ms=0) == []
    (next_one,) = await claim(worker, wait_ms=0)
    assert next_one.run_id == str(other)


@pytest.mark.requirement("attempt.fenced")
async def test_a_repeated_report_is_recorded_and_another_one_is_fenced(world: World, replica: Replica) -> None:
    run_id = new_run()
    await world.ready(replica, run_id)
    worker = replica.worker()
    (lease,) = await claim(worker)
    assert (await complete(worker, lease.lease_token)).recorded
    assert (await complete(worker, lease.lease_token)).recorded
    assert (await complete(worker, lease.lease_token, output=value("another"))).error.reason == "LEASE_FENCED"
    assert (await complete(worker, lease.lease_token, **FAILED)).error.reason == "LEASE_FENCED"
    assert len(await world.finished(run_id)) == 1


@pytest.mark.requirement("attempt.fenced")
async def test_altered_forged_and_expired_tokens(world: World) -> None:
    replica = await world.replica(token_life_ms=2_000)
    run_id = new_run()
    await world.ready(replica, run_id)
    worker = replica.worker()
    (lease,) = await claim(worker)
    altered = bytearray(lease.lease_token)
    altered[10] ^= 1
    assert (await complete(worker, bytes(altered))).error.reason == "LEASE_INVALID"
    stranger = Signer()
    claims = Claims(
        tenant="a",
        project="p",
        run_id=run_id,
        step_key="s",
        fence=StepFence(lease.authority_epoch, 1, UUID(bytes=lease.attempt_id)),
        epoch=EPOCH,
        points=("scheduler",),
        region="local",
        audience="runway",
        issued_at_ms=0,
        expires_at_ms=2**50,
        handler="x",
    )
    assert (await complete(worker, stranger.sign(claims))).error.reason == "LEASE_INVALID"
    at_ms = lease.token_expires_at.ToMilliseconds()
    await wait_until(lambda: replica.host.clock.now_ms() > at_ms)
    assert (await complete(worker, lease.lease_token)).recorded  # the lease decides: a clock that jumps stops nothing


async def test_an_output_that_is_too_large_is_refused_by_itself(world: World) -> None:
    replica = await world.replica(output_limit_bytes=100)
    for step in ("s", "t"):
        await world.ready(replica, new_run(), step)
    worker = replica.worker()
    leases = await claim(worker, slots=2)
    request = pb.CompleteAttemptsRequest(
        completions=[
            pb.Completion(lease_token=leases[0].lease_token, output=value("x" * 200)),
            pb.Completion(lease_token=leases[1].lease_token, output=value("x")),
        ]
    )
    first, second = (await worker.CompleteAttempts(request, metadata=bearer())).results
    assert (first.recorded, first.error.reason, second.recorded) == (False, "TOO_LARGE", True)


@pytest.mark.requirement("attempt.fenced")
async def test_a_stale_epoch_is_renewed_and_then_passes(world: World, replica: Replica) -> None:
    run_id = new_run()
    await world.ready(replica, run_id)
    worker = replica.worker()
    (lease,) = await claim(worker)
    await world.raise_gate(replica, run_id, EPOCH + 1, mode=0)
    refused = await complete(worker, lease.lease_token)
    assert (refused.error.reason, refused.error.detail["epoch"]) == ("EPOCH_STALE", str(EPOCH + 1))
    world.launch.gate(run_id, epoch=EPOCH + 2)  # the scheduler has not heard of this one: it must ask before it signs
    renewed = await renew(worker, lease.lease_token, refused_epoch=EPOCH + 2)
    assert renewed.epoch == EPOCH + 2
    assert (await complete(worker, renewed.lease_token)).recorded


async def test_a_paused_run_grants_nothing_lets_ends_commit_and_goes_on(world: World, replica: Replica) -> None:
    run_id = new_run()
    await world.ready(replica, run_id, "one")
    worker = replica.worker()
    (lease,) = await claim(worker)
    answer = await world.raise_gate(replica, run_id, EPOCH, mode=1)
    assert (answer.quiesced, answer.live_leases) == (False, 1)
    await world.ready(replica, run_id, "two")
    assert await claim(worker, wait_ms=100) == []
    assert (await renew(worker, lease.lease_token)).error.reason == "RUN_PAUSED"
    assert (await complete(worker, lease.lease_token)).recorded  # progress may still land
    await wait_until(lambda: world.to_launch.of("point_quiesced", run_id))
    (quiet,) = world.to_launch.of("point_quiesced", run_id)
    assert (quiet.point, quiet.epoch) == ("scheduler", EPOCH)
    await world.raise_gate(replica, run_id, EPOCH + 1, mode=0)
    (resumed,) = await claim(worker)
    assert (resumed.step_key, resumed.epoch) == ("two", EPOCH + 1)


async def test_a_closed_run_stops_what_lives_and_drops_what_waits(world: World, replica: Replica) -> None:
    run_id = new_run()
    for step in ("one", "two"):
        await world.ready(replica, run_id, step, points=1)
    worker = replica.worker()
    (lease,) = await claim(worker)
    world.gateway.open.clear()
    answer = await world.raise_gate(replica, run_id, EPOCH + 1, mode=2, outcome="cancelled")
    assert (answer.committed, answer.quiesced, answer.live_leases) == (True, False, 1)
    assert (await beat(worker, lease)).status == pb.LEASE_STATUS_CANCELLED
    await wait_until(lambda: world.gateway.asked)
    assert (await complete(worker, lease.lease_token)).error.reason == "RUN_CANCELLED"
    assert (await beat(worker, lease)).status == pb.LEASE_STATUS_CANCELLED
    assert world.to_readiness.of("attempt_finished", run_id) == []
    assert world.to_launch.of("point_quiesced", run_id) == []
    world.gateway.open.set()
    (finished,) = await world.finished(run_id)
    assert finished.end == events_pb2.ATTEMPT_END_CANCELLED
    await wait_until(lambda: world.to_launch.of("point_quiesced", run_id))
    assert world.to_launch.of("point_quiesced", run_id)[0].epoch == EPOCH + 1
    assert await claim(worker, wait_ms=0) == []
    again = await world.raise_gate(replica, run_id, EPOCH + 1, mode=2, outcome="cancelled")
    assert again.quiesced
    assert (await world.ready(replica, run_id, "three")).verdict == 1  # told once and for all: nothing of it is stored
    assert await claim(worker, wait_ms=0) == []


@pytest.mark.requirement("attempt.fenced")
@pytest.mark.parametrize("state", ["unknown", "proposed"])
async def test_an_end_with_an_effect_in_doubt_is_uncertain(world: World, replica: Replica, state: str) -> None:
    run_id = new_run()
    effect = fence_pb2.UnresolvedEffect(step_key="s", slot="push", state=state, tool="git", version=7)
    world.gateway.unresolved["s"] = [effect]
    await world.ready(replica, run_id, points=3)
    worker = replica.worker()
    (lease,) = await claim(worker)
    assert (await complete(worker, lease.lease_token, **FAILED)).recorded
    (finished,) = await world.finished(run_id)
    if state == "unknown":
        assert finished.end == events_pb2.ATTEMPT_END_UNCERTAIN
        assert (list(finished.unresolved_slots), list(finished.unresolved_versions)) == (["push"], [7])
    else:  # never sent, and never will be under this lease
        assert finished.end == events_pb2.ATTEMPT_END_FAILED
    assert finished.failure.type == "ValueError"
    (attempt,) = await attempts(replica, run_id)
    assert attempt.failure.message == "broke"
