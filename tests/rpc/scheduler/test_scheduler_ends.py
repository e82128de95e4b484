"""Attempts over real gRPC: the next grant, silence, time limits, commands, withdrawals, what people and points read."""

import asyncio
from typing import Any
from uuid import uuid4

import grpc
import pytest
from runway.common.v1 import common_pb2
from runway.events.v1 import events_pb2
from runway.internal.fence.v1 import fence_pb2, lease_pb2
from runway.internal.inbox.v1 import inbox_pb2
from runway.internal.scheduler.v1 import scheduler_internal_pb2 as internal_pb
from runway.internal.scheduler.v1.scheduler_internal_pb2_grpc import SchedulerInternalServiceStub
from runway.scheduler.v1 import scheduler_service_pb2 as people_pb
from runway.scheduler.v1 import worker_service_pb2 as pb

from libs.kernel.ids import shard_of
from libs.rpc.channels import open_channel
from libs.rpc.status import refusal_of
from libs.testkit.waiting import wait_until
from services.scheduler.app import record_commands
from tests.rpc.scheduler.calls import bearer, beat, claim, complete
from tests.rpc.scheduler.harness import HANDLER, SECRET, Replica, World, new_run, ready_event, value

FAILED: dict[str, Any] = {"failure": common_pb2.Failure(failure_class="transient", message="broke", type="ValueError")}


@pytest.mark.requirement("sched.claim")
async def test_the_next_grant_waits_for_the_raise_and_takes_the_second_next_lease(world: World, replica: Replica) -> None:
    run_id = new_run()
    await world.ready(replica, run_id, points=1)
    worker = replica.worker()
    (lease,) = await claim(worker)
    world.gateway.open.clear()
    assert (await complete(worker, lease.lease_token)).recorded
    (finished,) = await world.finished(run_id)
    assert finished.end == events_pb2.ATTEMPT_END_SUCCEEDED  # beside the raise
    assert (await world.ready(replica, run_id, sequence=2, points=1)).verdict == 1
    assert await claim(worker, wait_ms=100) == []
    world.gateway.open.set()
    (second,) = await claim(worker)
    assert (second.lease_epoch, second.attempt_number) == (3, 2)
    assert (await complete(worker, lease.lease_token)).recorded  # an equal repeat of the first report
    assert (await beat(worker, lease)).status == pb.LEASE_STATUS_FENCED
    assert (await beat(worker, second)).status == pb.LEASE_STATUS_LIVE


async def test_silence_is_lost_and_a_late_report_is_fenced(world: World) -> None:
    replica = await world.replica(lease_ttl_ms=300, first_beat_ms=150, expiry_interval_ms=20)
    taken_up, forgotten = new_run(), new_run()
    await world.ready(replica, taken_up)
    worker = replica.worker()
    (lease,) = await claim(worker)
    assert (await beat(worker, lease)).status == pb.LEASE_STATUS_LIVE
    await world.ready(replica, forgotten)
    await claim(worker)
    (never,) = await world.finished(forgotten)
    (silent,) = await world.finished(taken_up)
    assert (never.end, silent.end) == (events_pb2.ATTEMPT_END_LOST, events_pb2.ATTEMPT_END_LOST)
    assert "never reported" in never.failure.message
    assert "stopped reporting" in silent.failure.message
    assert silent.ended_at_ms >= lease.token_expires_at.ToMilliseconds() - 60_000 + 300
    assert (await complete(worker, lease.lease_token)).error.reason == "LEASE_FENCED"
    assert (await beat(worker, lease)).status == pb.LEASE_STATUS_FENCED


async def test_a_step_that_takes_too_long_is_timed_out_though_it_beats(world: World) -> None:
    replica = await world.replica(expiry_interval_ms=20)
    run_id = new_run()
    await world.ready(replica, run_id, timeout_ms=200)
    worker = replica.worker()
    (lease,) = await claim(worker)
    while not world.to_readiness.of("attempt_finished", run_id):
        await beat(worker, lease)
    (finished,) = await world.finished(run_id)
    assert finished.end == events_pb2.ATTEMPT_END_TIMED_OUT
    assert (finished.failure.failure_class, finished.failure.type) == ("attempt", "TIMED_OUT")


async def test_beats_bring_a_new_token_at_half_of_its_life(world: World) -> None:
    replica = await world.replica(token_life_ms=2_000)
    run_id = new_run()
    await world.ready(replica, run_id)
    worker = replica.worker()
    (lease,) = await claim(worker)
    assert (await beat(worker, lease)).lease_token == b""
    found: list[bytes] = []

    async def renewed() -> bool:
        found.append((await beat(worker, lease)).lease_token)
        return found[-1] != b""

    await wait_until(renewed)
    assert (await complete(worker, found[-1])).recorded


async def test_commands_that_nobody_acts_on_are_refused_and_nothing_is_stored(
    world: World, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_commands, "SERVED", record_commands.SERVED - {1, 6})  # as in a version that serves less
    run_id = new_run()
    await world.ready(replica, run_id)
    worker = replica.worker()
    (lease,) = await claim(worker)
    for kind in (1, 6):
        item = pb.CommandItem(slot="c", type=pb.CommandType.ValueType(kind), payload=value("x"))
        asked = pb.AttemptCommands(lease_token=lease.lease_token, commands=[item])
        (answer,) = (await worker.RecordCommands(pb.RecordCommandsRequest(attempts=[asked]), metadata=bearer())).results
        assert (answer.recorded, answer.error.reason) == (False, "NOT_AVAILABLE")
        assert "not available in this version" in answer.error.message
        ended = await complete(worker, lease.lease_token, yielded=pb.Yield(reason="wait", commands=[item]))
        assert (ended.recorded, ended.error.reason) == (False, "NOT_AVAILABLE")
    assert await world.hand.fetchval("SELECT count(*) FROM command") == 0
    assert (await beat(worker, lease)).status == pb.LEASE_STATUS_LIVE
    assert (await complete(worker, lease.lease_token)).recorded
    await world.finished(run_id)
    assert world.to_launch.of("command_recorded", run_id) == world.to_readiness.of("command_recorded", run_id) == []


async def test_commands_are_recorded_once_per_slot_and_only_under_the_lease(
    world: World, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_commands, "SERVED", frozenset({1, 2, 3}))
    run_id = new_run()
    await world.ready(replica, run_id)
    worker = replica.worker()
    (lease,) = await claim(worker)

    async def record(*slots: tuple[str, int]) -> pb.CommandsResult:
        items = [pb.CommandItem(slot=slot, type=pb.CommandType.ValueType(kind), payload=value(slot)) for slot, kind in slots]
        request = pb.RecordCommandsRequest(attempts=[pb.AttemptCommands(lease_token=lease.lease_token, commands=items)])
        answer: pb.CommandsResult = (await worker.RecordCommands(request, metadata=bearer())).results[0]
        return answer

    spawn, expand, wait = pb.COMMAND_TYPE_SPAWN, pb.COMMAND_TYPE_EXPAND, pb.COMMAND_TYPE_WAIT
    assert (await record(("child", spawn), ("more", expand))).recorded
    assert (await record(("child", spawn))).recorded
    await wait_until(lambda: world.to_launch.of("command_recorded", run_id))
    await wait_until(lambda: world.to_readiness.of("command_recorded", run_id))
    item = pb.CommandItem(slot="timer", type=wait, payload=value("later"))
    yielded = pb.Yield(reason="wait", commands=[item])
    assert (await complete(worker, lease.lease_token, yielded=yielded)).recorded
    assert (await complete(worker, lease.lease_token, yielded=yielded)).recorded, "a repeat whose first answer was lost"
    (finished,) = await world.finished(run_id)
    assert (finished.end, list(finished.awaits)) == (events_pb2.ATTEMPT_END_YIELDED, ["timer"])
    assert (await record(("late", spawn))).error.reason == "LEASE_FENCED"
    await wait_until(lambda: len(world.to_readiness.of("command_recorded", run_id)) == 2)
    assert [c.slot for c in world.to_launch.of("command_recorded", run_id)] == ["child"]
    assert [c.slot for c in world.to_readiness.of("command_recorded", run_id)] == ["more", "timer"]


@pytest.mark.requirement("step.wait")
async def test_a_yield_says_what_it_waits_for_also_after_its_points_acknowledged(world: World, replica: Replica) -> None:
    run_id = new_run()
    await world.ready(replica, run_id, points=3)
    worker = replica.worker()
    (lease,) = await claim(worker)
    kinds = {"timer": pb.COMMAND_TYPE_WAIT, "question": pb.COMMAND_TYPE_INPUT}
    items = [pb.CommandItem(slot=slot, type=kind, payload=value(slot)) for slot, kind in kinds.items()]
    yielded = pb.Yield(reason="wait", commands=items)
    assert (await complete(worker, lease.lease_token, yielded=yielded)).recorded
    (finished,) = await world.finished(run_id)
    assert (finished.end, list(finished.awaits)) == (events_pb2.ATTEMPT_END_YIELDED, ["timer", "question"])
    assert {c.slot for c in world.to_readiness.of("command_recorded", run_id)} == set(kinds)
    await world.ready(replica, run_id, sequence=2, points=3)
    (again,) = await claim(worker)
    assert (await complete(worker, again.lease_token, yielded=pb.Yield(reason="wait", commands=items[:1]))).recorded
    await wait_until(lambda: len(world.to_readiness.of("attempt_finished", run_id)) == 2)
    assert list(world.to_readiness.of("attempt_finished", run_id)[1].awaits) == ["timer"]
    assert len(world.to_readiness.of("command_recorded", run_id)) == 2, "a slot is asked once, however many attempts reach it"


async def test_a_withdrawn_ticket_is_stopped_wherever_it_stands(world: World, replica: Replica) -> None:
    live, waiting, unknown = new_run(), new_run(), new_run()
    await world.ready(replica, live)
    worker = replica.worker()
    (lease,) = await claim(worker)
    await world.ready(replica, waiting)
    for run_id in (live, waiting, unknown):
        fact = events_pb2.StepRevoked(run_id=run_id.bytes, step_key="s", ticket_sequence=1, reason="not needed")
        event = events_pb2.Event(event_id=uuid4().bytes, step_revoked=fact)
        (verdict,) = await world.deliver(replica, [event.SerializeToString()])
        assert verdict.verdict == 1
        (finished,) = await world.finished(run_id)
        assert finished.end == events_pb2.ATTEMPT_END_CANCELLED
    assert (await beat(worker, lease)).status == pb.LEASE_STATUS_CANCELLED
    await world.ready(replica, unknown)  # overtaken by its withdrawal
    assert await claim(worker, wait_ms=0) == []


async def test_late_and_repeated_tickets_change_nothing(world: World, replica: Replica) -> None:
    run_id = new_run()
    event = ready_event(run_id, sequence=2)
    world.launch.gate(run_id)
    assert [v.verdict for v in await world.deliver(replica, [event, event, ready_event(run_id, sequence=1)])] == [1, 1, 1]
    worker = replica.worker()
    (lease,) = await claim(worker)
    assert (await world.ready(replica, run_id, sequence=2)).verdict == 1
    held = await world.ready(replica, run_id, sequence=3)
    assert (held.verdict, "held" in held.reason) == (2, True)
    assert await claim(worker, wait_ms=0) == []
    bad = await world.deliver(replica, [b"\xff", events_pb2.Event(first_lease=events_pb2.FirstLease()).SerializeToString()])
    assert [v.verdict for v in bad] == [3, 3]
    assert (await complete(worker, lease.lease_token)).recorded
    assert (await world.ready(replica, run_id, sequence=3)).verdict == 1
    assert len(await claim(worker)) == 1


async def test_a_run_that_launch_does_not_know_is_closed(world: World, replica: Replica) -> None:
    run_id = new_run()
    assert [v.verdict for v in await world.deliver(replica, [ready_event(run_id)])] == [1]
    assert await claim(replica.worker(), wait_ms=0) == []
    assert world.launch.reads == [run_id.bytes]


async def test_a_waiting_worker_gets_a_ticket_whose_gate_must_be_read_first(world: World, replica: Replica) -> None:
    run_id = new_run()
    await world.ready(replica, run_id)
    await world.hand.execute("UPDATE run_gate SET stamp = 1")
    (lease,) = await asyncio.wait_for(claim(replica.worker()), 3)
    assert (lease.run_id, len(world.launch.reads)) == (str(run_id), 2)


async def test_people_see_shards_workers_and_what_is_stuck(world: World) -> None:
    replica = await world.replica(stuck_ticket_ms=0, worker_interval_ms=20)
    run_id, stuck = new_run(), new_run()
    await world.ready(replica, run_id)
    worker, people = replica.worker(), replica.people()
    (lease,) = await claim(worker, capabilities=["gpu"])
    await world.ready(replica, stuck, handler="nobody.has@9")
    shards = (await people.ListShards(people_pb.ListShardsRequest(), metadata=bearer())).shards
    assert [shard.shard_id for shard in shards] == list(range(64))
    mine = shards[shard_of(run_id)]
    assert (mine.led_here, mine.live_leases, mine.authority_epoch) == (True, 1, lease.authority_epoch)
    assert mine.address == replica.host.addresses.control

    async def seen() -> people_pb.ListWorkersResponse:
        answer: people_pb.ListWorkersResponse = await people.ListWorkers(people_pb.ListWorkersRequest(), metadata=bearer())
        return answer

    async def listed() -> bool:
        return bool((await seen()).workers)

    await wait_until(listed)
    (found,) = (await seen()).workers
    assert (found.worker_id, list(found.handlers), list(found.capabilities), found.live_leases) == ("w1", [HANDLER], ["gpu"], 1)
    others = await people.ListWorkers(people_pb.ListWorkersRequest(), metadata=bearer("rk_b"))
    assert list(others.workers) == []
    answer = await replica.host.peers.list_stuck("scheduler", inbox_pb2.ListStuckRequest(service="scheduler"))
    assert any("no worker seen lately carries nobody.has@9" in item.detail for item in answer.items)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await people.ListAttempts(people_pb.ListAttemptsRequest(run_id=str(run_id)), metadata=bearer("rk_b"))
    assert refusal_of(error.value).reason == "NOT_FOUND"
    request = people_pb.ListAttemptsRequest(run_id=str(run_id))
    (attempt,) = (await people.ListAttempts(request, metadata=bearer())).attempts
    assert attempt.state == people_pb.ATTEMPT_STATE_LEASED
    await beat(worker, lease)
    (attempt,) = (await people.ListAttempts(request, metadata=bearer())).attempts
    assert attempt.state == people_pb.ATTEMPT_STATE_RUNNING


async def test_steps_that_require_labels_go_to_workers_that_have_them(world: World, replica: Replica) -> None:
    run_id = new_run()
    await world.ready(replica, run_id, requires=["gpu"])
    worker = replica.worker()
    assert await claim(worker, wait_ms=0) == []
    (lease,) = await claim(worker, capabilities=["gpu", "big"])
    assert lease.run_id == str(run_id)


async def test_what_points_and_processes_read_on_the_leaf_port(world: World, replica: Replica) -> None:
    first, second = new_run(), new_run()
    for run_id in (first, second):
        await world.ready(replica, run_id, points=1)
    worker = replica.worker()
    leases = {lease.run_id: lease for lease in await claim(worker, slots=2)}
    assert (await complete(worker, leases[str(second)].lease_token)).recorded
    names = [fence_pb2.StepName(run_id=first.bytes, step_key="s"), fence_pb2.StepName(run_id=first.bytes, step_key="none")]
    request = fence_pb2.GetFencesRequest(service="scheduler", run_ids=[first.bytes, second.bytes], steps=names)
    answer = await replica.host.peers.get_fences("scheduler", request)
    held, none, ended = answer.steps
    assert (held.lease_epoch, held.live_first_grant, held.attempt_id) == (1, True, leases[str(first)].attempt_id)
    assert none.lease_epoch == 0
    assert (ended.lease_epoch, ended.attempt_id, ended.live_first_grant) == (2, bytes(16), False)
    assert answer.incarnation > 0
    channel = open_channel(replica.host.addresses.leaf, secret=SECRET)
    replica.channels.append(channel)
    stub = SchedulerInternalServiceStub(channel)
    key_id = lease_pb2.LeaseToken.FromString(leases[str(first)].lease_token).key_id
    keys = (await stub.GetSigningKeys(internal_pb.GetSigningKeysRequest(key_ids=[key_id, b"x" * 16]))).keys
    assert [key.key_id for key in keys] == [key_id]


async def test_text_that_cannot_be_stored_spoils_nobody_elses_batch(world: World, replica: Replica) -> None:
    run_id = new_run()
    await world.ready(replica, run_id)
    worker = replica.worker()
    odds: tuple[dict[str, Any], ...] = (
        {"worker": "w\0"},
        {"handlers": [HANDLER, "x\0"]},
        {"handlers": [HANDLER, "a\nb"]},
        {"capabilities": ["g\0"]},
    )
    for odd in odds:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await claim(worker, wait_ms=0, **odd)
        assert refusal_of(error.value).reason == "INVALID_FIELD"
    (lease,) = await claim(worker, wait_ms=0)
    with pytest.raises(grpc.aio.AioRpcError):
        await beat(worker, lease, worker="w\0")
    broken = common_pb2.Failure(failure_class="transient\0", message="bro\0ke", type="Value\0Error")
    assert (await complete(worker, lease.lease_token, failure=broken)).recorded
    (finished,) = await world.finished(run_id)
    said = finished.failure
    assert (said.failure_class, said.message, said.type) == ("transient", "broke", "ValueError")
