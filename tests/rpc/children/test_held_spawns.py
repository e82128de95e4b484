"""Spawns that wait for money: once a command, in the order of asking, until the budget is raised or a slice comes back; a parent
that ends leaves none of them, and no slice."""

import asyncio
from typing import Any

import pytest
from runway_sdk import Context, step, workflow

from libs.testkit.waiting import wait_until
from services.launch.app import spawn_children
from services.launch.domain import spawning
from tests.rpc.children.conftest import Bench
from tests.rpc.children.room import APPLIED, Room
from tests.rpc.children.trees_room import parent, returned, room

__all__ = ["room"]


def takes(micros: int, name: str = "c") -> dict[str, Any]:
    return {"workflow": "plain", "name": name, "budget": {"micros": micros}}


async def names(room: Room, run_id: str) -> list[str]:
    return [child.name for child in await room.client.trees.children(run_id)]


async def held(room: Room) -> list[str]:
    return [row["slot"] for row in await room.launch.fetch("SELECT slot FROM held_spawn ORDER BY number")]


async def made(room: Room, run_id: str, *wanted: str) -> None:
    async def there() -> bool:
        return sorted(await names(room, run_id)) == sorted(wanted)

    await wait_until(there, timeout_s=20, what=f"children {wanted}")


@pytest.mark.requirement("gw.budget")
@pytest.mark.requirement("child.bounded")
async def test_a_spawn_that_lacks_money_waits_once_and_is_made_when_the_budget_is_raised(room: Room) -> None:
    run = await parent(room, budget_micros=50)
    event = room.spawn_event(run, [takes(80)], slot="s", wait_for_budget=True)
    told = await asyncio.gather(*(room.tell(event, event) for _ in range(6)))
    assert told == [[APPLIED, APPLIED]] * 6
    assert await room.tell(event) == [APPLIED]
    assert (await names(room, run), await held(room), await room.refusals(run)) == ([], ["s"], [])
    events = [e for e in await room.client.events(run) if e.kind == "run.spawn_held"]
    assert [(e.detail["slot"], e.detail["micros"], e.detail["children"]) for e in events] == [("s", 80, 1)]
    assert await room.tell(room.join_event(run, groups=["s"], slots=["s"])) == [APPLIED]
    assert room.answers(run) == []
    await room.client.trees.raise_budget(run, 10)
    await room.client.trees.raise_budget(run, 20)
    await made(room, run, "c")
    assert await held(room) == []
    assert await room.tell(event) == [APPLIED]
    (child,) = await room.client.trees.children(run)
    await room.finish(child.run.run_id)
    assert (await room.answer(run))["succeeded"] == 1
    await room.sums()
    await room.client.cancel(run)
    await room.settled(run)
    await wait_until(lambda: returned(room), what="slices that came back")


@pytest.mark.requirement("gw.budget")
async def test_who_asked_first_is_given_first_and_who_does_not_wait_is_told_at_once(room: Room) -> None:
    run = await parent(room, budget_micros=50)
    await room.tell(room.spawn_event(run, [takes(80, "large")], slot="large", wait_for_budget=True))
    await room.tell(room.spawn_event(run, [takes(30, "small")], slot="small", wait_for_budget=True))
    await room.tell(room.spawn_event(run, [takes(60, "now")], slot="now"))
    await room.tell(room.spawn_event(run, [{"workflow": "plain", "name": "free"}], slot="free", wait_for_budget=True))
    assert (await held(room), await room.refusals(run)) == (["large", "small"], ["BUDGET_EXHAUSTED"])
    assert await names(room, run) == ["free"], "what takes nothing waits for nobody"
    await room.client.trees.raise_budget(run, 30)
    await made(room, run, "free", "large")
    assert await held(room) == ["small"]
    (large,) = [child for child in await room.client.trees.children(run) if child.name == "large"]
    await room.finish(large.run.run_id)
    await made(room, run, "free", "large", "small")
    await room.sums()


@pytest.mark.requirement("gw.budget")
async def test_one_raise_that_is_enough_for_all_lets_all_go_on(room: Room) -> None:
    run = await parent(room, budget_micros=50)
    for number in range(3):
        await room.tell(room.spawn_event(run, [takes(60, f"n{number}")], slot=f"s{number}", wait_for_budget=True))
    assert await held(room) == ["s0", "s1", "s2"]
    await room.client.trees.raise_budget(run, 200)
    await made(room, run, "n0", "n1", "n2")
    await room.sums()


@pytest.mark.requirement("gw.budget")
async def test_what_comes_back_at_the_gateway_unheard_lets_a_spawn_go_on(room: Room) -> None:
    run = await parent(room, budget_micros=50)
    assert await room.spend(run, 30)
    await room.tell(room.spawn_event(run, [takes(40)], slot="s", wait_for_budget=True))
    assert await held(room) == ["s"]
    await room.gateway.execute("UPDATE run_gate SET used = used - 30 WHERE used = 30")
    await made(room, run, "c")


@pytest.mark.requirement("child.bounded")
@pytest.mark.requirement("child.join")
@pytest.mark.parametrize("how", ["cancel", "finish"])
async def test_a_parent_that_ends_refuses_what_waits_and_keeps_no_slice(room: Room, how: str) -> None:
    run = await parent(room, budget_micros=50)
    await room.tell(room.spawn_event(run, [takes(80), takes(5, "d")], slot="s", wait_for_budget=True))
    await room.tell(room.spawn_event(run, [takes(90)], slot="t", wait_for_budget=True))
    assert await held(room) == ["s", "t"]
    await (room.client.cancel(run) if how == "cancel" else room.finish(run))
    await room.settled(run)

    async def gone() -> bool:
        return not await held(room)

    await wait_until(gone, timeout_s=20, what="spawns that wait no longer")
    assert await room.refusals(run) == ["PARENT_CLOSED", "PARENT_CLOSED"]
    assert await names(room, run) == []
    await wait_until(lambda: returned(room), what="slices that came back")
    assert (await room.client.trees.tenant_budget()).reserved_micros == 0
    await room.sums()


@pytest.mark.requirement("child.bounded")
async def test_a_raise_beside_a_cancel_leaves_a_child_that_ends_or_none(room: Room) -> None:
    for number in range(4):
        run = await parent(room, budget_micros=50)
        await room.tell(room.spawn_event(run, [takes(80)], slot=f"s{number}", wait_for_budget=True))
        await asyncio.gather(room.client.trees.raise_budget(run, 100), room.client.cancel(run), return_exceptions=True)
        await room.settled(run)
        for child in await room.client.trees.children(run):
            assert (await room.settled(child.run.run_id))[0].outcome == "cancelled"

    async def gone() -> bool:
        return not await held(room)

    await wait_until(gone, timeout_s=20, what="spawns that wait no longer")
    await wait_until(lambda: returned(room), what="slices that came back")
    budget = await room.client.trees.tenant_budget()
    assert (budget.reserved_micros, budget.active_descendants) == (0, 0)
    await room.sums()


@pytest.mark.requirement("child.bounded")
async def test_only_so_many_wait_of_a_run(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawning, "MOST_HELD", 2)
    run = await parent(room, budget_micros=50)
    asked = [room.spawn_event(run, [takes(80)], slot=f"s{number}", wait_for_budget=True) for number in range(4)]
    await room.tell(*asked)
    assert (await held(room), await room.refusals(run)) == (["s0", "s1"], ["BUDGET_EXHAUSTED"] * 2)
    unread = room.spawn_event(run, [takes(1)], slot="odd", wait_for_budget="yes")
    await room.tell(unread)
    assert (await room.refusals(run))[-1] == "SPAWN_UNREADABLE"


@step
async def kid(run: int) -> int:
    return run


@step
async def spawner(ctx: Context) -> int:
    many = await ctx.spawn("kid", 7, budget_micros=80, wait_for_budget=True)
    return int((await ctx.join(many)).outputs["0"])


@pytest.mark.requirement("gw.budget")
@pytest.mark.requirement("run.explain")
async def test_a_step_that_joins_such_a_spawn_waits_for_budget_and_says_what_would_help(bench: Bench) -> None:
    async with bench.worker(workflow("kid", steps=[kid]), workflow("spawner", steps=[spawner])):
        run = await bench.client.launch("spawner", budget_micros=50)
        waiting = await bench.waiting(run.run_id, "budget")
        assert list(waiting.wait_reasons) == ["budget", "child_tasks"]
        first = (await bench.client.explain(run.run_id)).steps[0].blockers[0]
        assert (first.code, first.detail["reason"], first.detail["asked_micros"]) == ("WAITS_FOR", "budget", "80")
        assert "of which 50 are free" in first.message
        assert f"runway budget raise {run.run_id}" in first.remedy
        await bench.client.trees.raise_budget(run.run_id, 30)
        assert await bench.client.result(run.run_id, timeout_s=30) == 7
        await bench.settled(run.run_id)
    await bench.balanced()


@pytest.mark.requirement("child.bounded")
async def test_what_lacked_money_before_its_parent_ended_is_refused_for_that_end(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await parent(room, budget_micros=50)
    queue = spawn_children._queue

    async def ended(ports: Any, prepared: Any) -> Any:
        await room.client.cancel(run)
        return await queue(ports, prepared)

    monkeypatch.setattr(spawn_children, "_queue", ended)
    await room.tell(room.spawn_event(run, [takes(80)], slot="s", wait_for_budget=True))
    assert (await held(room), await room.refusals(run)) == ([], ["PARENT_CLOSED"])
