"""Cancel against the whole installation: nothing of the old epoch commits after ENFORCED."""

import asyncio

import pytest
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk.testing import Stack

from libs.testkit.waiting import wait_until
from tests.system.conftest import FLOWS, Counter, calling
from tests.system.flows import waiting


@pytest.mark.requirement("run.cancel")
@pytest.mark.requirement("gw.fence")
@pytest.mark.requirement("attempt.fenced")
async def test_no_effect_after_enforced_with_many_attempts_calling(stack: Stack, counter: Counter) -> None:
    async with calling(stack, counter, 20) as runs:
        answers = await asyncio.gather(*(stack.client.cancel(run.run_id, "enough") for run in runs))
        enforced = {answer.run.run_id: len(await stack.client.effects(answer.run.run_id)) for answer in answers}
        for answer in answers:
            assert answer.phase in (pb.CANCEL_PHASE_ENFORCED, pb.CANCEL_PHASE_QUIESCED)
            assert all(receipt.enforced_epoch == answer.run.epoch for receipt in answer.receipts)
        for run in runs:
            final = await stack.client.wait(run.run_id, settled=True, timeout_s=30)
            assert final.outcome == "cancelled"
            assert len(await stack.client.effects(run.run_id)) == enforced[run.run_id], "an intent committed after ENFORCED"
            effects = await stack.client.effects(run.run_id)
            assert counter.total(f"/hit/{run.run_id}/") <= len(effects)


async def running(stack: Stack, run_id: str) -> None:
    async def runs() -> bool:
        return (await stack.client.get(run_id)).state == pb.RUN_STATE_RUNNING

    await wait_until(runs, timeout_s=30, what="an attempt of the run")


@pytest.mark.requirement("run.cancel")
async def test_a_waiting_attempt_is_stopped_and_its_worker_takes_new_work(stack: Stack) -> None:
    await stack.client.publish(waiting)
    async with stack.worker(f"{FLOWS}:waiting", worker_id="waits", slots=1):
        run = await stack.client.launch("waiting")
        await running(stack, run.run_id)
        await stack.client.cancel(run.run_id)
        assert (await stack.client.wait(run.run_id, settled=True, timeout_s=10)).outcome == "cancelled"
        again = await stack.client.launch("waiting")
        await running(stack, again.run_id)
        await stack.client.cancel(again.run_id)
