"""Switches through the whole installation: nothing of a killed tenant commits or calls; released, its runs go on and end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from runway.gateway.v1 import gateway_service_pb2 as gw
from runway.launch.v1 import launch_service_pb2 as la
from runway.launch.v1 import scope_service_pb2 as pb
from runway.launch.v1 import scope_service_pb2_grpc
from runway_sdk.testing import Stack

from libs.rpc.channels import open_channel
from libs.testkit.waiting import wait_until
from tests.system.conftest import FLOWS, Counter
from tests.system.flows import hammering, waiting

WHO = {"reason": "it posts nonsense", "actor": "ann"}
TENANT, TOOL, PROVIDER = 1, 3, 4


@asynccontextmanager
async def operator(stack: Stack) -> AsyncIterator[Any]:
    secret = (stack.folder / "data" / "service-secret").read_text().strip()
    async with open_channel(stack.target.control_address, secret=secret) as channel:
        yield scope_service_pb2_grpc.ScopeServiceStub(channel)


@asynccontextmanager
async def stopped(stack: Stack, kind: int, name: str, mode: int) -> AsyncIterator[pb.Scope]:
    async with operator(stack) as stub:
        told = await stub.StopScope(pb.StopScopeRequest(kind=kind, name=name, mode=mode, **WHO))
        try:
            yield told.scope
        finally:
            await stub.ReleaseScope(pb.ReleaseScopeRequest(kind=kind, name=name, **WHO))


async def tenant_of(stack: Stack) -> str:
    await stack.client.publish(waiting)
    run = await stack.client.launch("waiting")
    await stack.client.cancel(run.run_id)
    return run.tenant


async def calls_stand_still(counter: Counter, prefix: str) -> int:
    """Calls under way end within moments; then no more come."""
    before = -1
    while before != counter.total(prefix):
        before = counter.total(prefix)
        await asyncio.sleep(0.5)  # nothing tells that something does not happen
    return before


@pytest.mark.requirement("sched.switch")
@pytest.mark.requirement("gw.fence")
async def test_a_killed_tenant_stands_still_and_goes_on_after_the_release(stack: Stack, counter: Counter) -> None:
    tenant = await tenant_of(stack)
    await stack.client.publish(hammering)
    async with stack.worker(f"{FLOWS}:hammering", worker_id="killed", slots=4):
        run = await stack.client.launch("hammering", {"calls": 60})
        prefix = f"/hit/{run.run_id}/"
        await wait_until(lambda: counter.total(prefix) >= 5, timeout_s=30, what="some calls")
        async with stopped(stack, TENANT, tenant, pb.SCOPE_MODE_KILL) as scope:
            assert all(state.enforced for state in scope.points)
            intents = len(await stack.client.effects(run.run_id))
            calls = await calls_stand_still(counter, prefix)
            assert len(await stack.client.effects(run.run_id)) == intents, "an intent committed after the kill"
            assert calls <= intents < 60

            async def ended() -> bool:
                attempts = await stack.client.attempts(run.run_id)
                return bool(attempts) and all(attempt.HasField("ended_at") for attempt in attempts)

            await wait_until(ended, timeout_s=20, what="the end of its attempt")
            why = await stack.client._call(stack.client._launch.ExplainRun, la.ExplainRunRequest(run_id=run.run_id))
            assert "SCOPE_STOPPED" in str(why)
        final = await stack.client.wait(run.run_id, settled=True, timeout_s=60)
    assert final.outcome == "succeeded"
    effects = await stack.client.effects(run.run_id)
    assert len(effects) == 60
    assert {effect.state for effect in effects} == {gw.EFFECT_STATE_SUCCEEDED}
    assert counter.done(prefix) == 60, "each call once"


@pytest.mark.requirement("sched.switch")
@pytest.mark.parametrize(("kind", "name"), [(TOOL, "http.request"), (PROVIDER, "counter")])
async def test_a_drained_tool_or_provider_stops_calls_and_costs_no_attempt(
    stack: Stack, counter: Counter, kind: int, name: str
) -> None:
    await stack.client.publish(hammering)
    async with stack.worker(f"{FLOWS}:hammering", worker_id=f"drained-{kind}", slots=4):
        run = await stack.client.launch("hammering", {"calls": 40})
        prefix = f"/hit/{run.run_id}/"
        await wait_until(lambda: counter.total(prefix) >= 5, timeout_s=30, what="some calls")
        async with stopped(stack, kind, name, pb.SCOPE_MODE_DRAIN):
            assert await calls_stand_still(counter, prefix) < 40
        final = await stack.client.wait(run.run_id, settled=True, timeout_s=60)
    assert final.outcome == "succeeded"
    (step,) = await stack.client.steps(run.run_id)
    assert step.attempts == 1, "returning a lease is no attempt"
    assert counter.done(prefix) == 40
