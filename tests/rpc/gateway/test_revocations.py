"""A smaller grant at the gateway: what it lets be dispatched, what it tells whoever is refused, and what stays as it was."""

from dataclasses import replace
from typing import Any

import pytest
from runway.gateway.v1 import gateway_service_pb2 as pb
from runway.internal.fence.v1 import fence_pb2

from libs.fence.grants import Revoked, narrowed
from libs.fence.wire import gate_to
from libs.kernel.refusal import Reason, Refusal
from tests.rpc.gateway.harness import Attempt, Stack, refused
from tests.rpc.gateway.provider import Provider

SUCCEEDED = pb.EFFECT_STATE_SUCCEEDED
BY = "key:olga at night"


def call(method: str = "POST", path: str = "/act", **more: Any) -> dict[str, Any]:
    return {"target": "api", "method": method, "path": path, **more}


async def revoke(stack: Stack, attempt: Attempt, *capabilities: str, raised: bool = True) -> Attempt:
    """As launch does: the next epoch with less, raised or only to be read; and the attempt with a renewed token."""
    held = stack.world.gates[attempt.run_id]
    grant = narrowed(held.capabilities, [Revoked(capability, 77, BY) for capability in capabilities])
    gate = replace(held, epoch=held.epoch + 1, capabilities=grant)
    stack.world.gates[attempt.run_id] = gate
    if raised:
        request = fence_pb2.RaiseFencesRequest(service="gateway", gates=[gate_to(gate)])
        assert (await stack.host.peers.raise_fences("gateway", request)).gates[0].committed
    return stack.grant(attempt.run_id, attempt=attempt.fence.attempt_id, epoch=gate.epoch)


def denied(no: Refusal) -> tuple[Reason, str, str, str]:
    return no.reason, no.detail["revoked"], no.detail["revoked_by"], no.detail["revoked_at_ms"]


@pytest.mark.requirement("child.bounded")
async def test_an_old_token_is_stale_and_a_new_one_is_told_what_was_taken(stack: Stack, provider: Provider) -> None:
    attempt = stack.grant()
    assert (await stack.tool(attempt, "http.request", call(), slot="x")).effect.state == SUCCEEDED
    renewed = await revoke(stack, attempt, "tool:http.request")
    assert (await refused(stack.tool(attempt, "http.request", call(), slot="y"))).reason is Reason.EPOCH_STALE
    no = await refused(stack.tool(renewed, "http.request", call(), slot="y"))
    assert denied(no) == (Reason.CAPABILITY_DENIED, "tool:http.request", BY, "77")
    assert len(provider.asked("/act")) == 1


@pytest.mark.requirement("child.bounded")
async def test_what_was_dispatched_before_is_a_fact(stack: Stack, provider: Provider) -> None:
    attempt = stack.grant(tools=("http.request", "git.push"))
    await stack.tool(attempt, "http.request", call(), slot="x")
    await stack.tool(attempt, "http.request", call("GET", "/read"), slot="pure")
    renewed = await revoke(stack, attempt, "tool:http.request")
    for slot, asks in (("x", call()), ("x", call(json=1)), ("pure", call("GET", "/read"))):
        answer = await stack.tool(renewed, "http.request", asks, slot=slot)
        assert (answer.effect.state, answer.replayed) == (SUCCEEDED, True)
    other = await refused(stack.tool(renewed, "http.request", call("GET", "/else"), slot="pure"))
    assert other.reason is Reason.CAPABILITY_DENIED, "other arguments of a pure slot would be sent"
    assert [one.path for one in provider.requests] == ["/act", "/read"]


@pytest.mark.requirement("child.bounded")
@pytest.mark.parametrize("taken", ["tool:http.request", "tool:*"])
async def test_an_exception_from_all_is_one(stack: Stack, provider: Provider, taken: str) -> None:
    attempt = stack.grant(capabilities=["tool:*"])
    renewed = await revoke(stack, attempt, taken)
    assert denied(await refused(stack.tool(renewed, "http.request", call())))[1] == taken
    push = {"remote": "origin", "branch": "b", "bundle": "0" * 64, "commit": "1" * 40, "expected_old": ""}
    if taken == "tool:*":
        assert denied(await refused(stack.tool(renewed, "git.push", push)))[1] == taken
    else:
        assert (await stack.tool(renewed, "git.push", push)).effect.failure.type == "BUNDLE_INVALID", "it was let through"
    assert provider.requests == []


@pytest.mark.requirement("child.bounded")
async def test_a_cold_read_brings_the_smaller_grant_and_a_late_raise_no_larger_one(stack: Stack, provider: Provider) -> None:
    attempt = stack.grant()
    old = stack.world.gates[attempt.run_id]
    renewed = await revoke(stack, attempt, "tool:http.request", raised=False)
    assert (await refused(stack.tool(renewed, "http.request", call()))).reason is Reason.CAPABILITY_DENIED
    for late in (old, replace(old, epoch=old.epoch + 1)):
        request = fence_pb2.RaiseFencesRequest(service="gateway", gates=[gate_to(late)])
        await stack.host.peers.raise_fences("gateway", request)
        assert (await refused(stack.tool(renewed, "http.request", call()))).reason is Reason.CAPABILITY_DENIED
    assert provider.requests == []
