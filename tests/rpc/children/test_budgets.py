"""A run at its cap waits and goes on when its budget is raised; the account of it by the command line and by explain."""

import asyncio
import json
from typing import Any

import pytest
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk import Context, step, workflow
from typer.testing import CliRunner

from libs.cli.main import app
from libs.testkit.waiting import wait_until
from tests.rpc.children.conftest import CALL_MICROS, Bench

MODEL = {"messages": [{"role": "user", "content": "x" * 3000}], "max_tokens": 1000}


@step(models=["small"])
async def calls(run: int, ctx: Context) -> int:
    for number in range(run):
        await ctx.model("small", MODEL, slot=f"m{number}", wait_for_budget=True)
    return run


CALLS = workflow("calls", steps=[calls])


@pytest.mark.requirement("gw.budget")
@pytest.mark.requirement("step.wait")
async def test_at_the_cap_a_step_waits_and_goes_on_when_the_budget_is_raised(bench: Bench) -> None:
    async with bench.worker(CALLS):
        run = await bench.client.launch("calls", 3, budget_micros=2 * CALL_MICROS + 1_000)
        waiting = await bench.waiting(run.run_id, "budget")
        explained = await bench.client.explain(run.run_id)
        blocker = explained.steps[0].blockers[0]
        assert (blocker.code, blocker.detail["reason"]) == ("WAITS_FOR", "budget")
        assert "runway budget raise" in blocker.remedy
        assert waiting.state == pb.RUN_STATE_WAITING
        attempts = len(await bench.client.attempts(run.run_id))  # before the raise: the next may begin while it answers
        await bench.client.trees.raise_budget(run.run_id, 100)
        await wait_until(lambda: _more(bench, run.run_id, attempts), what="another attempt, which is too poor still")
        await bench.waiting(run.run_id, "budget")
        await bench.client.trees.raise_budget(run.run_id, 2 * CALL_MICROS)
        assert await bench.client.result(run.run_id, timeout_s=30) == 3
        final = await bench.settled(run.run_id)
    assert final.used.micros == 3 * CALL_MICROS
    assert len(bench.provider.asked("/v1/chat/completions")) == 3
    await bench.balanced()


async def _more(bench: Bench, run_id: str, attempts: int) -> bool:
    return len(await bench.client.attempts(run_id)) > attempts


@pytest.mark.requirement("gw.budget")
async def test_a_raise_that_comes_before_the_wait_is_not_missed(bench: Bench) -> None:
    raised: list[Any] = []

    @step(models=["small"])
    async def late(ctx: Context) -> str:
        if not raised:
            raised.append(await bench.client.trees.raise_budget(ctx.run_id, 50_000))
            sequence = str(2**48 + 1)  # of the envelope before it
            await ctx._waits.wait("budget", "early", {"sequence": sequence})
        await ctx._waits.wait("budget", "early", {"sequence": ""})
        return "on"

    async with bench.worker(workflow("late", steps=[late])):
        run = await bench.client.launch("late", budget_micros=10)
        assert await bench.client.result(run.run_id, timeout_s=30) == "on"


@pytest.mark.requirement("gw.budget")
async def test_the_command_line_shows_and_raises_budgets(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNWAY_ADDRESS", bench.target.address)
    monkeypatch.setenv("RUNWAY_API_KEY", bench.target.api_key)
    monkeypatch.setenv("RUNWAY_CONTROL_ADDRESS", bench.target.control_address)

    @step
    async def one(run: int) -> int:
        return run

    @step
    async def spawns(ctx: Context) -> int:
        joined = await ctx.join(await ctx.spawn("one", 1, name="kid", budget_micros=40))
        return joined.succeeded

    async def said(*words: str) -> Any:
        done = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--output", "json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.output)

    async with bench.worker(workflow("one", steps=[one]), workflow("spawns", steps=[spawns])):
        run = await bench.client.launch("spawns", budget_micros=100)
        await bench.settled(run.run_id)
    (kid,) = await said("run", "children", run.run_id)
    assert (kid["name"], kid["outcome"], kid["workflow"]) == ("kid", "succeeded", "one")
    nodes = await said("budget", "show", run.run_id)
    assert [(node["granted_micros"], node["delegated_micros"], node["returned_micros"]) for node in nodes] == [
        (100, 40, 40),
        (40, 0, 0),
    ]
    assert [node["run"].strip() for node in await said("run", "tree", run.run_id)] == [run.run_id, kid["run_id"]]
    assert (await said("budget", "show"))["reserved_micros"] == 0
    held = await bench.client.launch("spawns", budget_micros=100)
    assert (await said("budget", "raise", held.run_id, "50", "--reason", "more"))["budget_micros"] == 150
