"""Spawns beside cancels and outages, and what trees pay: slices, raises, overruns, returns."""

import asyncio
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from runway.events.v1 import events_pb2 as ev
from runway_sdk import (
    ChildrenFailed,
    Joined,
    RequestIdReused,
    RunStopped,
    StepFailed,
    VersionConflict,
)
from runway_sdk.errors import BudgetExhausted

from libs.kernel.refusal import unreachable
from libs.testkit.waiting import wait_until
from tests.rpc.children.room import APPLIED, RETRY, Room
from tests.rpc.children.trees_room import PLAIN, bytes_of, parent, returned, room

__all__ = ["room"]


@pytest.mark.requirement("child.bounded")
async def test_a_spawn_beside_a_cancel_leaves_no_orphan(room: Room) -> None:
    for number in range(40):
        top = await parent(room)
        event = room.spawn_event(top, [PLAIN | {"budget": {"micros": 10}}] * 3)

        async def cancel(top: str = top, number: int = number) -> None:
            for _ in range(number % 5):
                await asyncio.sleep(0)
            await room.client.cancel(top)

        await asyncio.gather(room.tell(event), cancel())
        children = await room.client.trees.children(top)
        assert len(children) in (0, 3)
        ended = await room.settled(top, *(child.run.run_id for child in children))
        assert {run.outcome for run in ended} == {"cancelled"}
    await wait_until(lambda: returned(room), what="slices that came back")
    await room.sums()
    assert (await room.client.trees.tenant_budget()).reserved_micros == 0


@pytest.mark.requirement("gw.budget")
async def test_a_spawn_whose_gateway_is_away_is_told_again_and_takes_its_slice_once(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = await parent(room)
    event = room.spawn_event(top, [PLAIN | {"budget": {"micros": 400}}])
    real = type(room.host.peers).ask
    lost = []

    async def ask(self: Any, call: Any, request: Any, **more: Any) -> Any:
        answer = await real(self, call, request, **more)
        if type(request).__name__ == "TakeSlicesRequest" and not lost:
            lost.append(answer)
            raise unreachable("the gateway")
        return answer

    monkeypatch.setattr(type(room.host.peers), "ask", ask)
    assert await room.tell(event) == [RETRY]
    assert await room.client.trees.children(top) == []
    assert await room.tell(event) == [APPLIED]
    assert [node.delegated_micros for node in await room.nodes(top)] == [400, 0]
    assert (await room.nodes(top))[0].free_micros == 600
    await room.sums()


@pytest.mark.requirement("gw.budget")
@pytest.mark.requirement("cmd.conditional")
async def test_a_budget_is_raised_once_and_a_childs_out_of_its_parents(room: Room) -> None:
    top = await parent(room)
    (child,) = await room.spawn(top, {"workflow": "child", "budget": {"micros": 400}})
    assert (await room.client.trees.raise_budget(top, 500, request_id="r1")).budget.micros == 1_500
    assert (await room.client.trees.raise_budget(top, 500, request_id="r1")).budget.micros == 1_500
    with pytest.raises(RequestIdReused):
        await room.client.trees.raise_budget(top, 501, request_id="r1")
    with pytest.raises(VersionConflict):
        await room.client.trees.raise_budget(top, 1, expected_version=1)
    await wait_until(lambda: _free(room, top, 1_100), what="the gateway's envelope")
    assert (await room.client.trees.raise_budget(child, 1_000)).budget.micros == 1_400
    with pytest.raises(BudgetExhausted):
        await room.client.trees.raise_budget(child, 200)
    with pytest.raises(BudgetExhausted):
        await room.client.trees.raise_budget(top, 10**12)
    await room.sums()
    assert [(node.granted_micros, node.delegated_micros) for node in await room.nodes(top)] == [(1_500, 1_400), (1_400, 0)]
    await room.finish(child)
    await room.settled(child)
    await wait_until(lambda: _free(room, top, 1_500), what="what came back")
    with pytest.raises(RunStopped):
        await room.client.trees.raise_budget(child, 1)
    await room.sums()


async def _free(room: Room, run_id: str, micros: int) -> bool:
    return bool((await room.nodes(run_id))[0].free_micros == micros)


@pytest.mark.requirement("money.settle")
async def test_what_was_used_beyond_a_slice_is_visible_and_the_ledgers_sum(room: Room) -> None:
    top = await parent(room)
    (child,) = await room.spawn(top, {"workflow": "child", "budget": {"micros": 400}})
    await room.client.trees.tree(top)
    fact = ev.UsageSettled(run_id=bytes_of(child), sequence=1, used_micros=450, used_tokens=1)
    await room.tell(ev.Event(usage_settled=fact))
    await room.finish(child)
    await room.settled(child)
    await wait_until(lambda: _free(room, top, 550), what="what the child used counts for its parent")
    node = (await room.nodes(top))[1]
    assert (node.granted_micros, node.used_micros) == (400, 450)
    kinds = await room.launch.fetch("SELECT kind, micros FROM ledger_posting WHERE run_id = $1 ORDER BY kind", UUID(child))
    assert [(row["kind"], row["micros"]) for row in kinds] == [("delegate", 400), ("overrun", 50), ("settle", 400)]
    assert not await room.launch.fetch("SELECT FROM tenant WHERE reserved_micros < 0")
    await room.finish(top)
    await room.settled(top)
    budget = await room.client.trees.tenant_budget()
    assert (budget.reserved_micros, budget.spent_micros) == (0, 450)


def test_steps_fail_by_a_class_that_is_not_retried() -> None:
    refused = [{"slot": "s", "children": 2, "class": "budget", "type": "BUDGET_EXHAUSTED", "message": "no"}]
    assert ChildrenFailed(Joined(False, 2, 0, 0, 0, 2, [], refused)).failure_class == "budget"
    assert isinstance(ChildrenFailed(Joined(False, 2, 1, 1, 0, 0, [])), StepFailed)
    assert ChildrenFailed(Joined(False, 2, 1, 1, 0, 0, [])).failure_class == "policy"


@pytest.mark.requirement("money.settle")
async def test_a_slice_that_comes_back_twice_comes_back_once_and_an_unknown_one_counts_what_it_used(room: Room) -> None:
    top = await parent(room)
    (child,) = await room.spawn(top, {"workflow": "child", "budget": {"micros": 400}})
    assert await room.spend(child, 150)
    await room.finish(child)
    await room.settled(child)
    await wait_until(lambda: _free(room, top, 850), what="what came back")
    (row,) = await room.gateway.fetch("SELECT delegation FROM delegation")
    again = ev.Event(slice_returned=ev.SliceReturned(run_id=bytes_of(top), delegation=row["delegation"], spent_micros=150))
    lost = ev.Event(slice_returned=ev.SliceReturned(run_id=bytes_of(top), delegation=b"x" * 32, spent_micros=50))
    told = await room.tell(again, again, lost, lost, ev.Event(), service="gateway")
    assert told[:4] == [APPLIED] * 4
    assert told[4] not in (APPLIED, RETRY)
    assert (await room.nodes(top))[0].free_micros == 800
    await room.sums()


@pytest.mark.requirement("gw.budget")
async def test_raises_of_a_child_at_once_take_from_its_parent_what_they_give_it(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = await parent(room)
    (child,) = await room.spawn(top, {"workflow": "child", "budget": {"micros": 400}})
    real = type(room.host.peers).ask
    taken, second = asyncio.Event(), asyncio.Event()

    async def ask(self: Any, call: Any, request: Any, **more: Any) -> Any:
        answer = await real(self, call, request, **more)
        if type(request).__name__ == "TakeSlicesRequest" and not taken.is_set():
            taken.set()
            await second.wait()  # the first has taken its part, and stores nothing before the other is stored
        return answer

    monkeypatch.setattr(type(room.host.peers), "ask", ask)
    small = asyncio.create_task(room.client.trees.raise_budget(child, 1))
    await taken.wait()
    try:
        assert (await room.client.trees.raise_budget(child, 500)).budget.micros == 900
    finally:
        second.set()
    await asyncio.gather(small, return_exceptions=True)
    granted = sum(node.granted_micros for node in (await room.nodes(top))[1:])
    out = await room.gateway.fetchval("SELECT sum(micros) FROM delegation WHERE returned_ms = 0")
    assert out >= granted, f"the parent's envelope counts {out} as given, its child has {granted}"
    await room.sums()


@pytest.mark.requirement("gw.budget")
async def test_a_slice_that_comes_back_while_the_gate_is_made_with_it_is_counted_once(room: Room) -> None:
    top, name = UUID(await parent(room)), b"d" * 32
    other = await asyncpg.connect(room.urls["gateway"])
    try:
        async with other.transaction():
            await other.execute("INSERT INTO run_gate (run_id, granted, delegated) VALUES ($1, 1000, 400)", top)
            sql = "INSERT INTO delegation (run_id, delegation, sequence, micros, taken_ms) VALUES ($1, $2, 1, 400, 1)"
            await other.execute(sql, top, name)
            fact = ev.SliceReturned(run_id=top.bytes, delegation=name, spent_micros=0)
            back = asyncio.create_task(room.tell(ev.Event(slice_returned=fact), service="gateway"))
            await wait_until(lambda: _waits(room), what="a return that waits")
        assert await back == [APPLIED]
    finally:
        await other.close()
    assert await room.gateway.fetchval("SELECT delegated FROM run_gate WHERE run_id = $1", top) == 0
    await room.sums()


async def _waits(room: Room) -> bool:
    return bool(await room.gateway.fetch("SELECT FROM pg_locks WHERE NOT granted"))
