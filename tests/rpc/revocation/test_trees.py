"""What is taken from a run is taken from all below it: over real gRPC, with a real gateway, and spawns at the same moment."""

import asyncio
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from runway.internal.fence.v1 import fence_pb2
from runway.launch.v1 import launch_service_pb2 as pb

from libs.fence.grants import allows
from libs.kernel.refusal import unreachable
from libs.testkit.waiting import wait_until
from tests.rpc.children.room import Room
from tests.rpc.children.trees_room import parent, room

__all__ = ["room"]
HTTP = "tool:http.request"
ABLE = {"workflow": "parent"}


async def able(room: Room, run_id: str) -> bool:
    """Whether launch still grants it."""
    row = await room.launch.fetchrow("SELECT capabilities FROM run WHERE run_id = $1", UUID(run_id))
    return allows(row["capabilities"], HTTP)


async def held(room: Room, run_id: str) -> bool:
    """Whether the gateway, having read the run's gate cold, does."""
    cold = fence_pb2.GetFencesRequest(service="launch", run_ids=[UUID(run_id).bytes])
    gates = (await room.host.peers.get_fences("launch", cold)).gates
    return allows(list(gates[0].capabilities), HTTP)


@pytest.mark.requirement("child.bounded")
async def test_it_reaches_every_level_but_not_those_that_outlive_their_parent(room: Room) -> None:
    top = await parent(room)
    (first,) = await room.spawn(top, ABLE)
    (second,) = await room.spawn(first, ABLE)
    (third,) = await room.spawn(second, {"workflow": "child"})
    (free,) = await room.spawn(top, ABLE, independent=True)
    (over,) = await room.spawn(top, ABLE)
    await room.finish(over)
    await room.settled(over)
    answer = await room.client.trees.revoke(top, [HTTP], "why")
    assert (answer.phase, answer.below.total, answer.below.enforced) == (pb.REVOCATION_PHASE_ENFORCED, 4, 4)
    assert [await able(room, run_id) for run_id in (top, first, second, third)] == [False] * 4
    assert await able(room, free)
    runs = [await room.client.get(run_id) for run_id in (first, second, third)]
    assert {(run.epoch & 0xFF, run.state) for run in runs} == {(2, pb.RUN_STATE_ACCEPTED)}
    (entry,) = [event for event in await room.client.events(third) if event.kind == "run.revoked"]
    assert (entry.actor, entry.detail["of"], entry.detail["reason"]) == ("key:tests", top, "why")
    for run_id in (first, second, third):
        row = await room.gateway.fetchrow("SELECT epoch, capabilities FROM run_gate WHERE run_id = $1", UUID(run_id))
        assert (row["epoch"] & 0xFF, allows(row["capabilities"], HTTP)) == (2, False)
    (later,) = await room.spawn(second, ABLE)
    assert not await able(room, later), "what it spawns afterwards has no more than it"
    only = await room.client.trees.revoke(second, ["tool:git.push"], "only from there down")
    assert only.below.total == 2
    assert not [one for one in (await room.client.get(top)).revoked if one.capability == "tool:git.push"]


@pytest.mark.requirement("child.bounded")
async def test_a_tree_is_enforced_once_the_last_point_of_the_last_child_is(room: Room) -> None:
    top = await parent(room)
    await room.spawn(top, *[ABLE | {"name": str(n)} for n in range(30)])
    room.scheduler.refuse = unreachable("scheduler")
    answer = await room.client.trees.revoke(top, [HTTP], "why", request_id="r")
    assert (answer.phase, answer.below.total, answer.below.enforced) == (pb.REVOCATION_PHASE_ACCEPTED, 30, 0)
    room.scheduler.refuse = None

    async def enforced() -> bool:
        later = await room.client.trees.revoke(top, [HTTP], "why", request_id="r")
        return later.phase == pb.REVOCATION_PHASE_ENFORCED and later.below.enforced == 30

    await wait_until(enforced, timeout_s=20, what="every run below")


@pytest.mark.requirement("child.bounded")
async def test_a_run_below_that_is_ending_counts_once_every_point_has_closed_it(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is taken from it any more, and until then it may send by what it had."""
    top = await parent(room)
    (child,) = await room.spawn(top, ABLE)
    hears = room.scheduler.raise_fences

    async def deaf(request: fence_pb2.RaiseFencesRequest) -> fence_pb2.RaiseFencesResponse:
        if any(gate.run_id == UUID(child).bytes for gate in request.gates):
            raise unreachable("scheduler")
        return await hears(request)

    monkeypatch.setattr(room.scheduler, "raise_fences", deaf)
    assert (await room.client.cancel(child)).phase == pb.CANCEL_PHASE_ACCEPTED
    answer = await room.client.trees.revoke(top, [HTTP], "why", request_id="r")
    assert (answer.phase, answer.below.total, answer.below.enforced) == (pb.REVOCATION_PHASE_ACCEPTED, 1, 0)
    assert all(receipt.enforced_epoch for receipt in answer.receipts), "of the run itself every point has"
    monkeypatch.undo()

    async def enforced() -> bool:
        later = await room.client.trees.revoke(top, [HTTP], "why", request_id="r")
        return later.phase == pb.REVOCATION_PHASE_ENFORCED and later.below.enforced == 1

    await wait_until(enforced, timeout_s=20, what="the child, which is closed everywhere")


@pytest.mark.requirement("child.bounded")
async def test_a_spawn_at_the_same_moment_leaves_nobody_with_it(room: Room) -> None:
    """Both queue for the parent's lock, held here until both wait: whichever is first, the other meets what it left."""
    for order in range(6):
        top = await parent(room)
        (middle,) = await room.spawn(top, ABLE)
        locker = await asyncpg.connect(room.urls["launch"])
        transaction = locker.transaction()
        await transaction.start()
        await locker.fetch("SELECT FROM run WHERE run_id = $1 FOR UPDATE", UUID(middle))
        spawning: list[Any] = [room.tell(room.spawn_event(middle, [ABLE, {"workflow": "child"}])) for _ in range(2)]
        work = [*spawning, room.client.trees.revoke(top, [HTTP], "why")]
        tasks = []
        for ask in work if order % 2 else work[::-1]:
            tasks.append(asyncio.create_task(ask))
            await wait_until(lambda: waiting(room), timeout_s=20, what="somebody who waits for the lock")
        await transaction.rollback()
        await locker.close()
        await asyncio.gather(*tasks)
        below = [node.run_id for node in await room.nodes(top)]
        assert len(below) >= 4
        assert not [run_id for run_id in below if await able(room, run_id) or await held(room, run_id)]


async def waiting(room: Room) -> bool:
    """Whether a session waits for a lock: the first that asked goes first, commands of one inbox share one."""
    return bool(await room.launch.fetchval("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))
