"""Steps that wait for events: correlated, counted once, also before the wait, used by one."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk import Client, Context, InvalidRequest, NotFound, RequestIdReused, RunwayError, Target, step, workflow

from libs.testkit.hosts import make_key
from libs.testkit.waiting import wait_until
from tests.rpc.waits.conftest import Bench


@step
async def listens(run: dict[str, Any], context: Context) -> Any:
    timeout = timedelta(milliseconds=run["timeout_ms"]) if "timeout_ms" in run else None
    got = await context.event("paid", correlation=run.get("order", ""), timeout=timeout)
    return {"value": got.value, "late": got.timed_out, "by": got.by}


@step
async def hears_two(run: Any, context: Context) -> list[Any]:
    first = await context.event("paid")
    second = await context.event("paid")
    return [first.value, second.value]


@step
async def hears_both(run: Any, context: Context) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(context.event(name)) for name in run]
    again = await asyncio.gather(*(context.event("again", slot=f"again {name}") for name in run))
    return [*(task.result().value for task in tasks), *(item.value for item in again)]


LISTEN = workflow("listen", steps=[listens])
TWO = workflow("two", steps=[hears_two])
BOTH = workflow("both", steps=[hears_both])


@pytest.mark.requirement("step.wait")
async def test_an_event_wakes_its_wait_by_run_and_by_correlation(bench: Bench) -> None:
    async with bench.worker(LISTEN):
        by_run = await bench.client.launch("listen", {})
        by_order = await bench.client.launch("listen", {"order": "o-7"})
        for run in (by_run, by_order):
            await bench.waiting(run.run_id, "external_event")
        told = await bench.client.signal("paid", {"sum": 3}, run_id=by_run.run_id)
        assert (told.used, told.run_id, told.step_key, told.slot) == (True, by_run.run_id, "listens", "event:paid#1")
        assert await bench.client.result(by_run.run_id, timeout_s=20) == {"value": {"sum": 3}, "late": False, "by": "tests"}
        assert not (await bench.client.signal("paid", 1, correlation="o-8")).used, "nobody waits for that one"
        told = await bench.client.signal("paid", 4, correlation="o-7")
        assert (told.used, told.run_id) == (True, by_order.run_id)
        assert (await bench.client.result(by_order.run_id, timeout_s=20))["value"] == 4


@pytest.mark.requirement("step.wait")
async def test_a_thousand_times_the_same_event_counts_once_and_may_come_before_its_wait(bench: Bench) -> None:
    await bench.client.publish(TWO)
    run = await bench.client.launch("two", None)
    answers = await asyncio.gather(
        *(bench.client.signal("paid", "once", run_id=run.run_id, event_id="e1") for _ in range(1000))
    )
    assert [answer.replayed for answer in answers].count(False) == 1
    async with bench.worker(TWO):
        await bench.waiting(run.run_id, "external_event")
        assert await bench.db.fetchval("SELECT count(*) FROM signal") == 1
        again = await bench.client.signal("paid", "once", run_id=run.run_id, event_id="e1")
        assert (again.replayed, again.used, again.slot) == (True, True, "event:paid#1")
        with pytest.raises(RequestIdReused):
            await bench.client.signal("paid", "other", run_id=run.run_id, event_id="e1")
        await bench.client.signal("paid", "twice", run_id=run.run_id, event_id="e2")
        assert await bench.client.result(run.run_id, timeout_s=20) == ["once", "twice"]


@pytest.mark.requirement("step.wait")
async def test_two_waits_get_one_event_between_them(bench: Bench) -> None:
    async with bench.worker(LISTEN):
        runs = [await bench.client.launch("listen", {"order": "same"}) for _ in range(2)]
        for run in runs:
            await bench.waiting(run.run_id, "external_event")
        told = await bench.client.signal("paid", 1, correlation="same")
        (other,) = [run.run_id for run in runs if run.run_id != told.run_id]
        assert (await bench.client.result(told.run_id, timeout_s=20))["value"] == 1
        assert (await bench.waiting(other, "external_event")).outcome == ""
        assert (await bench.client.signal("paid", 2, correlation="same")).run_id == other
        assert (await bench.client.result(other, timeout_s=20))["value"] == 2


@pytest.mark.requirement("step.wait")
async def test_waits_that_begin_together_are_asked_together(bench: Bench) -> None:
    async with bench.worker(BOTH):
        run = await bench.client.launch("both", ["a", "b"])
        await bench.waiting(run.run_id, "external_event")
        assert await bench.db.fetchval("SELECT count(*) FROM wait WHERE state = 1") == 2
        await bench.client.signal("b", "second", run_id=run.run_id)
        await bench.client.signal("a", "first", run_id=run.run_id)

        async def both_again() -> bool:
            return await bench.db.fetchval("SELECT count(*) FROM wait WHERE state = 1") == 2

        await wait_until(both_again, what="two more waits")
        for number in (3, 4):
            await bench.client.signal("again", number, run_id=run.run_id)
        result = await bench.client.result(run.run_id, timeout_s=20)
        assert (result[:2], sorted(result[2:])) == (["first", "second"], [3, 4])


@pytest.mark.requirement("step.wait")
async def test_a_timeout_ends_the_wait_by_type_and_what_comes_later_is_kept(bench: Bench) -> None:
    async with bench.worker(LISTEN):
        run = await bench.client.launch("listen", {"timeout_ms": 300})
        assert await bench.client.result(run.run_id, timeout_s=20) == {"value": None, "late": True, "by": ""}
        with pytest.raises(RunwayError) as refused:
            await bench.client.signal("paid", 1, run_id=run.run_id)
        assert refused.value.reason == "RUN_CLOSED"


@pytest.mark.requirement("step.wait")
async def test_whose_run_it_is_decides_and_no_other_tenant_learns_of_it(bench: Bench) -> None:
    async with bench.worker(LISTEN):
        run = await bench.client.launch("listen", {"order": "o"})
        await bench.waiting(run.run_id, "external_event")
        stranger = Target(bench.host.addresses.public, await make_key(bench.host, tenant="other"), bench.host.addresses.control)
        async with Client(stranger) as other:
            with pytest.raises(NotFound):
                await other.signal("paid", 1, run_id=run.run_id, correlation="o")
            assert not (await other.signal("paid", 1, correlation="o")).used, "its own tenant has no such wait"
        with pytest.raises(InvalidRequest):
            await bench.client.signal("paid", 1)
        assert (await bench.waiting(run.run_id, "external_event")).outcome == ""
        assert (await bench.client.signal("paid", 1, correlation="o")).used


@pytest.mark.requirement("step.wait")
async def test_a_cancel_ends_a_waiting_run_at_once(bench: Bench) -> None:
    async with bench.worker(LISTEN):
        run = await bench.client.launch("listen", {"order": "c"})
        await bench.waiting(run.run_id, "external_event")
        answer = await bench.client.cancel(run.run_id)
        assert answer.phase in (pb.CANCEL_PHASE_ENFORCED, pb.CANCEL_PHASE_QUIESCED)
        final = await bench.client.wait(run.run_id, settled=True, timeout_s=20)
        assert final.state == pb.RUN_STATE_CANCELLED

        async def over() -> bool:
            return not (await bench.client.signal("paid", 1, correlation="c", event_id="late")).used

        await wait_until(over, what="an event that finds no wait")
