"""An attempt whose run is narrowed under its feet: a whole installation, a worker, a model on the loopback."""

import asyncio
from typing import Any

import pytest
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk import Child, Context, step, workflow
from runway_sdk.errors import RunwayError

from tests.rpc.children.conftest import Bench, bench

__all__ = ["bench"]
MODEL = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}
OTHER = {"messages": [{"role": "user", "content": "once more"}], "max_tokens": 10}


@pytest.mark.requirement("child.bounded")
async def test_the_next_call_of_an_attempt_is_refused_and_its_other_work_goes_on(bench: Bench) -> None:
    called, taken = asyncio.Event(), asyncio.Event()

    @step(models=["small"], tools=["http.request"])
    async def asks(ctx: Context) -> Any:
        await ctx.model("small", MODEL, slot="first")
        called.set()
        await taken.wait()
        again = await ctx.model("small", MODEL, slot="first")
        try:
            await ctx.model("small", OTHER, slot="second")
        except RunwayError as no:
            return {"reason": no.reason, "by": no.detail["revoked_by"], "what": no.detail["revoked"], "again": again.replayed}
        return "nothing was refused"

    async with bench.worker(workflow("asks", steps=[asks])):
        run = await bench.client.launch("asks", None, budget_micros=10_000_000)
        await asyncio.wait_for(called.wait(), 20)
        answer = await bench.client.trees.revoke(run.run_id, ["model:small"], "it costs too much")
        assert answer.phase == pb.REVOCATION_PHASE_ENFORCED
        taken.set()
        output = await bench.client.result(run.run_id, timeout_s=20)
        done = await bench.settled(run.run_id)
    assert output == {"reason": "CAPABILITY_DENIED", "by": "key:tests", "what": "model:small", "again": True}
    assert len(bench.provider.requests) == 1
    assert len(await bench.client.attempts(run.run_id)) == 1, "its lease was never in question"
    assert done.state == pb.RUN_STATE_SUCCEEDED
    await bench.balanced()


@pytest.mark.requirement("child.bounded")
async def test_a_child_fails_by_what_was_taken_from_its_parent_and_says_so(bench: Bench) -> None:
    begun, taken = asyncio.Event(), asyncio.Event()

    @step(models=["small"])
    async def below(ctx: Context) -> Any:
        begun.set()
        await taken.wait()
        return (await ctx.model("small", MODEL)).value

    @step(models=["small"])
    async def above(ctx: Context) -> Any:
        joined = await ctx.join(await ctx.spawn_many([Child("below", None, budget_micros=1_000_000)]), need=0)
        return len(joined.outputs)

    async with bench.worker(workflow("below", steps=[below]), workflow("above", steps=[above])):
        run = await bench.client.launch("above", None, budget_micros=10_000_000)
        await asyncio.wait_for(begun.wait(), 20)
        answer = await bench.client.trees.revoke(run.run_id, ["model:small"], "why")
        assert (answer.below.total, answer.below.enforced) == (1, 1)
        taken.set()
        (child,) = await bench.client.trees.children(run.run_id)
        failed = await bench.settled(child.run.run_id)
    assert (failed.outcome, failed.failure.type) == ("failed", "CAPABILITY_DENIED")
    assert [why.code for why in (await bench.client.explain(failed.run_id)).blockers] == ["RUN_ENDED", "REVOKED"]
    assert bench.provider.requests == []
