"""Scopes that launch stopped, at the scheduler: tickets wait beside the others, live attempts are asked to yield or ended, and come again."""

from uuid import UUID

import pytest
from runway.events.v1 import events_pb2
from runway.internal.fence.v1 import fence_pb2
from runway.scheduler.v1 import worker_service_pb2 as pb

from libs.testkit.waiting import wait_until
from tests.rpc.scheduler.calls import beat, claim, complete
from tests.rpc.scheduler.harness import EPOCH, Replica, World
from tests.rpc.scheduler.test_shares import many

DRAINING, CLOSED, OPEN = 1, 2, 0


async def switch(replica: Replica, kind: str, name: str, mode: int, number: int = 1) -> None:
    """Launch raises a scope here; returns once this process acts on it."""
    fence = fence_pb2.ScopeFence(kind=kind, scope_id=name, epoch=EPOCH + number, mode=fence_pb2.Mode.ValueType(mode))
    request = fence_pb2.RaiseFencesRequest(service="scheduler", scopes=[fence])
    answer = await replica.host.peers.raise_fences("scheduler", request)
    assert answer.scopes[0].committed
    stopped = replica.book.shelf

    def acts() -> bool:
        return stopped.holds.stopped.get((kind, name), OPEN) == mode

    await wait_until(acts, 5.0, what="the scope in memory")


@pytest.mark.requirement("sched.switch")
@pytest.mark.parametrize(("kind", "name"), [("tenant", "a"), ("project", "a/p"), ("tool", "t"), ("tool", "model:m")])
async def test_tickets_of_a_stopped_scope_wait_on_the_shelf_and_others_are_granted(
    world: World, replica: Replica, kind: str, name: str
) -> None:
    await switch(replica, kind, name, DRAINING)
    held = await many(world, replica, 3, tools=["t"], models=["m"])
    free = await many(world, replica, 2, project="q", tools=["u"]) if kind != "tenant" else []
    await wait_until(lambda: len(replica.book.shelf.tickets) == 3, 5.0, what="tickets on the shelf")
    worker = replica.worker()
    leases = await claim(worker, slots=5) if free else []
    assert {lease.run_id for lease in leases} == {str(run) for run in free}
    await switch(replica, kind, name, OPEN, 2)
    leases = await claim(worker, slots=5)
    assert {lease.run_id for lease in leases} == {str(run) for run in held}


@pytest.mark.requirement("sched.switch")
async def test_what_lives_of_a_drained_scope_is_asked_to_yield_and_may_succeed(world: World, replica: Replica) -> None:
    await many(world, replica, 1)
    worker = replica.worker()
    (lease,) = await claim(worker)
    assert not (await beat(worker, lease)).please_yield
    await switch(replica, "project", "a/p", DRAINING)
    told = await beat(worker, lease)
    assert (told.status, told.please_yield) == (pb.LEASE_STATUS_LIVE, True)
    assert (await complete(worker, lease.lease_token)).recorded


@pytest.mark.requirement("sched.switch")
async def test_what_lives_of_a_killed_tenant_is_ended_as_if_it_had_yielded(world: World, replica: Replica) -> None:
    (run_id,) = await many(world, replica, 1)
    worker = replica.worker()
    (lease,) = await claim(worker)
    await beat(worker, lease)
    await switch(replica, "tenant", "a", CLOSED)
    (told,) = await world.finished(run_id)
    assert (told.end, told.lease_epoch, told.failure.type) == (events_pb2.ATTEMPT_END_YIELDED, 1, "SCOPE_STOPPED")
    assert (await beat(worker, lease)).status == pb.LEASE_STATUS_FENCED
    assert not (await complete(worker, lease.lease_token)).recorded
    await world.ready(replica, UUID(lease.run_id), sequence=2)
    await switch(replica, "tenant", "a", OPEN, 2)
    (again,) = await claim(worker)
    assert (again.run_id, again.lease_epoch) == (lease.run_id, 3)


@pytest.mark.requirement("sched.switch")
async def test_a_killed_tool_ends_no_attempt(world: World, replica: Replica) -> None:
    """It may have other things to do; its calls are refused at the gateway."""
    await many(world, replica, 1, tools=["t"])
    worker = replica.worker()
    (lease,) = await claim(worker)
    await switch(replica, "tool", "t", CLOSED)
    told = await beat(worker, lease)
    assert (told.status, told.please_yield) == (pb.LEASE_STATUS_LIVE, True)
    assert (await complete(worker, lease.lease_token)).recorded


@pytest.mark.requirement("sched.switch")
async def test_a_point_tells_a_promoted_launch_also_what_was_opened_again(replica: Replica) -> None:
    await switch(replica, "tool", "t", CLOSED)
    await switch(replica, "tool", "u", CLOSED)
    await switch(replica, "tool", "t", OPEN, 2)
    request = fence_pb2.GetFencesRequest(service="scheduler")
    held = (await replica.host.peers.get_fences("scheduler", request)).scopes
    assert {(s.scope_id, s.epoch - EPOCH, int(s.mode)) for s in held} == {("t", 2, OPEN), ("u", 1, CLOSED)}
