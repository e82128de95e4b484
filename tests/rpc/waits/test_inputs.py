"""Steps that ask people: once, answered once, by schema, with a deadline."""

from datetime import timedelta
from typing import Any

import pytest
from runway.readiness.v1 import readiness_service_pb2 as rd
from runway_sdk import Client, Context, InvalidRequest, NotFound, RunwayError, Target, step, workflow
from runway_sdk.values import from_value

from libs.testkit.hosts import make_key
from tests.rpc.waits.conftest import Bench

SCHEMA = {"type": "object", "properties": {"pieces": {"type": "integer", "minimum": 1}}, "required": ["pieces"]}


@step
async def asks(run: dict[str, Any], context: Context) -> Any:
    timeout = timedelta(milliseconds=run["timeout_ms"]) if "timeout_ms" in run else None
    got = await context.input("How many?", SCHEMA, timeout=timeout, slot="amount")
    return got.value if not got.timed_out else "nobody said"


ASK = workflow("ask", steps=[asks])


@pytest.mark.requirement("run.input")
async def test_a_question_is_asked_once_and_answered_once(bench: Bench) -> None:
    async with bench.worker(ASK):
        run = await bench.client.launch("ask", {})
        waiting = await bench.waiting(run.run_id, "user_input")
        assert list(waiting.wait_reasons) == ["user_input"]
        (question,) = await bench.client.inputs()
        assert (question.run_id, question.step_key, question.slot, question.prompt) == (
            run.run_id,
            "asks",
            "amount",
            "How many?",
        )
        assert (question.state, question.schema["type"]) == (rd.INPUT_STATE_OPEN, "object")
        for wrong in ({"pieces": 0}, {}, None, "three"):
            with pytest.raises(InvalidRequest) as misfit:
                await bench.client.answer(run.run_id, wrong)
            assert "send JSON of type object, for example {" in misfit.value.remedy
        done = await bench.client.answer(run.run_id, {"pieces": 3})
        assert (done.replayed, done.input.state, done.input.answered_by) == (False, rd.INPUT_STATE_ANSWERED, "tests")
        assert await bench.client.result(run.run_id, timeout_s=20) == {"pieces": 3}
        assert (await bench.client.answer(run.run_id, {"pieces": 3})).replayed, "the same answer again is fine"
        with pytest.raises(RunwayError) as refused:
            await bench.client.answer(run.run_id, {"pieces": 4})
        assert (refused.value.reason, refused.value.detail["state"]) == ("INPUT_CLOSED", "answered")
        assert await bench.client.inputs() == []
        (kept,) = await bench.client.inputs(run.run_id)
        assert from_value(kept.answer) == {"pieces": 3}


@pytest.mark.requirement("run.input")
async def test_a_deadline_ends_the_question_by_type(bench: Bench) -> None:
    async with bench.worker(ASK):
        run = await bench.client.launch("ask", {"timeout_ms": 300})
        assert await bench.client.result(run.run_id, timeout_s=20) == "nobody said"
        with pytest.raises(RunwayError) as refused:
            await bench.client.answer(run.run_id, {"pieces": 3})
        assert (refused.value.reason, refused.value.detail["state"]) == ("INPUT_CLOSED", "expired")
        (kept,) = await bench.client.inputs(run.run_id)
        assert kept.state == rd.INPUT_STATE_EXPIRED


@pytest.mark.requirement("run.input")
async def test_another_tenant_sees_and_answers_nothing(bench: Bench) -> None:
    async with bench.worker(ASK):
        run = await bench.client.launch("ask", {})
        await bench.waiting(run.run_id, "user_input")
        stranger = Target(bench.host.addresses.public, await make_key(bench.host, tenant="other"), bench.host.addresses.control)
        async with Client(stranger) as other:
            assert await other.inputs() == []
            with pytest.raises(NotFound):
                await other.inputs(run.run_id)
            with pytest.raises(NotFound):
                await other.answer(run.run_id, {"pieces": 3})
        await bench.client.cancel(run.run_id)
        await bench.client.wait(run.run_id, settled=True, timeout_s=20)
        with pytest.raises(RunwayError) as refused:
            await bench.client.answer(run.run_id, {"pieces": 3})
        assert refused.value.reason == "RUN_CLOSED"
        assert await bench.client.inputs() == []
