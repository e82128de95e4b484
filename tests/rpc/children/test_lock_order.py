"""No two transactions of launch wait for each other: what of a tree is locked is locked in one order, and the server undoes none.

Somebody who locks in order of ids is played by a connection of the test; where a lock is free to him while one of launch's
transactions waits for him, they cannot wait for each other.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from runway.events.v1 import events_pb2 as ev
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk.errors import RunwayError
from runway_sdk.values import to_value

from libs.testkit.waiting import wait_until
from tests.rpc.children.room import APPLIED, Room
from tests.rpc.children.trees_room import PLAIN, parent, room

__all__ = ["room"]
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


class Neighbour:
    """A transaction of somebody else."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection

    async def take(self, run_id: str) -> None:
        """A run's lock, which is free."""
        await self.connection.fetch("SELECT FROM run WHERE run_id = $1 FOR NO KEY UPDATE NOWAIT", UUID(run_id))

    async def take_tenant(self) -> None:
        """The tenant's lock, which is free."""
        await self.connection.fetch("SELECT FROM tenant WHERE tenant = 'acme' FOR NO KEY UPDATE NOWAIT")

    async def waited_for(self, room: Room) -> None:
        """Returns once somebody waits for it."""
        pid = self.connection.get_server_pid()

        async def waits() -> bool:
            return bool(await room.launch.fetch("SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))", pid))

        await wait_until(waits, what="somebody who waits for the neighbour")


def finished(run_id: str) -> ev.Event:
    output = to_value(1, "output").SerializeToString()
    return ev.Event(graph_finished=ev.GraphFinished(run_id=UUID(run_id).bytes, outcome="succeeded", output=output))


@asynccontextmanager
async def neighbour(room: Room) -> AsyncIterator[Neighbour]:
    connection = await asyncpg.connect(room.urls["launch"])
    try:
        async with connection.transaction():
            yield Neighbour(connection)
    finally:
        await connection.close()


@pytest.mark.requirement("child.join")
async def test_what_a_join_goes_on_without_is_ended_without_the_lock_of_whoever_decided_it(room: Room) -> None:
    top = await parent(room)
    first, second, third = await room.spawn(top, PLAIN, PLAIN, PLAIN, slot="s")
    await room.tell(room.join_event(top, groups=["s"], slots=["s"], need=1, rest="cancel"))
    async with neighbour(room) as other:
        await other.take(first)
        ending = asyncio.create_task(room.finish(second))
        await other.waited_for(room)
        await other.take(second)
        await other.take(third) if first > third else None
        await other.take_tenant()
    await ending
    told = await room.answer(top)
    assert (told["met"], sorted(one["outcome"] for one in told["children"])) == (True, ["cancelled", "cancelled", "succeeded"])
    await room.sums()


@pytest.mark.requirement("child.join")
async def test_the_rest_of_a_join_whose_process_died_before_it_was_ended_is_ended_later(room: Room) -> None:
    top = await parent(room)
    first, second = await room.spawn(top, PLAIN, PLAIN, slot="s")
    await room.tell(room.join_event(top, groups=["s"], slots=["s"], need=1, rest="cancel"))
    await room.launch.execute("UPDATE child_join SET state = 2, met = true")  # decided, and nobody came to end the rest
    await room.settled(first, second)
    told = await room.answer(top)
    assert (told["met"], told["cancelled"]) == (True, 2)


@pytest.mark.requirement("run.cancel")
async def test_a_batch_of_trees_is_locked_in_order_of_ids_whatever_is_above_what(room: Room) -> None:
    top = await parent(room)
    (child,) = await room.spawn(top, PLAIN)
    last = await parent(room)
    assert top < child < last
    async with neighbour(room) as other:
        await other.take(child)
        await room.launch.execute("UPDATE run SET deadline_ms = 1 WHERE run_id = ANY ($1::uuid[])", [UUID(top), UUID(last)])
        await other.waited_for(room)
        await other.take(last)
    outcomes = [run.state for run in await room.settled(top, last)]
    assert len(set(outcomes)) == 1
    await room.sums()


@asynccontextmanager
async def spawned_first(room: Room, top: str, verb: Awaitable[Any]) -> AsyncIterator[list[str]]:
    """What is asked of a run that a spawn is first to lock, though both wait by then; its children, in order."""
    await room.spawn(top, PLAIN)
    async with neighbour(room) as other:
        await other.take(top)
        spawning = asyncio.create_task(room.tell(room.spawn_event(top, [PLAIN, PLAIN])))
        await other.waited_for(room)
        asking = asyncio.ensure_future(verb)

        async def both() -> bool:
            waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            return len(await room.launch.fetch(waiting)) == 2

        await wait_until(both, what="a spawn and something else of one run")
    assert await spawning == [APPLIED]
    await asking
    children = [child.run.run_id for child in await room.client.trees.children(top)]
    assert len(children) == 3
    yield children


@pytest.mark.requirement("run.cancel")
async def test_a_child_that_is_spawned_while_its_tree_is_being_locked_is_cancelled_with_it(room: Room) -> None:
    top = await parent(room)
    async with spawned_first(room, top, room.client.cancel(top)) as children:
        await room.settled(top, *children)
    why = "SELECT detail::json->>'reason' AS why FROM run_event WHERE kind = 'run.cancelling' AND run_id <> $1"
    reasons = [row["why"] for row in await room.launch.fetch(why, UUID(top))]
    assert reasons == ["its parent ended: cancelled"] * 3, "in the commit that cancels their parent, not found later"
    await room.sums()


@pytest.mark.requirement("run.pause")
async def test_a_child_that_is_spawned_while_its_tree_is_being_locked_is_paused_with_it(room: Room) -> None:
    top = await parent(room)
    async with spawned_first(room, top, room.client.pause(top)) as children:
        states = {(await room.client.get(run_id)).state for run_id in children}
    assert states <= {pb.RUN_STATE_PAUSING, pb.RUN_STATE_PAUSED}
    await room.client.cancel(top)
    await room.settled(top, *children)


@pytest.mark.requirement("run.cancel")
async def test_what_the_server_undid_for_a_neighbour_is_done_again_and_the_caller_is_told_nothing(room: Room) -> None:
    top, last = await parent(room), await parent(room)
    before = await room.launch.fetchval(DEADLOCKS)
    async with neighbour(room) as other:
        await other.take(last)
        batch = asyncio.create_task(room.tell(*(finished(run_id) for run_id in (top, last))))
        await other.waited_for(room)
        await other.connection.fetch(
            "SELECT FROM run WHERE run_id = $1 FOR NO KEY UPDATE", UUID(top)
        )  # who waited first is undone
    assert await batch == [APPLIED, APPLIED]
    assert [run.state for run in await room.settled(top, last)] == [pb.RUN_STATE_SUCCEEDED] * 2
    assert await room.launch.fetchval(DEADLOCKS) > before


@pytest.mark.requirement("child.join")
async def test_whatever_is_asked_of_trees_at_once_the_server_undoes_nothing(room: Room) -> None:
    before = await room.launch.fetchval(DEADLOCKS)
    order = random.Random(1)
    tops = [await parent(room) for _ in range(4)]
    children: list[str] = []
    for top in tops:
        kept = await room.spawn(top, *[PLAIN] * 6, slot="s")
        children += kept
        await room.tell(room.join_event(top, groups=["s"], slots=["s"], need=2, rest="cancel"))
    everything = [*tops, *children]
    decided: list[str] = []

    async def steer(run_id: str) -> None:
        for verb in order.choices([room.client.pause, room.client.resume, room.client.cancel], [5, 5, 1], k=4):
            try:
                await verb(run_id)
            except RunwayError as no:
                decided.append(no.reason)

    finished = order.sample(children, len(children))
    await asyncio.gather(*(steer(run_id) for run_id in everything), *(room.finish(run_id) for run_id in finished))
    for top in tops:
        await room.client.cancel(top)
    await room.settled(*everything)
    assert await room.launch.fetchval(DEADLOCKS) == before
    assert set(decided) <= {"RUN_CLOSED", "RUN_PAUSED"}
    await room.sums()
