"""A model behind an OpenAI-compatible interface: called once, metered, settled with the run."""

import pytest
from runway.gateway.v1 import gateway_service_pb2 as gw
from runway_sdk.testing import Stack

from tests.system.conftest import FLOWS, Counter
from tests.system.flows import asking


@pytest.mark.requirement("fx.intent")
@pytest.mark.requirement("gw.fence")
async def test_a_model_call_is_an_effect_with_usage_that_the_run_pays(stack: Stack, counter: Counter) -> None:
    await stack.client.publish(asking)
    before = counter.total("/v1/chat/completions")
    async with stack.worker(f"{FLOWS}:asking", worker_id="asks"):
        run = await stack.client.launch("asking", "what first?", budget_micros=1_000)
        final = await stack.client.wait(run.run_id, settled=True, timeout_s=30)
    assert final.output.string_value == "as small-1: mend the links"
    assert counter.total("/v1/chat/completions") == before + 1
    (effect,) = await stack.client.effects(run.run_id)
    assert (effect.tool, effect.state, effect.tokens, effect.cost_micros) == (
        "model:summary",
        gw.EFFECT_STATE_SUCCEEDED,
        1500,
        200,
    )
    async with stack.worker(f"{FLOWS}:asking", worker_id="asks-again"):
        poor = await stack.client.launch("asking", "and now?", budget_micros=100)
        failed = await stack.client.wait(poor.run_id, settled=True, timeout_s=30)
    assert (failed.outcome, failed.failure.failure_class) == ("failed", "budget")
    assert counter.total("/v1/chat/completions") == before + 1
