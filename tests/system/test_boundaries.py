"""The same effect, its gateway or worker killed at each boundary in turn: done once, and the run succeeds."""

import secrets

import pytest
from runway.gateway.v1 import gateway_service_pb2 as gw
from runway_sdk.testing import BOUNDARIES, Stack

from libs.testkit.waiting import wait_until
from tests.system.conftest import FLOWS, Origin
from tests.system.flows import pushing, resuming


@pytest.mark.requirement("fx.intent")
@pytest.mark.requirement("fx.unknown")
@pytest.mark.requirement("step.durable")
@pytest.mark.requirement("ux.dev")
@pytest.mark.parametrize("boundary", list(BOUNDARIES))
async def test_one_push_whatever_dies_and_when(stack: Stack, origin: Origin, boundary: str) -> None:
    await stack.client.publish(pushing)
    branch = f"b-{boundary}-{secrets.token_hex(2)}"
    async with stack.worker(f"{FLOWS}:pushing", worker_id=f"w-{boundary}") as worker:
        if boundary == "before_completion":
            run = await stack.client.launch("pushing", {"repository": str(origin.path), "branch": branch})

            async def prepared() -> bool:
                steps = await stack.client.steps(run.run_id)
                return any(step.step_key == "prepare" and step.output.ByteSize() for step in steps)

            await wait_until(prepared, timeout_s=30, what="the step before the push")
            stack.arm(boundary)
            await stack.struck(boundary)
            await worker.process.wait()
            async with stack.worker(f"{FLOWS}:pushing", worker_id="w-after"):
                final = await stack.client.wait(run.run_id, settled=True, timeout_s=60)
        else:
            stack.arm(boundary)
            gone = stack.pid("gateway")
            run = await stack.client.launch("pushing", {"repository": str(origin.path), "branch": branch})
            await stack.struck(boundary)
            await stack.back("gateway", gone)
            final = await stack.client.wait(run.run_id, settled=True, timeout_s=60)
    assert final.outcome == "succeeded", final.failure
    assert origin.pushes(branch) == 1
    assert origin.head(branch) == final.output.string_value
    (effect,) = await stack.client.effects(run.run_id)
    assert effect.state in (gw.EFFECT_STATE_SUCCEEDED, gw.EFFECT_STATE_OBSERVED)
    if boundary in ("after_call",):
        assert effect.state == gw.EFFECT_STATE_OBSERVED
        assert effect.dispatches == 1


@pytest.mark.requirement("step.durable")
@pytest.mark.requirement("cp.exact")
async def test_a_killed_worker_is_followed_from_its_checkpoint(stack: Stack) -> None:
    await stack.client.publish(resuming)
    stack.arm("before_completion")
    async with stack.worker(f"{FLOWS}:resuming", worker_id="w-first"):
        run = await stack.client.launch("resuming", "x")
        await stack.struck("before_completion")
        async with stack.worker(f"{FLOWS}:resuming", worker_id="w-second"):
            final = await stack.client.wait(run.run_id, settled=True, timeout_s=60)
    assert final.outcome == "succeeded"
    started = [item.number_value for item in final.output.struct_value.fields["started"].list_value.values]
    assert started == [1, 2]
    checkpoints = await stack.client.checkpoints(run.run_id)
    assert [checkpoint.boundary for checkpoint in checkpoints] == ["attempt 2", "attempt 1"]
