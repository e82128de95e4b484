"""A run that is cancelled, or expires, while a model works for it: settled in moments, not when the model answers."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from runway.gateway.v1 import gateway_service_pb2 as gw
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk import Context, step, workflow

from tests.rpc.children.conftest import Bench, bench

__all__ = ["bench"]
MODEL = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1000}
PATH = "/v1/chat/completions"


@step(models=["small"])
async def asks(ctx: Context) -> Any:
    return (await ctx.model("small", MODEL, slot="m")).value


@pytest.mark.requirement("run.abort")
@pytest.mark.requirement("run.cancel")
async def test_a_cancel_reaches_the_model_call_and_is_settled_in_moments(bench: Bench) -> None:
    bench.provider.gates[PATH] = asyncio.Event()
    async with bench.worker(workflow("asks", steps=[asks])):
        run = await bench.client.launch("asks", None, budget_micros=10_000_000)
        await asyncio.wait_for(bench.provider.arrived.wait(), 20)
        began = asyncio.get_running_loop().time()
        answer = await bench.client.cancel(run.run_id, "enough")
        # the outbox raises as well: whichever raise is first cuts the call, and the other one may find nothing under way any more
        assert {effect.slot for effect in answer.effects_in_flight} <= {"m"}
        done = await bench.settled(run.run_id)
        took_s = asyncio.get_running_loop().time() - began
        assert done.state == pb.RUN_STATE_CANCELLED
        assert took_s < 20, f"{took_s:.1f} s, and the model never answers"
        (effect,) = await bench.client.effects(run.run_id)
        assert (effect.state, effect.failure.type) == (gw.EFFECT_STATE_FAILED, "ABORTED")
        assert done.used.micros == effect.cost_micros > 0
    await bench.balanced()


@pytest.mark.requirement("run.abort")
@pytest.mark.requirement("run.expire")
async def test_a_deadline_cuts_it_as_well(bench: Bench) -> None:
    bench.provider.gates[PATH] = asyncio.Event()
    async with bench.worker(workflow("asks", steps=[asks])):
        run = await bench.client.launch("asks", None, budget_micros=10_000_000, deadline=timedelta(hours=1))
        await asyncio.wait_for(bench.provider.arrived.wait(), 20)
        await bench.db["launch"].execute("UPDATE run SET deadline_ms = 1")  # it passes once the call is under way
        done = await bench.settled(run.run_id)
        assert done.state == pb.RUN_STATE_EXPIRED
        (effect,) = await bench.client.effects(run.run_id)
        assert effect.failure.type == "ABORTED"
