"""Several schedulers: calls through any replica, leases that survive a takeover, authority that never doubles."""

import asyncio
from uuid import uuid4

import pytest
from grpc.aio import AioRpcError
from runway.events.v1 import events_pb2
from runway.scheduler.v1 import control_service_pb2 as ct
from runway.scheduler.v1 import control_service_pb2_grpc
from runway.scheduler.v1 import worker_service_pb2 as pb

from libs.kernel.ids import shard_of
from libs.rpc.channels import open_channel
from libs.telemetry.catalogue import TAKEOVERS
from libs.testkit.proxy import FaultProxy
from libs.testkit.waiting import wait_until
from tests.rpc.scheduler.calls import bearer, beat, claim, complete, renew
from tests.rpc.scheduler.harness import SECRET, Replica, World, new_run, ready_event, value


async def two(world: World) -> tuple[Replica, Replica]:
    """Two replicas that share the shards."""
    one = await world.replica()
    other = await world.replica(led=None)
    await wait_until(lambda: one.led + other.led == 64 and min(one.led, other.led) > 10, 10.0, what="sharing")
    return one, other


async def healthy(replica: Replica) -> bool:
    return await replica.host.services[0].healthy()


def shard_led_by(replica: Replica) -> int:
    return next(shard for shard in range(64) if replica.book.epoch(shard) is not None)


async def test_any_replica_takes_every_call(world: World) -> None:
    one, other = await two(world)
    at_one = new_run(shard_led_by(one))
    at_other = new_run(shard_led_by(other))
    for run_id in (at_one, at_other):
        world.launch.gate(run_id)
    verdicts = await world.deliver(one, [ready_event(at_one), ready_event(at_other), b"\xff"])
    assert [v.verdict for v in verdicts] == [1, 1, 3]
    assert (len(one.book.ready), len(other.book.ready)) == (1, 1)
    worker = other.worker()
    leases = await claim(worker, slots=4)
    if len(leases) < 2:
        leases += await claim(worker, slots=4)
    by_run = {lease.run_id: lease for lease in leases}
    assert by_run.keys() == {str(at_one), str(at_other)}
    request = pb.HeartbeatAttemptsRequest(
        worker_id="w1",
        heartbeats=[
            pb.Heartbeat(run_id=x.run_id, attempt_id=x.attempt_id, lease_epoch=x.lease_epoch, step_key=x.step_key)
            for x in by_run.values()
        ],
    )
    answer = await worker.HeartbeatAttempts(request, metadata=bearer())
    assert [r.status for r in answer.results] == [pb.LEASE_STATUS_LIVE] * 2
    assert (await renew(worker, by_run[str(at_one)].lease_token)).epoch == by_run[str(at_one)].epoch
    item = pb.CommandItem(slot="c", type=pb.COMMAND_TYPE_SPAWN, payload=value("x"))
    asked = pb.AttemptCommands(lease_token=by_run[str(at_one)].lease_token, commands=[item])
    recorded = await worker.RecordCommands(pb.RecordCommandsRequest(attempts=[asked]), metadata=bearer())
    assert recorded.results[0].recorded
    ends = [pb.Completion(lease_token=lease.lease_token, output=value("x")) for lease in by_run.values()]
    ends.append(pb.Completion(lease_token=b"nonsense", output=value("x")))
    done = (await worker.CompleteAttempts(pb.CompleteAttemptsRequest(completions=ends), metadata=bearer())).results
    assert [r.recorded for r in done] == [True, True, False]
    for run_id in (at_one, at_other):
        assert (await world.finished(run_id))[0].end == events_pb2.ATTEMPT_END_SUCCEEDED


async def test_one_slot_finds_work_wherever_it_is(world: World) -> None:
    one, other = await two(world)
    waiting = asyncio.create_task(claim(one.worker(), slots=1, wait_ms=10_000))
    await wait_until(lambda: one.book.workers or other.book.workers)
    run_id = new_run(shard_led_by(other))
    await world.ready(one, run_id)
    (lease,) = await asyncio.wait_for(waiting, 10)
    assert lease.run_id == str(run_id)


@pytest.mark.requirement("sched.authority")
async def test_live_leases_survive_the_death_of_their_leader(world: World) -> None:
    one = await world.replica()
    other = await world.replica(led=None)
    await wait_until(lambda: one.led + other.led == 64 and other.led > 10, 10.0)
    run_id = new_run(shard_led_by(one))
    name = uuid4().bytes
    await world.ready(one, run_id, points=1)
    worker = other.worker()
    (lease,) = await claim(worker, claim_id=name, slots=2)
    await world.end(one)
    await wait_until(lambda: other.led == 64, 10.0, what="the takeover")
    assert (await beat(worker, lease)).status == pb.LEASE_STATUS_LIVE
    (again,) = await claim(worker, claim_id=name, slots=2)
    assert (again.attempt_id, again.authority_epoch) == (lease.attempt_id, lease.authority_epoch)
    new_epoch = other.book.epoch(shard_of(run_id))
    assert new_epoch > lease.authority_epoch
    assert (await complete(worker, lease.lease_token)).recorded  # a token that the former leader signed
    (finished,) = await world.finished(run_id)
    assert finished.authority_epoch == lease.authority_epoch
    await wait_until(lambda: world.gateway.of(run_id))
    (step,) = world.gateway.of(run_id)
    assert (step.authority_epoch, step.lease_epoch) == (new_epoch, 2)


@pytest.mark.requirement("sched.authority")
async def test_a_takeover_loads_what_waits_and_what_is_ending(world: World) -> None:
    one = await world.replica()
    waits, ends = new_run(), new_run()
    await world.ready(one, waits, handler="other.handler@1")
    await world.ready(one, ends, points=1)
    (lease,) = await claim(one.worker())
    world.gateway.open.clear()
    assert (await complete(one.worker(), lease.lease_token, yielded=pb.Yield(reason="drain"))).recorded
    await world.end(one)
    other = await world.replica()
    assert other.book.awaited == {(ends, "s")}
    world.gateway.open.set()
    (finished,) = await world.finished(ends)
    assert finished.end == events_pb2.ATTEMPT_END_YIELDED
    await wait_until(lambda: not other.book.awaited)
    (found,) = await claim(other.worker(), handlers=["other.handler@1"])
    assert found.run_id == str(waits)


@pytest.mark.requirement("sched.authority")
async def test_a_leader_whose_row_has_another_epoch_commits_nothing(world: World, replica: Replica) -> None:
    run_id = new_run()
    await world.ready(replica, run_id)
    worker = replica.worker()
    (lease,) = await claim(worker)
    shard = shard_of(run_id)
    taken = replica.book.epoch(shard)
    await world.hand.execute("UPDATE shard SET authority_epoch = authority_epoch + 1 WHERE shard_id = $1", shard)
    assert (await complete(worker, lease.lease_token)).error.reason == "NO_LEADER"
    state = await world.hand.fetchval("SELECT state FROM ticket WHERE run_id = $1", run_id)
    assert state == 2
    assert await world.hand.fetchval("SELECT count(*) FROM outbox WHERE kind = 'attempt_finished'") == 0
    # it campaigns anew, wins a greater epoch, and finds the lease again
    await wait_until(lambda: (replica.book.epoch(shard) or 0) > taken + 1, 10.0)
    assert (await complete(worker, lease.lease_token)).recorded


@pytest.mark.requirement("sched.authority")
async def test_without_etcd_nothing_is_granted_and_afterwards_all_goes_on(world: World, etcd_server: list[str]) -> None:
    async with FaultProxy(int(etcd_server[0].rpartition(":")[2])) as proxy:
        world.endpoints = f"127.0.0.1:{proxy.port}"
        replica = await world.replica(etcd_ttl_ms=1_000)
        run_id = new_run()
        await world.ready(replica, run_id)
        worker = replica.worker()
        (lease,) = await claim(worker)
        proxy.silence()
        await wait_until(lambda: replica.led == 0, 5.0)
        assert (await beat(worker, lease)).status == pb.LEASE_STATUS_LIVE, "its row says so"
        assert (await complete(worker, lease.lease_token)).error.reason == "NO_LEADER"
        assert (await world.ready(replica, new_run())).verdict == 2
        assert not await healthy(replica)
        proxy.heal()
        await wait_until(lambda: replica.led == 64, 15.0)
        assert (await beat(worker, lease)).status == pb.LEASE_STATUS_LIVE
        assert (await complete(worker, lease.lease_token)).recorded
        assert await healthy(replica)
        await world.end(replica)


@pytest.mark.requirement("sched.authority")
@pytest.mark.parametrize("reset", [False, True])
async def test_an_etcd_restored_to_the_past_is_refused_until_its_generation_is_raised(world: World, reset: bool) -> None:
    await world.hand.execute("UPDATE shard SET authority_epoch = (1::bigint << 39)")  # far ahead of any revision here
    refused = TAKEOVERS.labels("refused")
    before = refused._value.get()
    replica = await world.replica(led=64 if reset else None, reset_lost_etcd=reset)
    run_id = new_run()
    if not reset:
        await wait_until(lambda: refused._value.get() >= before + 64, 10.0, what="a refusal")
        assert replica.led == 0
        assert (await world.ready(replica, run_id)).verdict == 2
        return
    assert (await world.ready(replica, run_id)).verdict == 1
    (lease,) = await claim(replica.worker())
    assert lease.authority_epoch >> 40 == 1
    assert await world.hand.fetchval("SELECT count(*) FROM shard_reset") == 64


@pytest.mark.requirement("sched.authority")
async def test_an_operator_s_order_lets_leaders_begin_anew_for_a_while(world: World) -> None:
    await world.hand.execute("UPDATE shard SET authority_epoch = (1::bigint << 39)")
    await world.hand.execute("INSERT INTO shard_reset_order (at_ms, until_ms, actor, reason) VALUES (1, 2, 'long ago', 'over')")
    refused = TAKEOVERS.labels("refused")
    before = refused._value.get()
    replica = await world.replica(led=None)
    await wait_until(lambda: refused._value.get() >= before + 64, 10.0, what="a refusal")
    channel = open_channel(replica.host.addresses.control, secret=SECRET)
    replica.channels.append(channel)
    stub = control_service_pb2_grpc.ControlServiceStub(channel)
    for wrong in (
        ct.ResetShardsRequest(reason="r", actor="ann"),
        ct.ResetShardsRequest(etcd_lost=True, reason=" ", actor="ann"),
    ):
        with pytest.raises(AioRpcError) as no:
            await stub.ResetShards(wrong)
        assert no.value.code().name == "INVALID_ARGUMENT"
    assert replica.led == 0
    order = ct.ResetShardsRequest(etcd_lost=True, reason="restored from yesterday", actor="ann")
    until = (await stub.ResetShards(order)).until
    assert until.ToMilliseconds() > replica.host.clock.now_ms()
    await wait_until(lambda: replica.led == 64, 20.0, what="leaders of a new generation")
    run_id = new_run()
    assert (await world.ready(replica, run_id)).verdict == 1
    (lease,) = await claim(replica.worker())
    assert lease.authority_epoch >> 40 == 1
    assert {row["actor"] for row in await world.hand.fetch("SELECT actor FROM shard_reset")} == {"ann: restored from yesterday"}
    await stub.ResetShards(order)
    epochs = await world.hand.fetch("SELECT DISTINCT generation FROM shard")
    assert [row["generation"] for row in epochs] == [1], "where etcd lost nothing it does nothing"


@pytest.mark.requirement("sched.authority")
async def test_through_a_replica_that_hears_no_etcd_the_other_one_is_reached(world: World, etcd_server: list[str]) -> None:
    hears = world.endpoints
    async with FaultProxy(int(etcd_server[0].rpartition(":")[2])) as proxy:
        world.endpoints = f"127.0.0.1:{proxy.port}"
        cut = await world.replica(etcd_ttl_ms=1_000)
        run_id, later = new_run(), new_run()
        await world.ready(cut, run_id)
        worker = cut.worker()
        (lease,) = await claim(worker)
        world.endpoints = hears
        other = await world.replica(led=None, etcd_ttl_ms=1_000)
        proxy.silence()
        await wait_until(lambda: other.led == 64, 15.0, what="the other leads everything")
        assert cut.led == 0
        taken_over_ms = other.book.leases[(run_id, "s")].heard_ms

        async def reaches_the_leader() -> bool:
            assert (await beat(worker, lease)).status == pb.LEASE_STATUS_LIVE, "its row says so while the leader is not known"
            return bool(other.book.leases[(run_id, "s")].heard_ms > taken_over_ms)

        await wait_until(reaches_the_leader, 5.0, what="a heartbeat through the replica that was cut off")
        assert not await healthy(cut), "it says of itself that it is cut off"
        assert (await world.ready(cut, later)).verdict == 1
        (claimed,) = await claim(worker)
        assert claimed.run_id == str(later)
        assert (await complete(worker, lease.lease_token)).recorded
        assert (await complete(worker, claimed.lease_token)).recorded
        proxy.heal()
        await wait_until(lambda: cut.led > 0, 15.0, what="its share is its own again")
        assert await healthy(cut)
        await world.end(cut)
