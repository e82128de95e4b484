"""Joins of children that report failures as warnings: once, in the run's log, with what failed and why."""

from typing import Any

import pytest
from runway_sdk import BEST_EFFORT, COLLECT_PARTIAL, Context, step, workflow

from tests.rpc.children.conftest import Bench
from tests.rpc.children.room import APPLIED, Room
from tests.rpc.children.trees_room import PLAIN, parent, room

__all__ = ["room"]


async def warnings(client: Any, run_id: str) -> list[Any]:
    return [event for event in await client.events(run_id) if event.kind == "step.join_warning"]


@pytest.mark.requirement("child.join")
async def test_children_that_a_join_goes_on_without_are_told_once_with_type_and_reason(room: Room) -> None:
    run = await parent(room, budget_micros=50)
    good, bad, gone = await room.spawn(run, *({**PLAIN, "name": name} for name in ("good", "bad", "gone")), group="g", slot="s")
    poor = {**PLAIN, "name": "poor", "budget": {"micros": 90}}
    assert await room.tell(room.spawn_event(run, [poor], slot="p", group="g")) == [APPLIED]
    join = {"groups": ["g"], "slots": ["s", "p"], "on_failure": "ignore"}
    await room.tell(room.join_event(run, "loud", warns=True, **join), room.join_event(run, "quiet", **join))
    await room.finish(good)
    await room.finish(bad, "failed")
    assert await warnings(room.client, run) == [], "it is not decided yet"
    await room.client.cancel(gone)
    await room.settled(gone)
    assert (await room.answer(run, "loud"))["failed"] == (await room.answer(run, "quiet"))["failed"] == 1
    (told,) = await warnings(room.client, run)
    assert (told.step_key, told.detail["join"], told.detail["failures"]) == ("act", "loud", 3)
    failed = {one["child"] if "child" in one else one["spawn"]: (one["type"], one["message"]) for one in told.detail["failed"]}
    assert failed["bad"] == ("Broken", "it broke")
    assert failed["gone"] == ("", "it was cancelled")
    assert failed["p"][0] == "BUDGET_EXHAUSTED"
    await room.tell(room.join_event(run, "loud", warns=True, **join))
    await room.tell(room.join_event(run, "odd", warns="yes", **join))
    assert len(await warnings(room.client, run)) == 1


@step
async def flaky(run: int) -> int:
    if run < 0:
        raise ValueError(f"{run} is below zero")
    return run


@step
async def gathers(run: str, ctx: Context) -> int:
    many = [await ctx.spawn("flaky", number, name=f"n{number}") for number in (-1, 1)]
    policy = BEST_EFFORT if run == "best_effort" else COLLECT_PARTIAL
    return (await ctx.join(*many, policy=policy)).failed


@pytest.mark.requirement("child.join")
async def test_best_effort_warns_and_collect_partial_does_not(bench: Bench) -> None:
    async with bench.worker(workflow("flaky", steps=[flaky]), workflow("gathers", steps=[gathers])):
        for name, many in (("best_effort", 1), ("collect_partial", 0)):
            run = await bench.client.launch("gathers", name)
            assert await bench.client.result(run.run_id, timeout_s=30) == 1
            found = await warnings(bench.client, run.run_id)
            assert len(found) == many
            assert all("-1 is below zero" in event.detail["failed"][0]["message"] for event in found)
