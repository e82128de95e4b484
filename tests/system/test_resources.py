"""Steps that take GPUs, through the whole installation: a worker never has more of them running than it has GPUs."""

import asyncio

import pytest
from runway_sdk.testing import Stack

from tests.system.conftest import FLOWS
from tests.system.flows import tuning


@pytest.mark.requirement("sched.capability")
async def test_no_more_run_than_there_is_room_for_and_what_is_freed_is_used_at_once(stack: Stack) -> None:
    await stack.client.publish(tuning)
    runs = [await stack.client.launch("tuning", {"pages": n}) for n in range(4)]
    loop = asyncio.get_running_loop()
    async with stack.worker(f"{FLOWS}:tuning", worker_id="with-gpus", slots=8, resources={"gpu": 2}):
        began_s = loop.time()
        done = await asyncio.gather(*(stack.client.wait(run.run_id, timeout_s=60) for run in runs))
        took_s = loop.time() - began_s
    spans: list[tuple[float, float, int]] = []
    for final in done:
        tune_began, tune_ended, train_began, train_ended = (v.number_value for v in final.output.list_value.values)
        spans += [(tune_began, tune_ended, 1), (train_began, train_ended, 2)]
    for at, _, _ in spans:
        assert sum(gpus for began, ended, gpus in spans if began <= at < ended) <= 2
    assert took_s < 15, "a claim that waits is made anew once more is free, not when it ends after 20 s"
