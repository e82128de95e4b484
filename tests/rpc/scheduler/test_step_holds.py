"""Holds and drains of one step of one run, through the control port of real schedulers; the rest of the run goes on."""

import asyncio
from uuid import uuid4

import grpc
import pytest
from runway.internal.scheduler.v1 import scheduler_internal_pb2 as internal_pb
from runway.internal.scheduler.v1 import scheduler_internal_pb2_grpc
from runway.scheduler.v1 import control_service_pb2 as pb

from libs.rpc.channels import open_channel
from libs.testkit.waiting import wait_until
from tests.rpc.scheduler.calls import beat, claim, complete
from tests.rpc.scheduler.harness import SECRET, World, new_run
from tests.rpc.scheduler.test_holds import DRAIN, control, put, release, run_led_by, two

STEP = pb.HOLD_KIND_STEP
pytestmark = [pytest.mark.requirement("run.pause"), pytest.mark.requirement("sched.switch")]


async def test_a_held_step_is_granted_in_no_process_and_its_run_goes_on(world: World) -> None:
    one, other = await two(world)
    run_id = run_led_by(other)
    name = f"{run_id}/s"
    await world.ready(one, run_id)
    done = await put(one, STEP, name)
    assert (done.changed, done.extent.queued_tickets, done.extent.live_leases, done.extent.workers) == (True, 1, 0, 0)
    assert [replica.acted for replica in done.replicas] == [True, True]
    assert not (await put(other, STEP, name)).changed, "a repeat changes nothing"
    (queue,) = (await control(other).ListQueues(pb.ListQueuesRequest())).queues
    assert ([hold.name for hold in queue.step_holds], list(queue.holds)) == ([name], []), "the queue as a whole goes on"
    await world.ready(one, run_id, "t")
    (lease,) = await claim(other.worker(), slots=4)
    assert (lease.run_id, lease.step_key) == (str(run_id), "t")
    waiting = asyncio.create_task(claim(other.worker(), slots=4, wait_ms=10_000))
    await wait_until(lambda: other.book.workers)
    assert await claim(one.worker(), slots=4, wait_ms=300) == []

    async with open_channel(other.host.addresses.control, secret=SECRET) as channel:
        stub = scheduler_internal_pb2_grpc.SchedulerInternalServiceStub(channel)
        (said,) = (await stub.ExplainTickets(internal_pb.ExplainTicketsRequest(run_id=run_id.bytes, step_keys=["s"]))).tickets
    (blocker,) = [one for one in said.blockers if one.code == "HOLD"]
    assert (blocker.detail["kind"], blocker.detail["name"]) == ("step", name)
    assert f"runway queue release {name} --step" in blocker.remedy

    assert not waiting.done()
    freed = await release(other, STEP, name)
    assert (freed.hold.released_by, freed.extent.queued_tickets) == ("bob", 1)
    assert all(replica.acted for replica in freed.replicas)
    assert [(found.run_id, found.step_key) for found in await waiting] == [(str(run_id), "s")]
    (queue,) = (await control(other).ListQueues(pb.ListQueuesRequest())).queues
    assert list(queue.step_holds) == []


async def test_a_ticket_that_comes_later_is_not_granted_as_it_is_stored(world: World) -> None:
    replica = await world.replica()
    run_id = new_run()
    await put(replica, STEP, f"{run_id}/s", unseen=True)
    waiting = asyncio.create_task(claim(replica.worker(), slots=4, wait_ms=10_000))
    await wait_until(lambda: replica.book.workers)
    await world.ready(replica, run_id)
    await world.ready(replica, new_run())
    (lease,) = await waiting
    assert lease.run_id != str(run_id)
    assert list(replica.book.shelf.tickets) == [(run_id, "s")]


async def test_a_step_is_held_with_its_instances_and_an_instance_alone(world: World) -> None:
    replica = await world.replica()
    run_id = new_run()
    for key in ("s[0]", "s[1]", "st"):
        await world.ready(replica, run_id, key)
    whole = await put(replica, STEP, f"{run_id}/s")
    assert whole.extent.queued_tickets == 2, "its instances, and no step whose key begins alike"
    assert [lease.step_key for lease in await claim(replica.worker(), slots=4)] == ["st"]
    assert (await put(replica, STEP, f"{run_id}/s[0]")).extent.queued_tickets == 1
    await release(replica, STEP, f"{run_id}/s")
    assert [lease.step_key for lease in await claim(replica.worker(), slots=4)] == ["s[1]"]
    await release(replica, STEP, f"{run_id}/s[0]")
    assert [lease.step_key for lease in await claim(replica.worker(), slots=4)] == ["s[0]"]


async def test_a_drain_asks_the_steps_attempt_to_yield_and_kills_nobody(world: World) -> None:
    replica = await world.replica()
    run_id = new_run()
    for key in ("s[0]", "t"):
        await world.ready(replica, run_id, key)
    leases = {lease.step_key: lease for lease in await claim(replica.worker(), slots=4)}
    held = await put(replica, STEP, f"{run_id}/s")
    assert not (await beat(replica.worker(), leases["s[0]"])).please_yield, "a hold leaves it alone"
    drained = await put(replica, STEP, f"{run_id}/s", DRAIN)
    assert (drained.changed, drained.extent.live_leases, drained.hold.hold_id > held.hold.hold_id) == (True, 1, True)
    answer = await beat(replica.worker(), leases["s[0]"])
    assert (answer.please_yield, answer.status) == (True, 1)
    assert not (await beat(replica.worker(), leases["t"])).please_yield
    assert (await complete(replica.worker(), leases["s[0]"].lease_token)).recorded


async def test_a_dry_run_stores_nothing_and_what_is_no_step_is_refused(world: World) -> None:
    replica = await world.replica()
    run_id = new_run()
    await world.ready(replica, run_id)
    done = await put(replica, STEP, f"{run_id}/s", dry_run=True)
    assert (done.changed, done.hold.hold_id, done.extent.queued_tickets) == (False, 0, 1)
    for name, code, words in [
        (f"{run_id}/other", "NOT_FOUND", "was seen here"),
        (f"{uuid4()}/s", "NOT_FOUND", "was seen here"),
        (f"{run_id}", "INVALID_ARGUMENT", "names no step"),
        (f"{run_id}/", "INVALID_ARGUMENT", "names no step"),
        (f"{str(run_id).upper()}/s", "INVALID_ARGUMENT", "names no step"),
        (f"{run_id.hex}/s", "INVALID_ARGUMENT", "names no step"),
        ("s", "INVALID_ARGUMENT", "names no step"),
        (f"{run_id}/{'s' * 201}", "INVALID_ARGUMENT", "names no step"),
    ]:
        with pytest.raises(grpc.aio.AioRpcError, match=words) as refused:
            await put(replica, STEP, name)
        assert refused.value.code().name == code
    assert not (await control(replica).ListHolds(pb.ListHoldsRequest(released=True))).holds
    assert len(await claim(replica.worker())) == 1
    assert (await put(replica, STEP, f"{run_id}/s")).extent.live_leases == 1, "what runs is seen too"
    (listed,) = (await control(replica).ListHolds(pb.ListHoldsRequest(kind=STEP))).holds
    assert listed.name == f"{run_id}/s"


async def test_a_step_that_is_held_as_a_queue_is_told_apart(world: World) -> None:
    one = await world.replica()
    run_id = run_led_by(one)
    await world.ready(one, run_id)
    with pytest.raises(grpc.aio.AioRpcError) as no:
        await put(one, pb.HOLD_KIND_QUEUE, f"{run_id}/s")
    assert "reads like a step of a run" in str(no.value.details())
