"""Holds and drains through the control port of real schedulers: what they stop, in which processes, and how they end."""

import asyncio
from typing import Any

import grpc
import pytest
from runway.scheduler.v1 import control_service_pb2 as pb
from runway.scheduler.v1 import control_service_pb2_grpc
from runway.scheduler.v1 import scheduler_service_pb2 as people_pb

from libs.kernel.ids import shard_of
from libs.rpc.channels import open_channel
from libs.testkit.waiting import wait_until
from services.scheduler.app.hold_desk import NEWCOMER_MS
from tests.rpc.scheduler.calls import bearer, beat, claim, complete
from tests.rpc.scheduler.harness import HANDLER, SECRET, Replica, World, new_run, ready_event

QUEUE, SHARD, WORKER = pb.HOLD_KIND_QUEUE, pb.HOLD_KIND_SHARD, pb.HOLD_KIND_WORKER
HOLD, DRAIN = pb.HOLD_MODE_HOLD, pb.HOLD_MODE_DRAIN


def control(replica: Replica) -> Any:
    channel = open_channel(replica.host.addresses.control, secret=SECRET)
    replica.channels.append(channel)
    return control_service_pb2_grpc.ControlServiceStub(channel)


async def put(replica: Replica, kind: int, name: str, mode: int = HOLD, **more: Any) -> pb.PutHoldResponse:
    given = {"reason": "a test", "actor": "ann", **more}
    answer: pb.PutHoldResponse = await control(replica).PutHold(pb.PutHoldRequest(kind=kind, name=name, mode=mode, **given))
    return answer


async def release(replica: Replica, kind: int, name: str, **more: Any) -> pb.ReleaseHoldResponse:
    given = {"reason": "over", "actor": "bob", **more}
    answer: pb.ReleaseHoldResponse = await control(replica).ReleaseHold(pb.ReleaseHoldRequest(kind=kind, name=name, **given))
    return answer


async def two(world: World, **settings: int) -> tuple[Replica, Replica]:
    one = await world.replica(**settings)
    other = await world.replica(led=None, **settings)
    await wait_until(lambda: one.led + other.led == 64 and min(one.led, other.led) > 10, 10.0, what="sharing")
    return one, other


def run_led_by(replica: Replica) -> Any:
    return new_run(next(shard for shard in range(64) if replica.book.epoch(shard) is not None))


@pytest.mark.requirement("sched.switch")
@pytest.mark.parametrize("name", ["a", "a/p", HANDLER])
async def test_a_held_queue_grants_nothing_in_any_process_and_loses_nothing(world: World, name: str) -> None:
    one, other = await two(world)
    early = [run_led_by(one), run_led_by(other)]
    for run_id in early:
        await world.ready(one, run_id)
    done = await put(one, QUEUE, name)
    assert (done.changed, done.extent.queued_tickets, done.extent.live_leases) == (True, 2, 0)
    assert [replica.acted for replica in done.replicas] == [True, True]
    late = run_led_by(other)
    waiting = asyncio.create_task(claim(other.worker(), slots=4, wait_ms=10_000))
    await wait_until(lambda: other.book.workers and one.book.workers)
    await world.ready(one, late)  # would be granted in the transaction that stores it
    assert await claim(one.worker(), slots=4, wait_ms=300) == []
    assert not waiting.done()
    (queue,) = (await control(other).ListQueues(pb.ListQueuesRequest(name="a/p"))).queues
    assert (queue.waiting, queue.live_leases, [hold.name for hold in queue.holds]) == (3, 0, [name])
    freed = await release(other, QUEUE, name)
    assert (freed.hold.released_by, freed.hold.release_reason, freed.extent.queued_tickets) == ("bob", "over", 3)
    assert all(replica.acted for replica in freed.replicas)
    leases = await waiting
    while len(leases) < 3:
        leases += await claim(one.worker(), slots=4, wait_ms=5_000)
    assert {lease.run_id for lease in leases} == {str(run_id) for run_id in (*early, late)}
    assert not one.book.shelf.tickets
    assert not other.book.shelf.tickets


@pytest.mark.requirement("sched.switch")
async def test_an_answer_waits_for_a_process_that_etcd_does_not_name_yet(world: World) -> None:
    one = await world.replica()
    await world.ready(one, run_led_by(one))
    now_ms = one.host.clock.now_ms()
    said = "INSERT INTO hold_ack (member_id, revision, seen_ms) VALUES ($1, $2, $3) ON CONFLICT (member_id) DO UPDATE SET revision = $2"
    await world.hand.execute(said, "fresh", 0, now_ms)
    await world.hand.execute(said, "gone", 0, now_ms - 2 * NEWCOMER_MS)
    done = await put(one, QUEUE, "a")
    assert [(replica.acted, replica.address) for replica in done.replicas] == [
        (True, one.host.addresses.control),
        (False, ""),
    ]
    assert done.replicas[1].member_id == "fresh"
    await world.hand.execute(said, "fresh", 1_000, now_ms)
    again = await put(one, QUEUE, "a")
    assert [replica.acted for replica in again.replicas] == [True]


@pytest.mark.requirement("sched.switch")
async def test_a_leader_that_etcd_does_not_name_here_is_waited_for_all_the_same(world: World) -> None:
    one = await world.replica()
    await world.ready(one, run_led_by(one))
    await world.hand.execute("UPDATE shard SET holder = 'stopped', address = '127.0.0.1:9' WHERE shard_id = 17")
    done = await put(one, QUEUE, "a")
    assert {replica.member_id: replica.acted for replica in done.replicas if replica.member_id == "stopped"} == {
        "stopped": False
    }
    assert [replica.acted for replica in done.replicas if replica.member_id != "stopped"] == [True]
    await world.hand.execute(
        "INSERT INTO hold_ack (member_id, revision, seen_ms) VALUES ('stopped', 1000, $1)", one.host.clock.now_ms()
    )
    assert all(replica.acted for replica in (await put(one, QUEUE, "a")).replicas)


@pytest.mark.requirement("sched.switch")
async def test_who_wins_a_shard_reads_the_holds_first(world: World) -> None:
    one = await world.replica()
    slow = await world.replica(led=0, notice_interval_ms=3_600_000)
    run_id = run_led_by(one)
    await world.ready(one, run_id)
    done = await put(one, QUEUE, "a")
    assert sorted(replica.acted for replica in done.replicas) == [False, True], "it reads once an hour"
    move = pb.DrainShardsRequest(member=one.host.addresses.control, reason="a restart", actor="ann")
    await control(one).DrainShards(move)
    await wait_until(lambda: slow.led == 64, 10.0, what="the other leads all")
    assert await claim(slow.worker(), slots=4, wait_ms=300) == []
    assert [ready.candidate.key[0] for ready in slow.book.shelf.tickets.values()] == [run_id]


@pytest.mark.requirement("sched.switch")
async def test_a_process_that_stopped_is_not_waited_for(world: World) -> None:
    one, other = await two(world)
    await world.ready(one, run_led_by(one))
    await world.end(other)
    await wait_until(lambda: one.led == 64, 10.0, what="one leads all")
    assert [replica.acted for replica in (await put(one, QUEUE, "a")).replicas] == [True]


@pytest.mark.requirement("sched.switch")
async def test_others_go_on_beside_a_hold(world: World) -> None:
    replica = await world.replica()
    held, free = new_run(3), new_run(4)
    await put(replica, SHARD, "3")
    await world.ready(replica, held)
    await world.ready(replica, free)
    (lease,) = await claim(replica.worker(), slots=4)
    assert lease.run_id == str(free)
    assert list(replica.book.shelf.tickets) == [(held, "s")]
    await release(replica, SHARD, "3")
    (lease,) = await claim(replica.worker(), slots=4)
    assert lease.run_id == str(held)


@pytest.mark.requirement("sched.switch")
async def test_a_drained_worker_gets_nothing_and_is_asked_to_yield_but_never_killed(world: World) -> None:
    one, other = await two(world)
    run_id = run_led_by(one)
    await world.ready(one, run_id)
    (lease,) = await claim(one.worker(), worker="w1", slots=4)
    assert not (await beat(other.worker(), lease)).please_yield
    while not await world.hand.fetchval("SELECT count(*) FROM worker"):
        await asyncio.sleep(0.05)  # written down by a timer
    done = await put(other, WORKER, "a/w1", DRAIN)
    assert (done.extent.live_leases, done.extent.workers, done.extent.queued_tickets) == (1, 1, 0)
    for replica in (one, other):
        (told,) = (await replica.people().ListWorkers(people_pb.ListWorkersRequest(), metadata=bearer())).workers
        assert (told.worker_id, told.held_because, told.leaving) == ("w1", "a test", False)
    answer = await beat(other.worker(), lease)
    assert (answer.please_yield, answer.status) == (True, 1)
    await world.ready(one, run_led_by(one))
    assert await claim(one.worker(), worker="w1", wait_ms=300) == []
    assert len(await claim(one.worker(), worker="w2")) == 1
    assert (await complete(one.worker(), lease.lease_token)).recorded
    await release(one, WORKER, "a/w1")
    (told,) = (await one.people().ListWorkers(people_pb.ListWorkersRequest(), metadata=bearer())).workers[:1]
    assert (told.worker_id, told.held_because) == ("w1", "")
    await world.ready(one, run_led_by(one))
    assert len(await claim(one.worker(), worker="w1")) == 1


@pytest.mark.requirement("sched.switch")
async def test_a_drained_worker_of_a_fleet_is_named_by_its_keys_tenant(world: World) -> None:
    replica = await world.replica()
    for _ in range(2):
        await world.ready(replica, new_run())
    fleet = {"key": "rk_fleet", "worker": "f1"}
    (lease,) = await claim(replica.worker(), slots=1, **fleet)
    done = await put(replica, WORKER, "platform/f1", DRAIN)
    assert (done.extent.live_leases, done.extent.queued_tickets) == (1, 0)
    assert await claim(replica.worker(), slots=1, wait_ms=300, **fleet) == []
    assert (await beat(replica.worker(), lease, **fleet)).please_yield
    assert len(await claim(replica.worker(), slots=1, key="rk_fleet", worker="f2")) == 1, "the fleet goes on"

    async def both_are_seen() -> bool:
        (queue,) = (await control(replica).ListQueues(pb.ListQueuesRequest())).queues
        return bool(queue.tenant == "a" and queue.workers == 2)

    await wait_until(both_are_seen, what="workers of the fleet beside the queue they serve")


async def test_a_hold_asks_nobody_to_yield_and_a_drain_takes_its_place(world: World) -> None:
    replica = await world.replica()
    run_id = new_run()
    await world.ready(replica, run_id)
    (lease,) = await claim(replica.worker())
    held = await put(replica, QUEUE, "a")
    assert not (await beat(replica.worker(), lease)).please_yield
    drained = await put(replica, QUEUE, "a", DRAIN)
    assert drained.changed
    assert (await beat(replica.worker(), lease)).please_yield
    again = await put(replica, QUEUE, "a", DRAIN)
    assert (again.changed, again.hold.hold_id) == (False, drained.hold.hold_id)
    listed = (await control(replica).ListHolds(pb.ListHoldsRequest(released=True))).holds
    assert [(h.hold_id, h.mode, h.HasField("released_at")) for h in listed] == [
        (drained.hold.hold_id, DRAIN, False),
        (held.hold.hold_id, HOLD, True),
    ]
    assert [h.hold_id for h in (await control(replica).ListHolds(pb.ListHoldsRequest())).holds] == [drained.hold.hold_id]


@pytest.mark.requirement("sched.switch")
async def test_a_hold_outlives_its_process(world: World) -> None:
    one = await world.replica()
    run_id = new_run()
    await world.ready(one, run_id)
    await put(one, SHARD, str(shard_of(run_id)))
    await world.end(one)
    other = await world.replica()
    assert await claim(other.worker(), wait_ms=300) == []
    await release(other, SHARD, str(shard_of(run_id)))
    assert len(await claim(other.worker())) == 1


@pytest.mark.requirement("sched.switch")
async def test_a_dry_run_counts_and_stores_nothing(world: World) -> None:
    replica = await world.replica()
    await world.ready(replica, new_run())
    done = await put(replica, QUEUE, "a", dry_run=True)
    assert (done.changed, done.hold.hold_id, done.extent.queued_tickets) == (False, 0, 1)
    assert not (await control(replica).ListHolds(pb.ListHoldsRequest(released=True))).holds
    assert len(await claim(replica.worker())) == 1


@pytest.mark.requirement("sched.switch")
async def test_what_makes_no_sense_is_refused_with_a_reason(world: World) -> None:
    replica = await world.replica()
    for kind, name, more, code, words in [
        (QUEUE, "nobody", {}, "NOT_FOUND", "was seen here"),
        (WORKER, "a/nobody", {}, "NOT_FOUND", "was seen here"),
        (WORKER, "a", {}, "INVALID_ARGUMENT", "names no worker"),
        (SHARD, "64", {}, "INVALID_ARGUMENT", "names no shard"),
        (SHARD, "03", {}, "INVALID_ARGUMENT", "names no shard"),
        (QUEUE, "a/b/c", {}, "INVALID_ARGUMENT", "names no queue"),
        (SHARD, "3", {"reason": "  "}, "INVALID_ARGUMENT", "reason is empty"),
    ]:
        with pytest.raises(grpc.aio.AioRpcError, match=words) as refused:
            await put(replica, kind, name, **more)
        assert refused.value.code().name == code
    assert (await put(replica, QUEUE, "nobody", unseen=True)).changed
    with pytest.raises(grpc.aio.AioRpcError, match="is held by hold"):
        await release(replica, QUEUE, "nobody", hold_id=7_777)
    await release(replica, QUEUE, "nobody")
    with pytest.raises(grpc.aio.AioRpcError, match="bob released it before"):
        await release(replica, QUEUE, "nobody")
    with pytest.raises(grpc.aio.AioRpcError, match="is held"):
        await release(replica, SHARD, "5")
    with pytest.raises(grpc.aio.AioRpcError, match="reason is empty"):
        await release(replica, SHARD, "5", reason="")


@pytest.mark.requirement("sched.switch")
async def test_queues_are_listed_in_pages_with_their_workers(world: World) -> None:
    replica = await world.replica()
    handlers = ["x@1", "y@1", "z@1"]
    await world.deliver(replica, [event for h in handlers if (event := _ready(world, h))])
    assert await claim(replica.worker(), handlers=["other@1", "y@1"], slots=1)
    await wait_until(lambda: replica.book.workers)
    found: list[pb.Queue] = []
    token = ""
    while True:
        page = await control(replica).ListQueues(pb.ListQueuesRequest(page_size=2, page_token=token))
        found += page.queues
        token = page.next_page_token
        if not token:
            break
    assert [(q.handler, q.waiting, q.live_leases) for q in found] == [("x@1", 1, 0), ("y@1", 0, 1), ("z@1", 1, 0)]
    with pytest.raises(grpc.aio.AioRpcError, match="page_token"):
        await control(replica).ListQueues(pb.ListQueuesRequest(page_token="x"))


def _ready(world: World, handler: str) -> bytes:
    run_id = new_run()
    world.launch.gate(run_id)
    return ready_event(run_id, handler=handler)
