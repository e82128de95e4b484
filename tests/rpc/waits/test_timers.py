"""Steps that wait for a time: no lease meanwhile, one row, once per slot."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from runway.launch.v1 import launch_service_pb2 as pb
from runway.readiness.v1 import readiness_service_pb2 as rd
from runway.scheduler.v1 import scheduler_service_pb2 as sc
from runway_sdk import Context, SyncContext, step, workflow

from libs.testkit.waiting import wait_until
from tests.rpc.waits.conftest import Bench

REACHED: list[str] = []


@step
async def naps(run: float, context: Context) -> str:
    REACHED.append("before")
    await context.sleep(timedelta(seconds=run))
    REACHED.append("between")
    await context.sleep_until(datetime(2020, 1, 1, tzinfo=UTC), slot="long ago")
    REACHED.append("after")
    return "rested"


@step
def naps_in_a_thread(naps: str, context: SyncContext) -> str:
    context.sleep(timedelta(milliseconds=50))
    return naps + " twice"


NAP = workflow("nap", steps=[naps, naps_in_a_thread])


@pytest.mark.requirement("step.wait")
async def test_a_step_waits_for_a_time_without_a_lease_and_goes_on(bench: Bench) -> None:
    REACHED.clear()
    async with bench.worker(NAP):
        run = await bench.client.launch("nap", 1.5)
        waiting = await bench.waiting(run.run_id, "timer")
        assert waiting.outcome == ""
        first = (await bench.client.steps(run.run_id))[0]
        assert (first.state, first.wait_reason, first.attempts) == (rd.STEP_STATE_WAITING, "timer", 0)
        explained = (await bench.client.explain(run.run_id)).steps[0]
        assert explained.blockers[0].code == "WAITS_FOR"
        assert "sleep#1" in explained.blockers[0].message
        assert explained.blockers[0].until.ToMilliseconds() == first.retry_at.ToMilliseconds() > 0
        (attempt,) = await bench.client.attempts(run.run_id)
        assert attempt.state == sc.ATTEMPT_STATE_YIELDED, "nobody holds the step"
        assert await bench.client.result(run.run_id, timeout_s=20) == "rested twice"
    assert REACHED == ["before", "before", "between", "before", "between", "after"]
    rows = await bench.db.fetch("SELECT step_key, slot, state FROM wait ORDER BY 1, 2")
    assert [tuple(row) for row in rows] == [("naps", "long ago", 2), ("naps", "sleep#1", 2), ("naps_in_a_thread", "sleep#1", 2)]


GATE = asyncio.Event()


@step
async def held_then_naps(run: float, context: Context) -> str:
    REACHED.append("begun")
    await GATE.wait()
    await context.sleep(timedelta(seconds=run))
    return "slept"


HELD = workflow("held", steps=[held_then_naps])


@pytest.mark.requirement("step.wait")
async def test_a_timer_matures_in_a_pause_and_nothing_is_leased_before_the_resume(bench: Bench) -> None:
    async with bench.worker(NAP):
        run = await bench.client.launch("nap", 0.5)
        await bench.waiting(run.run_id, "timer")
        await bench.client.pause(run.run_id, "a look")

        async def ready() -> bool:
            return (await bench.client.steps(run.run_id))[0].state == rd.STEP_STATE_READY

        await wait_until(ready, what="the timer, in the pause")
        assert len(await bench.client.attempts(run.run_id)) == 1
        assert (await bench.client.get(run.run_id)).outcome == ""
        await bench.client.resume(run.run_id)
        assert await bench.client.result(run.run_id, timeout_s=20) == "rested twice"


@pytest.mark.requirement("step.wait")
async def test_a_wait_that_is_asked_in_a_pause_is_asked_again_after_it(bench: Bench) -> None:
    REACHED.clear()
    GATE.clear()
    async with bench.worker(HELD):
        run = await bench.client.launch("held", 0.1)
        await wait_until(lambda: REACHED, what="the attempt")
        await bench.client.pause(run.run_id)
        GATE.set()

        async def paused() -> bool:
            return (await bench.client.get(run.run_id)).state == pb.RUN_STATE_PAUSED

        await wait_until(paused, what="the pause")
        assert await bench.db.fetchval("SELECT count(*) FROM wait") == 0
        await bench.client.resume(run.run_id)
        assert await bench.client.result(run.run_id, timeout_s=20) == "slept"
        assert (await bench.client.steps(run.run_id))[0].attempts == 1


@pytest.mark.requirement("step.wait")
async def test_another_worker_goes_on_where_the_first_waited(bench: Bench) -> None:
    """Another worker, and another function call, passes by the row."""
    async with bench.worker(NAP):
        run = await bench.client.launch("nap", 1.0)
        await bench.waiting(run.run_id, "timer")
        due = await bench.db.fetchval("SELECT due_ms FROM wait")
    async with bench.worker(NAP):
        assert await bench.client.result(run.run_id, timeout_s=20) == "rested twice"
    assert await bench.db.fetchval("SELECT due_ms FROM wait WHERE slot = 'sleep#1' AND step_key = 'naps'") == due
