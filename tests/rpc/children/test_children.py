"""Child runs through the SDK and the public API: spawned once, inside their parent, joined by a policy, paid for once."""

import asyncio
from typing import Any

import pytest
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk import ALL, ANY, BudgetExhausted, Child, ChildrenFailed, Context, StepFailed, step, workflow

from libs.testkit.waiting import wait_until
from tests.rpc.children.conftest import CALL_MICROS, Bench

MODEL = {"messages": [{"role": "user", "content": "x" * 3000}], "max_tokens": 1000}


@step
async def double(run: int) -> int:
    return run * 2


DOUBLE = workflow("double", steps=[double])


@pytest.mark.requirement("child.join")
async def test_children_are_spawned_once_and_their_outputs_come_back(bench: Bench) -> None:
    attempts = []

    @step
    async def fan(run: int, ctx: Context) -> Any:
        attempts.append(1)
        one = await ctx.spawn("double", 100, name="first")
        many = await ctx.spawn_many([Child("double", number) for number in range(run)])
        joined = await ctx.join(one, many)
        return joined.outputs

    async with bench.worker(DOUBLE, workflow("fan", steps=[fan])):
        run = await bench.client.launch("fan", 5)
        outputs = await bench.client.result(run.run_id, timeout_s=30)
        await bench.settled(run.run_id)
    assert outputs == {"first": 200, **{str(number): number * 2 for number in range(5)}}
    assert len(attempts) >= 2, "the one that spawned and the one that was told"
    children = await bench.client.trees.children(run.run_id, outputs=True)
    names = [child.name for child in children]
    names.remove("first")  # a command of its own: either may reach launch first
    assert names == ["0", "1", "2", "3", "4"], "those of one command in its order"
    assert {child.run.parent_id for child in children} == {run.run_id}
    assert {child.run.state for child in children} == {pb.RUN_STATE_SUCCEEDED}
    assert {(child.run.depth, child.run.tenant, child.run.project) for child in children} == {(1, run.tenant, run.project)}
    await bench.balanced()


@pytest.mark.requirement("child.bounded")
@pytest.mark.requirement("gw.budget")
@pytest.mark.requirement("money.settle")
async def test_a_slice_is_taken_from_the_parent_and_what_is_left_of_it_comes_back_once(bench: Bench) -> None:
    @step(models=["small"])
    async def asks(ctx: Context) -> str:
        await ctx.model("small", MODEL)
        return "asked"

    @step(models=["small"])
    async def gives(ctx: Context) -> Any:
        joined = await ctx.join(await ctx.spawn("asks", budget_micros=40_000, name="a"))
        expected = 100_000 - CALL_MICROS

        async def back() -> bool:
            return (await bench.client.trees.tree(ctx.run_id))[0].free_micros == expected

        await wait_until(back, what="what is left of the slice")
        await ctx.model("small", MODEL)
        return joined.outputs

    async with bench.worker(workflow("asks", steps=[asks]), workflow("gives", steps=[gives])):
        run = await bench.client.launch("gives", budget_micros=100_000)
        assert await bench.client.result(run.run_id, timeout_s=30) == {"a": "asked"}
        final = await bench.settled(run.run_id)
    nodes = await bench.client.trees.tree(run.run_id)
    assert [(n.granted_micros, n.used_micros, n.delegated_micros, n.returned_micros) for n in nodes] == [
        (100_000, CALL_MICROS, 40_000, 40_000 - CALL_MICROS),
        (40_000, CALL_MICROS, 0, 0),
    ]
    assert final.used.micros == CALL_MICROS
    assert (await bench.client.trees.tenant_budget()).spent_micros == 2 * CALL_MICROS
    metered = [(event.run_id, event.tool, event.micros, event.tokens, event.part) for event in await bench.client.trees.meter()]
    assert metered == [(node.run_id, "model:small", CALL_MICROS, 2000, 1) for node in reversed(nodes)]
    assert [event.run_id for event in await bench.client.trees.meter(run.run_id)] == [run.run_id]
    await bench.balanced()


@pytest.mark.requirement("gw.budget")
async def test_what_a_child_has_its_parent_cannot_spend(bench: Bench) -> None:
    hold, seen = asyncio.Event(), []

    @step
    async def keeps(run: int) -> int:
        await hold.wait()
        return run

    @step(models=["small"])
    async def poor(ctx: Context) -> str:
        kept = await ctx.spawn("keeps", 1, budget_micros=CALL_MICROS)

        async def given() -> bool:
            return (await bench.client.trees.tree(ctx.run_id))[0].delegated_micros == CALL_MICROS

        async def back() -> bool:
            return (await bench.client.trees.tree(ctx.run_id))[0].free_micros > CALL_MICROS

        await wait_until(back if seen else given, what="the child's slice, or what is left of it")
        try:
            await ctx.model("small", MODEL)
            seen.append("spent")
        except BudgetExhausted as refused:
            seen.append(refused.detail["free_micros"])
            hold.set()
            await ctx.join(kept)
        return "done"

    async with bench.worker(workflow("keeps", steps=[keeps]), workflow("poor", steps=[poor])):
        run = await bench.client.launch("poor", budget_micros=2 * CALL_MICROS - 1)
        assert await bench.client.result(run.run_id, timeout_s=30) == "done"
        await bench.settled(run.run_id)
    assert seen == [str(CALL_MICROS - 1), "spent"]
    await bench.balanced()


@pytest.mark.requirement("child.bounded")
async def test_a_spawn_beyond_the_budget_is_refused_whole_and_its_parent_is_told(bench: Bench) -> None:
    @step(models=["small"])
    async def wants(ctx: Context) -> str:
        try:
            await ctx.join(await ctx.spawn_many([Child("double", 1, budget_micros=60), Child("double", 2, budget_micros=60)]))
        except ChildrenFailed as failed:
            told = failed.joined.refused[0]
            return f"{failed.failure_class} {told['type']} {int(told['children'])}"
        return "made"

    async with bench.worker(DOUBLE, workflow("wants", steps=[wants])):
        run = await bench.client.launch("wants", budget_micros=100)
        assert await bench.client.result(run.run_id, timeout_s=30) == "budget BUDGET_EXHAUSTED 2"
        await bench.settled(run.run_id)
    assert await bench.client.trees.children(run.run_id) == []
    await bench.balanced()


@pytest.mark.requirement("child.join")
async def test_the_first_of_any_is_enough_and_the_rest_is_cancelled(bench: Bench) -> None:
    hold = asyncio.Event()

    @step
    async def race(run: int) -> int:
        if run:
            await hold.wait()
        return run

    @step
    async def any_of(ctx: Context) -> Any:
        joined = await ctx.join(await ctx.spawn_many([Child("race", number) for number in range(4)]), policy=ANY)
        return {child.name: child.outcome for child in joined.children}

    async with bench.worker(workflow("race", steps=[race]), workflow("any-of", steps=[any_of])):
        run = await bench.client.launch("any-of")
        outcomes = await bench.client.result(run.run_id, timeout_s=30)
        await bench.settled(run.run_id)
    assert outcomes.pop("0") == "succeeded"
    assert set(outcomes.values()) <= {"cancelled", ""}
    children = await bench.client.trees.children(run.run_id)
    assert [child.run.outcome for child in children] == ["succeeded", "cancelled", "cancelled", "cancelled"]
    await bench.balanced()


@pytest.mark.requirement("child.join")
async def test_a_child_that_fails_fails_the_join_of_all(bench: Bench) -> None:
    @step
    async def picky(run: int) -> int:
        if run == 1:
            raise StepFailed("not that one", "policy")
        return run

    @step
    async def all_of(ctx: Context) -> str:
        await ctx.join(await ctx.spawn_many([Child("picky", number) for number in range(3)]), policy=ALL)
        return "never"

    async with bench.worker(workflow("picky", steps=[picky]), workflow("all-of", steps=[all_of])):
        run = await bench.client.launch("all-of")
        final = await bench.settled(run.run_id)
    assert final.state == pb.RUN_STATE_FAILED
    assert "2 of 3 children succeeded, 1 failed" in final.failure.message
    assert "not that one" in final.failure.message
    await bench.balanced()
