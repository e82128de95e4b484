"""Who may call what: tokens, contracts, grants, money, tenants; bad input; secrets; models."""

import asyncio
import json
import logging
from base64 import b64encode
from typing import Any
from uuid import UUID, uuid4

import pytest
from runway.gateway.v1 import gateway_service_pb2 as pb
from runway.internal.inbox.v1 import inbox_pb2
from runway_sdk.values import from_value, to_value

from libs.fence.token import Signer
from libs.kernel.epochs import Mode
from libs.kernel.refusal import Reason, Refusal
from libs.testkit.waiting import wait_until
from tests.rpc.gateway.conftest import CANARIES
from tests.rpc.gateway.harness import FLEET_KEY, OTHER_KEY, Attempt, Repositories, Stack, asked, refused, stored
from tests.rpc.gateway.provider import Provider

READ = {"target": "api", "method": "GET", "path": "/ok"}


async def generate(stack: Stack, attempt: Attempt, body: dict[str, Any], **more: Any) -> pb.GenerateResponse:
    request = pb.GenerateRequest(model="small", body=to_value(body), **more)
    return await asked(stack.gateway(attempt).Generate(request))


@pytest.mark.requirement("gw.fence")
async def test_forged_altered_foreign_and_expired_tokens(stack: Stack) -> None:
    attempt = stack.grant()
    good, ours = attempt.token, stack.world.signer
    stack.world.signer = Signer()
    forged = stack.grant(attempt.run_id, attempt=attempt.fence.attempt_id)
    stack.world.signer = ours
    foreign = stack.grant(attempt.run_id, attempt=attempt.fence.attempt_id, audience="elsewhere")
    altered = Attempt(attempt.run_id, "publish", attempt.fence, good[:40] + bytes([good[40] ^ 1]) + good[41:])
    for bad in (forged, foreign, altered):
        assert (await refused(stack.tool(bad, "http.request", READ))).reason is Reason.LEASE_INVALID
    stolen = pb.InvokeToolRequest(tool="http.request", arguments=to_value(READ))
    assert (await refused(stack.gateway(attempt, OTHER_KEY).InvokeTool(stolen))).reason is Reason.LEASE_INVALID
    dead = stack.grant(expires_at_ms=1)
    assert (await stack.tool(dead, "http.request", READ)).effect.state == pb.EFFECT_STATE_SUCCEEDED
    stack.world.steps[(dead.run_id, "publish")] = stack.grant(dead.run_id, lease=3).fence
    assert (await refused(stack.tool(dead, "http.request", READ))).reason is Reason.LEASE_FENCED
    stack.world.away = True
    assert (await refused(stack.tool(dead, "http.request", READ))).reason is Reason.LEASE_EXPIRED


@pytest.mark.requirement("gw.fence")
async def test_nothing_is_admitted_while_no_authority_answers(stack: Stack, provider: Provider) -> None:
    attempt = stack.grant()
    stack.world.away = True
    away = await refused(stack.tool(attempt, "http.request", READ))
    assert away.reason is Reason.AUTHORITY_UNREACHABLE
    assert provider.requests == []
    stack.world.away = False
    assert (await stack.tool(attempt, "http.request", READ)).effect.state == pb.EFFECT_STATE_SUCCEEDED
    reads = stack.world.reads
    await stack.tool(attempt, "http.request", READ)
    assert stack.world.reads == reads
    unknown = stack.grant(known=False)
    assert (await refused(stack.tool(unknown, "http.request", READ))).reason is Reason.RUN_CLOSED


async def test_a_resumed_run_asks_for_a_renewed_token(stack: Stack) -> None:
    attempt = stack.grant()
    await stack.tool(attempt, "http.request", READ)
    await stack.raise_gate(attempt.run_id, 2, Mode.OPEN)
    stale = await refused(stack.tool(attempt, "http.request", READ))
    assert (stale.reason, stale.detail["current_epoch"]) == (Reason.EPOCH_STALE, "2")


async def test_contract_points_and_grant_must_each_allow_a_call(stack: Stack, provider: Provider) -> None:
    undeclared = stack.grant(tools=["git.push"])
    elsewhere = stack.grant(points=["checkpoint"])
    revoked = stack.grant(capabilities=["tool:git.push"])
    for attempt in (undeclared, elsewhere, revoked):
        denied = await refused(stack.tool(attempt, "http.request", READ))
        assert denied.reason is Reason.CAPABILITY_DENIED
    every = stack.grant(capabilities=["tool:*"])
    assert (await stack.tool(every, "http.request", READ)).effect.state == pb.EFFECT_STATE_SUCCEEDED
    assert len(provider.requests) == 1


async def test_an_envelope_is_never_overdrawn_by_parallel_calls(stack: Stack, provider: Provider) -> None:
    attempt = stack.grant(granted=100)
    calls = [stack.tool(attempt, "http.request", READ, slot=f"s{n}", hold_micros=30) for n in range(6)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    poor = [answer for answer in answers if isinstance(answer, Refusal)]
    assert [refusal.reason for refusal in poor] == [Reason.BUDGET_EXHAUSTED] * 3
    assert len(provider.requests) == 3
    gate = (await stack.rows("SELECT held, used FROM run_gate"))[0]
    assert tuple(gate) == (0, 90)


async def test_a_model_call_is_priced_by_its_usage_and_a_lost_one_by_its_hold(stack: Stack, provider: Provider) -> None:
    path = "/v1/chat/completions"
    provider.answers[path] = (200, {"choices": [], "big": 2**60, "usage": {"prompt_tokens": 1500, "completion_tokens": 250}})
    attempt = stack.grant(models=["small"])
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 10}
    answer = await generate(stack, attempt, body, hold_micros=5_000)
    assert (answer.effect.state, answer.effect.tool, answer.effect.slot) == (
        pb.EFFECT_STATE_SUCCEEDED,
        "model:small",
        "model:small#1",
    )
    assert (answer.effect.cost_micros, answer.effect.tokens) == (2000, 1750)
    assert from_value(answer.effect.result)["big"] == str(2**60)
    sent = provider.asked(path)[0]
    assert json.loads(sent.body)["model"] == "small-1"
    assert sent.headers["authorization"] == f"Bearer {CANARIES[2]}"
    assert (await generate(stack, attempt, body, slot="model:small#1")).replayed
    provider.answers[path] = "drop"
    lost = await generate(stack, attempt, {**body, "max_tokens": 20}, slot="model:small#1", hold_micros=700)
    assert (lost.effect.state, lost.effect.failure.failure_class) == (pb.EFFECT_STATE_FAILED, "transient")
    assert (lost.effect.cost_micros, lost.effect.dispatches) == (2700, 2)
    provider.answers[path] = (400, {"error": "no"})
    failed = await generate(stack, attempt, body)
    assert failed.effect.failure.type == "HTTP_400"
    assert tuple((await stack.rows("SELECT held, used, used_tokens FROM run_gate"))[0]) == (0, 2700, 1750)
    rich = await refused(generate(stack, stack.grant(models=["small"], granted=10), body))
    assert rich.reason is Reason.BUDGET_EXHAUSTED
    assert int(rich.detail["hold_micros"]) > 10
    cheap = await refused(generate(stack, stack.grant(models=["small"], granted=10), body, hold_micros=1))
    assert cheap.detail["hold_micros"] == rich.detail["hold_micros"]  # no caller holds less than the call may cost
    streamed = await refused(generate(stack, attempt, {**body, "stream": True}))
    assert streamed.reason is Reason.INVALID_FIELD


async def test_bad_input_is_refused_with_its_field_and_the_next_call_is_fine(stack: Stack, provider: Provider) -> None:
    attempt = stack.grant()
    push = {"remote": "origin", "branch": "b", "bundle": "0" * 64, "commit": "0" * 40, "expected_old": ""}
    cases: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
        ("http.request", {**READ, "target": "x'; DROP TABLE effect"}, {}, "arguments.target"),
        ("http.request", {**READ, "path": "/../up"}, {}, "arguments.path"),
        ("http.request", {**READ, "path": "http://elsewhere/"}, {}, "arguments.path"),
        ("http.request", {**READ, "headers": {"authorization": "Bearer mine"}}, {}, "arguments.headers"),
        ("http.request", {**READ, "headers": {"accept": "a\r\nx: y"}}, {}, "arguments.headers"),
        ("http.request", {**READ, "method": "TRACE"}, {}, "arguments.method"),
        ("http.request", {**READ, "text": "a", "json": 1}, {}, "arguments"),
        ("http.request", {"target": "api", "method": "GET"}, {}, "arguments"),
        ("http.request", READ, {"slot": "a\x00b"}, "slot"),
        ("http.request", READ, {"slot": "x" * 201}, "slot"),
        ("http.request", READ, {"hold_micros": -1}, "hold_micros"),
        ("http.request", READ, {"hold_micros": 2**62}, "hold_micros"),
        ("git.push", {**push, "branch": "--delete"}, {}, "arguments.branch"),
        ("git.push", {**push, "branch": "a..b"}, {}, "arguments.branch"),
        ("git.push", {**push, "remote": "ext::sh -c id"}, {}, "arguments.remote"),
        ("git.push", {**push, "commit": "HEAD"}, {}, "arguments.commit"),
        ("git.push", push, {"replay_class": pb.REPLAY_CLASS_PURE}, "replay_class"),
    ]
    for tool, arguments, more, field in cases:
        no = await refused(stack.tool(attempt, tool, arguments, **more))
        assert (no.reason, no.field) == (Reason.INVALID_FIELD, field), (arguments, more, no)
    large = await refused(stack.tool(attempt, "http.request", {**READ, "text": "x" * 2_000_000}))
    assert large.reason is Reason.TOO_LARGE
    everything = stack.grant(tools=["*"])
    unknown = await refused(stack.tool(everything, "rm", {}))
    assert (unknown.reason, unknown.field, unknown.message) == (Reason.NOT_FOUND, "tool", "no such tool 'rm'")
    assert "runway effect tools" in unknown.remedy
    assert (await refused(stack.tool(everything, "model:small", {}))).reason is Reason.NOT_FOUND
    assert await stack.rows("SELECT 1 FROM effect") == []
    assert (await stack.tool(attempt, "http.request", READ)).effect.state == pb.EFFECT_STATE_SUCCEEDED


async def test_a_ledger_is_paged_and_shown_to_its_tenant_only(stack: Stack) -> None:
    attempt = stack.grant()
    for number in range(3):
        await stack.tool(attempt, "http.request", READ, slot=f"s{number}")
    run = str(attempt.run_id)
    first = await asked(stack.gateway().ListEffects(pb.ListEffectsRequest(run_id=run, page_size=2)))
    assert [effect.slot for effect in first.effects] == ["s0", "s1"]
    second = pb.ListEffectsRequest(run_id=run, page_size=2, page_token=first.next_page_token)
    rest = await asked(stack.gateway().ListEffects(second))
    assert ([effect.slot for effect in rest.effects], rest.next_page_token) == (["s2"], "")
    empty = stack.grant()
    assert await stack.ledger(empty) == []
    for key, run_id in ((OTHER_KEY, attempt.run_id), (OTHER_KEY, empty.run_id), (OTHER_KEY, uuid4())):
        hidden = stack.gateway(key=key).ListEffects(pb.ListEffectsRequest(run_id=str(run_id)))
        assert (await refused(hidden)).reason is Reason.NOT_FOUND
    token = pb.ListEffectsRequest(run_id=run, page_token="1 OR 1=1")
    assert (await refused(stack.gateway().ListEffects(token))).reason is Reason.INVALID_FIELD


async def test_a_fleet_acts_under_the_lease_of_any_tenants_attempt_and_sees_no_ledger_but_its_own(stack: Stack) -> None:
    attempt = stack.grant()
    request = pb.InvokeToolRequest(tool="http.request", arguments=to_value(READ), slot="s")
    done = await asked(stack.gateway(attempt, FLEET_KEY).InvokeTool(request))
    assert done.effect.state == pb.EFFECT_STATE_SUCCEEDED
    assert [effect.slot for effect in await stack.ledger(attempt)] == ["s"]
    assert (await refused(stack.gateway(key=FLEET_KEY).InvokeTool(request))).reason is Reason.LEASE_INVALID
    for lease in (None, attempt):  # what needs no lease takes none into account
        hidden = stack.gateway(lease, FLEET_KEY).ListEffects(pb.ListEffectsRequest(run_id=str(attempt.run_id)))
        assert (await refused(hidden)).reason is Reason.NOT_FOUND
    await stack.raise_step(attempt, 2)
    late = pb.InvokeToolRequest(tool="http.request", arguments=to_value(READ), slot="late")
    assert (await refused(stack.gateway(attempt, FLEET_KEY).InvokeTool(late))).reason is Reason.LEASE_FENCED


async def test_tools_are_listed_with_their_schemas(stack: Stack) -> None:
    listed = await asked(stack.gateway().ListTools(pb.ListToolsRequest()))
    assert [(tool.kind, tool.name) for tool in listed.tools] == [
        ("tool", "git.push"),
        ("tool", "http.request"),
        ("model", "small"),
    ]
    assert listed.tools[0].replay_class == pb.REPLAY_CLASS_IDEMPOTENT
    assert "bundle" in listed.tools[0].arguments_schema["properties"]


async def test_no_credential_leaves_the_gateway(
    stack: Stack, provider: Provider, repositories: Repositories, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    provider.answers |= {
        "/echo": (200, {"you": f"sent Bearer {CANARIES[1]}", f"k{CANARIES[1]}": [CANARIES[1]]}),
        "/no": (400, {"you": CANARIES[1]}),
        "/v1/chat/completions": (401, {"error": f"bad key {CANARIES[2]}"}),
        "/repo.git/info/refs?service=git-upload-pack": (401, {}),
    }
    attempt = stack.grant(models=["small"])
    echoed = await stack.tool(attempt, "http.request", {**READ, "path": "/echo"}, slot="echo", hold_micros=5)
    said = [str(echoed.effect), str(await stack.tool(attempt, "http.request", {**READ, "path": "/no"}, slot="no"))]
    assert provider.asked("/echo")[0].headers["authorization"] == f"Bearer {CANARIES[1]}"
    body = {"messages": [{"role": "user", "content": "hi"}]}
    said.append(str((await generate(stack, attempt, body)).effect))
    bundle = stored(stack.world, attempt.run_id, repositories.bundle())
    push = {"remote": "https", "branch": "b", "bundle": bundle, "commit": repositories.base, "expected_old": ""}
    denied = await refused(stack.tool(attempt, "git.push", push, slot="push"))
    assert denied.detail["state"] == "not_sent"
    pair = b64encode(f"bot:{CANARIES[0]}".encode()).decode()
    assert [one.headers.get("authorization") for one in provider.requests][-1] == f"Basic {pair}"
    said.append(str(denied))
    await stack.raise_gate(attempt.run_id, 2, Mode.CLOSED)
    await wait_until(lambda: stack.world.facts("usage_settled"))
    said += [str(event) for event in stack.world.events]
    said.append(caplog.text)
    for table in ("effect", "effect_dispatch", "outbox", "outbox_kept", "dead_letter", "gateway_process"):
        rows = await stack.rows(f"SELECT t.*, encode(t::text::bytea, 'escape') AS whole FROM {table} AS t")
        for row in rows:
            said += [bytes(v).decode(errors="replace") if isinstance(v, bytes) else str(v) for v in row.values()]
    for canary in (*CANARIES, pair):
        assert not [text for text in said if canary in text]
    assert any("[redacted]" in text for text in said)


async def test_stuck_effects_are_told(stack: Stack, provider: Provider) -> None:
    provider.answers["/act"] = "drop"
    attempt = stack.grant()
    await refused(stack.tool(attempt, "http.request", {**READ, "method": "POST", "path": "/act"}, slot="x"))
    found = await stack.host.peers.list_stuck("gateway", inbox_pb2.ListStuckRequest(service="gateway"))
    unknown = [item for item in found.items if item.kind == "unknown_effect"]
    assert [UUID(bytes=item.run_id) for item in unknown] == [attempt.run_id]
    assert "slot x of step publish" in unknown[0].detail
