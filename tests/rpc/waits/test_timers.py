"""Steps that wait for a time: no lease meanwhile, one row, once per slot."""

from datetime import UTC, datetime, timedelta

import pytest
from runway.readiness.v1 import readiness_service_pb2 as rd
from runway.scheduler.v1 import scheduler_service_pb2 as sc
from runway_sdk import Context, SyncContext, step, workflow

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
