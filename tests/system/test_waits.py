"""A step that waits, through the whole installation and the command line: workers die meanwhile, and each effect happens once."""

import json

import pytest
from runway.scheduler.v1 import scheduler_service_pb2 as sc
from runway_sdk.testing import Stack

from libs.testkit.waiting import wait_until
from tests.system.conftest import FLOWS, Counter
from tests.system.flows import shipping
from tests.system.test_command_line import runway


async def waits_for(stack: Stack, run_id: str, reason: str) -> None:
    async def seen() -> bool:
        return reason in (await stack.client.get(run_id)).wait_reasons

    await wait_until(seen, timeout_s=30, what=f"a run that waits for {reason}")


@pytest.mark.requirement("step.wait")
@pytest.mark.requirement("run.input")
@pytest.mark.requirement("fx.intent")
async def test_a_step_waits_for_an_event_and_a_person_while_workers_die(stack: Stack, counter: Counter) -> None:
    await stack.client.publish(shipping)
    json_ = ("-o", "json")
    async with stack.worker(f"{FLOWS}:shipping", worker_id="ships-1", slots=2):
        run = await stack.client.launch("shipping", "o-77")
        await waits_for(stack, run.run_id, "external_event")
    told = json.loads(
        await runway(stack, "run", "signal", "paid", "--correlation", "o-77", "-p", '"7"', "--event-id", "p", *json_)
    )
    assert (told["used"], told["run_id"], told["replayed"]) == (True, run.run_id, False)
    again = json.loads(
        await runway(stack, "run", "signal", "paid", "--correlation", "o-77", "-p", '"7"', "--event-id", "p", *json_)
    )
    assert (again["used"], again["replayed"], again["slot"]) == (True, True, told["slot"])
    await runway(stack, "run", "signal", "paid", code=1)  # neither a run nor a correlation
    async with stack.worker(f"{FLOWS}:shipping", worker_id="ships-2", slots=2):
        await waits_for(stack, run.run_id, "user_input")
        (asked,) = json.loads(await runway(stack, "run", "inputs", run.run_id, *json_))
        assert (asked["prompt"], asked["state"]) == ("Ship it?", "open")
        await runway(stack, "run", "answer", run.run_id, '"perhaps"', code=1)
        answered = json.loads(await runway(stack, "run", "answer", run.run_id, "true", *json_))
        assert (answered["state"], answered["replayed"]) == ("answered", False)
        await runway(stack, "run", "answer", run.run_id, "false", code=1)
        output = await stack.client.result(run.run_id, timeout_s=60)
    assert output[:2] == ["7", "True"]
    assert {path: count for path, count in counter.hits.items() if run.run_id in path} == {
        f"/ship/{run.run_id}/order": 1,
        f"/ship/{run.run_id}/send": 1,
    }
    ends = [attempt.state for attempt in await stack.client.attempts(run.run_id)]
    assert ends == [sc.ATTEMPT_STATE_YIELDED] * 3 + [sc.ATTEMPT_STATE_SUCCEEDED]
    (step,) = await stack.client.steps(run.run_id)
    assert step.attempts == 1, "waiting is no attempt"
