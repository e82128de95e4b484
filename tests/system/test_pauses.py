"""A run paused in the middle of a step, through the whole installation: it stops at a checkpoint, and goes on from there."""

import asyncio
from pathlib import Path

import pytest
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk.testing import Stack

from libs.testkit.waiting import wait_until
from tests.system.conftest import FLOWS, Counter
from tests.system.flows import hammering, walking


async def paused(stack: Stack, run_id: str) -> None:
    async def there() -> bool:
        return (await stack.client.get(run_id)).state == pb.RUN_STATE_PAUSED

    await wait_until(there, timeout_s=20, what="a paused run")


@pytest.mark.requirement("run.pause")
async def test_a_paused_run_stops_at_a_checkpoint_and_goes_on_from_it(stack: Stack, tmp_path: Path) -> None:
    end = tmp_path / "end"
    await stack.client.publish(walking)
    async with stack.worker(f"{FLOWS}:walking", worker_id="walks", slots=2):
        run = await stack.client.launch("walking", {"pages": 10, "until": str(end)})

        async def begun() -> bool:
            return bool(await stack.client.attempts(run.run_id))

        await wait_until(begun, timeout_s=20, what="an attempt")
        await stack.client.pause(run.run_id, "have a look")
        await paused(stack, run.run_id)
        assert all(attempt.HasField("ended_at") for attempt in await stack.client.attempts(run.run_id))
        await asyncio.sleep(1)  # nothing tells that nothing is leased
        assert len(await stack.client.attempts(run.run_id)) == 1
        end.touch()
        await stack.client.resume(run.run_id)
        final = await stack.client.wait(run.run_id, settled=True, timeout_s=60)
    assert final.outcome == "succeeded"
    made = [value.string_value for value in final.output.list_value.values]
    assert len(made) >= 10
    assert len(set(made)) == 2, f"pages of both attempts: {made}"
    (step,) = await stack.client.steps(run.run_id)
    assert step.attempts == 1, "returning a lease is no attempt"


@pytest.mark.requirement("run.pause")
@pytest.mark.requirement("gw.fence")
async def test_no_call_is_made_while_it_is_paused_and_each_is_made_once(stack: Stack, counter: Counter) -> None:
    await stack.client.publish(hammering)
    async with stack.worker(f"{FLOWS}:hammering", worker_id="pausing", slots=2):
        run = await stack.client.launch("hammering", {"calls": 50})
        prefix = f"/hit/{run.run_id}/"
        for round_ in range(3):
            await wait_until(lambda r=round_: counter.total(prefix) >= 4 * (r + 1), timeout_s=30, what="some calls")
            await stack.client.pause(run.run_id)
            await paused(stack, run.run_id)
            calls = counter.total(prefix)
            await asyncio.sleep(0.5)  # nothing tells that nothing is called
            assert counter.total(prefix) == calls
            await stack.client.resume(run.run_id)
        final = await stack.client.wait(run.run_id, settled=True, timeout_s=60)
    assert final.outcome == "succeeded"
    assert counter.done(prefix) == 50
