"""In which order one tenant's tickets are granted on the only slot there is, over gRPC: runs that have begun, priority, nearness
of a deadline, age; and that a step that yielded goes back to the worker that holds its checkpoint.
"""

import asyncio
from uuid import UUID

import pytest
from runway.events.v1 import events_pb2
from runway.scheduler.v1 import worker_service_pb2 as pb

from libs.testkit.waiting import wait_until
from tests.rpc.scheduler.calls import claim, complete
from tests.rpc.scheduler.harness import Replica, World, new_run, ready_event

MINUTE_MS = 60_000


async def waits(
    world: World, replica: Replica, run_id: UUID, step: str = "s", *, due_in_ms: int = 0, priority: int = 0, sequence: int = 1
) -> None:
    """A ticket; `due_in_ms`: when the run's deadline is, from now (0: it has none)."""
    if run_id.bytes not in world.launch.gates:
        world.launch.gate(run_id)
    event = events_pb2.Event.FromString(ready_event(run_id, step, priority=priority, sequence=sequence))
    event.step_ready.deadline_ms = replica.host.clock.now_ms() + due_in_ms if due_in_ms else 0
    (verdict,) = await world.deliver(replica, [event.SerializeToString()])
    assert verdict.verdict == 1


async def older(world: World, run_id: UUID, by_ms: int) -> None:
    """What waits of a run came so much earlier, as the next leader finds it."""
    await world.hand.execute("UPDATE ticket SET enqueued_ms = enqueued_ms - $2 WHERE run_id = $1 AND state = 1", run_id, by_ms)


async def granted(replica: Replica, names: dict[UUID, str]) -> list[str]:
    """The names in the order in which one worker with one slot gets the tickets, each ended before the next."""
    worker, order = replica.worker(), []
    for _ in names:
        (lease,) = await claim(worker)
        order.append(names[UUID(lease.run_id)])
        assert (await complete(worker, lease.lease_token)).recorded
    return order


@pytest.mark.requirement("sched.fair")
async def test_age_deadline_started_runs_and_priority_decide_who_gets_the_only_slot(world: World) -> None:
    one = await world.replica()
    names = {new_run(): name for name in ("plain", "urgent", "waited", "begun", "due", "old")}
    runs = {name: run_id for run_id, name in names.items()}
    await waits(world, one, runs["begun"], "first")
    (lease,) = await claim(one.worker())
    assert (await complete(one.worker(), lease.lease_token)).recorded

    # They come in the very order in which they should not be granted.
    await waits(world, one, runs["plain"])
    await waits(world, one, runs["urgent"], priority=2)
    await waits(world, one, runs["waited"])
    await waits(world, one, runs["begun"], "second")
    await waits(world, one, runs["due"], due_in_ms=30 * MINUTE_MS)
    await waits(world, one, runs["old"])
    await older(world, runs["waited"], 4 * MINUTE_MS)
    await older(world, runs["old"], 60 * MINUTE_MS)
    await world.end(one)
    other = await world.replica()
    # An hour of age is more than half an hour less to a deadline, that is more than a begun run, that is more than four minutes of age,
    # they are more than two points of priority, and these more than nothing.
    assert await granted(other, names) == ["old", "due", "begun", "waited", "urgent", "plain"]


@pytest.mark.requirement("sched.fair")
async def test_the_next_step_of_a_run_that_has_begun_comes_before_runs_that_have_not(world: World, replica: Replica) -> None:
    begun, fresh = new_run(), new_run()
    await waits(world, replica, begun, "first")
    (lease,) = await claim(replica.worker())
    assert (await complete(replica.worker(), lease.lease_token)).recorded
    await waits(world, replica, fresh)
    await waits(world, replica, begun, "second")
    assert await granted(replica, {fresh: "fresh", begun: "begun"}) == ["begun", "fresh"]


@pytest.mark.requirement("sched.fair")
@pytest.mark.parametrize("taken_over", [False, True], ids=["same-leader", "after-a-takeover"])
async def test_a_step_that_yielded_goes_back_to_the_worker_that_holds_its_checkpoint(world: World, taken_over: bool) -> None:
    leader = await world.replica()
    yields, fresh = new_run(), new_run()
    await waits(world, leader, yields)
    (lease,) = await claim(leader.worker(), worker="holds-it")
    assert (await complete(leader.worker(), lease.lease_token, yielded=pb.Yield(reason="drain"))).recorded
    await world.finished(yields)
    if taken_over:
        await world.end(leader)
        leader = await world.replica()

    # Another worker with more free slots has waited for longer: it is the one that gets what nobody had before.
    other = await waiting(leader, "other", 3)
    holder = await waiting(leader, "holds-it", 1)
    await waits(world, leader, yields, sequence=2)
    (again,) = await holder
    assert again.run_id == str(yields)
    assert again.lease_epoch > lease.lease_epoch
    assert not other.done()
    holder = await waiting(leader, "holds-it", 1)
    await waits(world, leader, fresh)
    (first,) = await other
    assert first.run_id == str(fresh)
    holder.cancel()
    await asyncio.gather(holder, return_exceptions=True)


async def waiting(replica: Replica, worker: str, slots: int) -> asyncio.Task[list[pb.Lease]]:
    """A claim that waits at the leader."""
    before = replica.book.workers.get(("a", worker))
    task = asyncio.create_task(claim(replica.worker(), worker=worker, slots=slots, wait_ms=20_000))
    await wait_until(lambda: replica.book.workers.get(("a", worker)) is not before, what="a claim that waits")
    return task
