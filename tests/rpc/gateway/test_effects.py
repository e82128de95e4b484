"""The life of effects over real gRPC: attach, replay, unknown, look-up, findings, raises, quiet runs, usage."""

import asyncio
import re
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from runway.gateway.v1 import gateway_service_pb2 as pb
from runway.internal.gateway.v1 import gateway_internal_pb2 as internal_pb
from runway_sdk.values import from_value, to_value

from libs.kernel.epochs import Mode
from libs.kernel.refusal import Reason
from libs.testkit.waiting import wait_until
from tests.rpc.gateway.harness import Attempt, Stack, asked, refused
from tests.rpc.gateway.provider import Provider

FAILED = pb.EFFECT_STATE_FAILED
SUCCEEDED = pb.EFFECT_STATE_SUCCEEDED


def call(method: str = "POST", path: str = "/act", target: str = "api", **more: Any) -> dict[str, Any]:
    return {"target": target, "method": method, "path": path, **more}


async def make_unknown(stack: Stack, attempt: Attempt, provider: Provider, *, target: str = "keyed") -> int:
    """A POST whose answer is lost; the slot's version."""
    provider.answers["/act"] = "drop"
    lost = await refused(stack.tool(attempt, "http.request", call(target=target), slot="x"))
    assert lost.reason is Reason.EFFECT_UNKNOWN
    return int(lost.detail["version"])


@pytest.mark.requirement("fx.intent")
async def test_a_repeat_while_the_first_is_under_way_joins_it(stack: Stack, provider: Provider) -> None:
    provider.gates["/act"] = asyncio.Event()
    attempt = stack.grant()
    first = asyncio.create_task(stack.tool(attempt, "http.request", call(), slot="x"))
    await asyncio.wait_for(provider.arrived.wait(), 5)
    second = asyncio.create_task(stack.tool(attempt, "http.request", call(json=1), slot="x"))
    impatient = await refused(stack.tool(attempt, "http.request", call(), slot="x", wait_s=0.05))
    assert impatient.reason is Reason.EFFECT_IN_FLIGHT
    assert impatient.detail["slot"] == "x"
    provider.gates["/act"].set()
    answers = await asyncio.gather(first, second)
    assert [answer.effect.state for answer in answers] == [SUCCEEDED, SUCCEEDED]
    assert [answer.replayed for answer in answers] == [False, True]
    assert [answer.arguments_differ for answer in answers] == [False, True]
    assert len(provider.asked("/act")) == 1
    assert len(provider.requests[0].headers["idempotency-key"]) == 64


async def test_a_call_outlives_the_attempt_that_asked_for_it(stack: Stack, provider: Provider) -> None:
    provider.gates["/act"] = asyncio.Event()
    attempt = stack.grant()
    asking = asyncio.create_task(stack.tool(attempt, "http.request", call(), slot="x"))
    await asyncio.wait_for(provider.arrived.wait(), 5)
    asking.cancel()
    answer = await stack.raise_step(attempt, 2)
    assert [(e.slot, e.state, e.version) for e in answer.unresolved] == [("x", "requested", 1)]
    provider.gates["/act"].set()
    await wait_until(lambda: len(stack.world.facts("effect_resolved", "readiness")) == 1)
    (fact,) = stack.world.facts("effect_resolved", "readiness")
    assert (fact.slot, fact.state, fact.version, fact.dispatch) == ("x", "succeeded", 2, 1)
    later = stack.grant(attempt.run_id, lease=3)
    found = await stack.tool(later, "http.request", call(), slot="x")
    assert (found.effect.state, found.replayed) == (SUCCEEDED, True)
    assert len(provider.asked("/act")) == 1


@pytest.mark.requirement("fx.unknown")
async def test_a_lost_answer_is_looked_up_and_never_repeated(stack: Stack, provider: Provider) -> None:
    attempt = stack.grant()
    version = await make_unknown(stack, attempt, provider)
    again = await refused(stack.tool(attempt, "http.request", call(target="keyed"), slot="x"))
    assert (again.reason, again.detail["state"]) == (Reason.EFFECT_UNKNOWN, "unknown")
    assert len(provider.asked("/act")) == 1
    await wait_until(lambda: stack.world.facts("effect_unknown"))
    (fact,) = stack.world.facts("effect_unknown", "reconciler")
    assert (fact.slot, fact.cause, fact.replay_class, fact.tenant) == ("x", "connection_lost", "non_replayable", "acme")
    nothing = await stack.inspect(attempt, "x")
    assert (nothing.finding, nothing.version) == (internal_pb.FINDING_NOT_YET, version)
    assert 0 < nothing.settle_ms <= 60_000
    provider.keys[provider.requests[0].headers["idempotency-key"]] = {"id": 5}
    found = await stack.inspect(attempt, "x")
    assert found.finding == internal_pb.FINDING_OBSERVED
    stale = await stack.resolve(attempt, "x", "observed", version - 1, result=found.result)
    assert (stale.recorded, stale.state, stale.version) == (False, "unknown", version)
    done = await stack.resolve(attempt, "x", "observed", version, result=found.result)
    assert (done.recorded, done.state, done.version) == (True, "observed", version + 1)
    repeated = await stack.resolve(attempt, "x", "observed", version, result=found.result)
    assert (repeated.recorded, repeated.version) == (True, version + 1)
    assert (await stack.inspect(attempt, "x")).finding == internal_pb.FINDING_RESOLVED
    answer = await stack.tool(attempt, "http.request", call(target="keyed"), slot="x")
    assert (answer.effect.state, answer.replayed) == (pb.EFFECT_STATE_OBSERVED, True)
    assert from_value(answer.effect.result)["json"] == {"id": 5}
    await wait_until(lambda: len(stack.world.facts("effect_resolved")) == 2)
    assert {fact.version for fact in stack.world.facts("effect_resolved")} == {version + 1}
    assert len(provider.asked("/act")) == 1


@pytest.mark.requirement("fx.unknown")
async def test_absence_lets_a_later_attempt_send_its_own_arguments(stack: Stack, provider: Provider) -> None:
    attempt = stack.grant()
    version = await make_unknown(stack, attempt, provider)
    assert (await stack.resolve(attempt, "x", "absent", version)).recorded
    provider.answers["/act"] = (201, {"id": 6})
    answer = await stack.tool(attempt, "http.request", call(target="keyed", json={"new": True}), slot="x")
    assert (answer.effect.state, answer.effect.dispatches, answer.arguments_differ) == (SUCCEEDED, 2, False)
    (effect,) = await stack.ledger(attempt)
    assert [one.state for one in effect.tries] == ["absent", "succeeded"]


@pytest.mark.requirement("fx.unknown")
async def test_a_tool_without_look_up_is_for_a_person_who_decides_once(stack: Stack, provider: Provider) -> None:
    attempt = stack.grant()
    version = await make_unknown(stack, attempt, provider, target="api")
    assert (await stack.inspect(attempt, "x")).finding == internal_pb.FINDING_UNDECIDABLE
    waits = await stack.resolve(attempt, "x", "needs_reconciliation", version)
    assert (waits.recorded, waits.state) == (True, "needs_reconciliation")
    person = await refused(stack.tool(attempt, "http.request", call(), slot="x"))
    assert person.detail["state"] == "needs_reconciliation"
    assert not (await stack.resolve(attempt, "x", "absent", waits.version)).recorded
    done = await stack.resolve(
        attempt, "x", "observed", waits.version, result=to_value({"by": "hand"}).SerializeToString(), actor="ada"
    )
    assert (done.recorded, done.state) == (True, "observed")
    (effect,) = await stack.ledger(attempt)
    assert effect.evidence == "ada: seen"


async def test_an_unknown_slot_is_not_known_to_anyone(stack: Stack) -> None:
    attempt = stack.grant()
    nothing = await stack.inspect(attempt, "never")
    assert (nothing.finding, nothing.state) == (internal_pb.FINDING_UNDECIDABLE, "")
    assert (await stack.resolve(attempt, "never", "absent", 1)).state == ""
    wait = pb.WaitEffectRequest(slot="never")
    assert (await refused(stack.gateway(attempt).WaitEffect(wait))).reason is Reason.NOT_FOUND


async def test_waiting_ends_with_the_outcome_or_with_the_time(stack: Stack, provider: Provider) -> None:
    provider.gates["/act"] = asyncio.Event()
    attempt = stack.grant()
    asking = asyncio.create_task(stack.tool(attempt, "http.request", call(), slot="x"))
    await asyncio.wait_for(provider.arrived.wait(), 5)
    short = pb.WaitEffectRequest(slot="x", timeout=Duration(nanos=20_000_000))
    early = await asked(stack.gateway(attempt).WaitEffect(short))
    assert (early.resolved, early.effect.state) == (False, pb.EFFECT_STATE_REQUESTED)
    waiting = asyncio.create_task(asked(stack.gateway(attempt).WaitEffect(pb.WaitEffectRequest(slot="x"))))
    provider.gates["/act"].set()
    assert (await waiting).resolved
    await asking


async def test_classes_of_http_calls(stack: Stack, provider: Provider) -> None:
    attempt = stack.grant()
    provider.answers |= {"/bad": (422, {"why": "no"}), "/down": (503, {}), "/moved": (301, {}), "/drop": "drop"}
    refused_by_target = await stack.tool(attempt, "http.request", call(path="/bad"), slot="bad")
    assert (refused_by_target.effect.state, refused_by_target.effect.failure.type) == (FAILED, "HTTP_422")
    assert from_value(refused_by_target.effect.result)["json"] == {"why": "no"}
    read = await stack.tool(attempt, "http.request", call("GET", "/down"), slot="read")
    assert (read.effect.state, read.effect.failure.failure_class) == (FAILED, "transient")
    lost_read = await stack.tool(attempt, "http.request", call("GET", "/drop"), slot="lost-read")
    assert (lost_read.effect.state, lost_read.effect.failure.failure_class) == (FAILED, "transient")
    write = await refused(stack.tool(attempt, "http.request", call(path="/down"), slot="write"))
    assert write.reason is Reason.EFFECT_UNKNOWN
    moved = await stack.tool(attempt, "http.request", call(path="/moved"), slot="moved")
    assert moved.effect.state == FAILED
    assert len(provider.asked("/x")) == 0
    nowhere = await refused(stack.tool(attempt, "http.request", call(target="nowhere"), slot="nowhere"))
    assert (nowhere.reason, nowhere.detail["state"]) == (Reason.AUTHORITY_UNREACHABLE, "not_sent")
    assert re.search(r"nowhere was not reached: 127\.0\.0\.1:\d+ refuses connections", nowhere.message), nowhere.message
    done = await stack.tool(attempt, "http.request", call("GET", "/ok", query={"a": "b c"}), slot="ok")
    result = from_value(done.effect.result)
    assert (result["status"], result["headers"]["content-type"]) == (200, "application/json")
    assert "x-hidden" not in result["headers"]
    assert provider.requests[-1].path == "/ok?a=b+c"
    again = await stack.tool(attempt, "http.request", call("GET", "/ok", query={"a": "b c"}), slot="ok")
    assert again.replayed
    other = await stack.tool(attempt, "http.request", call("GET", "/other"), slot="ok")
    assert (other.replayed, other.effect.dispatches) == (False, 2)


@pytest.mark.parametrize("call_timeout_ms", [200])
async def test_a_call_that_takes_too_long_is_unknown(stack: Stack, provider: Provider) -> None:
    provider.gates["/act"] = asyncio.Event()
    attempt = stack.grant()
    late = await refused(stack.tool(attempt, "http.request", call(), slot="x"))
    assert late.reason is Reason.EFFECT_UNKNOWN
    await wait_until(lambda: stack.world.facts("effect_unknown"))
    assert stack.world.facts("effect_unknown")[0].cause == "call_timed_out"


@pytest.mark.requirement("gw.fence")
async def test_a_cancelled_run_lists_what_is_in_flight_and_reports_quiet_with_its_usage(
    stack: Stack, provider: Provider
) -> None:
    provider.gates["/act"] = asyncio.Event()
    attempt = stack.grant()
    asking = asyncio.create_task(stack.tool(attempt, "http.request", call(), slot="x", hold_micros=500))
    await asyncio.wait_for(provider.arrived.wait(), 5)
    answer = await stack.raise_gate(attempt.run_id, 2, Mode.CLOSED, "cancelled")
    assert answer.committed
    assert not answer.quiesced
    assert [(e.step_key, e.slot, e.state, e.tool) for e in answer.unresolved] == [("publish", "x", "requested", "http.request")]
    late = await refused(stack.tool(attempt, "http.request", call(), slot="y"))
    assert late.reason is Reason.RUN_CANCELLED
    provider.gates["/act"].set()
    assert (await asking).effect.cost_micros == 500
    await wait_until(lambda: stack.world.facts("point_quiesced", "launch"))
    (quiet,) = stack.world.facts("point_quiesced")
    assert (quiet.point, quiet.epoch) == ("gateway", 2)
    assert (quiet.usage_sequence, quiet.used_micros) == (1, 500)
    (usage,) = stack.world.facts("usage_settled", "launch")
    assert (usage.sequence, usage.used_micros) == (1, 500)
    assert len(stack.world.facts("effect_resolved")) == 2
    again = await stack.raise_gate(attempt.run_id, 2, Mode.CLOSED, "cancelled")
    assert (again.quiesced, again.usage_sequence, again.used_micros) == (True, 1, 500)


async def test_a_run_that_is_quiet_already_is_answered_so_and_its_usage_follows(stack: Stack) -> None:
    attempt = stack.grant()
    await stack.tool(attempt, "http.request", call(), hold_micros=300)
    paused = await stack.raise_gate(attempt.run_id, 1, Mode.DRAINING)
    assert paused.quiesced
    waits = await refused(stack.tool(attempt, "http.request", call()))
    assert waits.reason is Reason.RUN_PAUSED
    closed = await stack.raise_gate(attempt.run_id, 2, Mode.CLOSED, "succeeded")
    assert (closed.quiesced, closed.usage_sequence, closed.used_micros) == (True, 1, 300)
    await wait_until(lambda: stack.world.facts("usage_settled"), 2)
    (usage,) = stack.world.facts("usage_settled")
    assert (usage.sequence, usage.used_micros) == (1, 300)
    await stack.raise_gate(attempt.run_id, 2, Mode.CLOSED, "succeeded")
    assert (await refused(stack.tool(attempt, "http.request", call()))).reason is Reason.RUN_CLOSED
    assert len(stack.world.facts("usage_settled")) == 1
