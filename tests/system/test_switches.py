"""Switches through the whole installation: nothing of a killed tenant commits or calls; released, its runs go on and end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from runway.gateway.v1 import gateway_service_pb2 as gw
from runway.launch.v1 import launch_service_pb2 as la
from runway.launch.v1 import scope_service_pb2 as pb
from runway.launch.v1 import scope_service_pb2_grpc
from runway_sdk.testing import Stack

from libs.embedded import running_url
from libs.rpc.channels import open_channel
from libs.testkit.waiting import wait_until
from tests.system.conftest import FLOWS, Counter
from tests.system.flows import hammering, waiting

WHO = {"reason": "it posts nonsense", "actor": "ann"}
TENANT, PROJECT, TOOL, PROVIDER = 1, 2, 3, 4
DRAIN, KILL = 1, 2
POINTS = {"gateway", "checkpoint", "scheduler"}


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


def asked(kind: int, name: str, mode: int, **more: Any) -> pb.StopScopeRequest:
    return pb.StopScopeRequest(kind=pb.ScopeKind.ValueType(kind), name=name, mode=pb.ScopeMode.ValueType(mode), **WHO, **more)


async def listed(stub: Any, kind: int, name: str) -> pb.Scope | None:
    scopes = (await stub.ListScopes(pb.ListScopesRequest(page_size=500))).scopes
    return next((scope for scope in scopes if (scope.kind, scope.name) == (kind, name)), None)


async def acknowledged(stub: Any, kind: int, name: str, mode: int) -> pb.Scope:
    """The switch as it is listed once every point has said that it acts on it."""

    async def all_points() -> pb.Scope | None:
        scope = await listed(stub, kind, name)
        return scope if scope is not None and all(state.enforced for state in scope.points) else None

    scope = await wait_until(all_points, timeout_s=20, what="every point's acknowledgement")
    assert scope is not None
    assert scope.mode == mode
    assert {state.point for state in scope.points} == POINTS
    assert all(state.HasField("enforced_at") for state in scope.points)
    return scope


async def held_by_points(stack: Stack, kind: int, name: str) -> dict[str, tuple[int, int]]:
    """Epoch and mode of a switch, as the fences of each point itself have them."""
    admin = await asyncpg.connect(running_url(stack.folder / "data" / "postgres"))
    word = {PROJECT: "project", TOOL: "tool", PROVIDER: "provider"}[kind]
    try:
        return {
            point: tuple(
                await admin.fetchrow(
                    f"SELECT epoch, mode FROM {point}.scope_fence WHERE (kind, scope_id) = ($1, $2)", word, name
                )
            )
            for point in sorted(POINTS)
        }
    finally:
        await admin.close()


@pytest.mark.requirement("sched.switch")
@pytest.mark.parametrize("mode", [DRAIN, KILL], ids=["drained", "killed"])
@pytest.mark.parametrize(
    ("kind", "name"), [(PROJECT, ""), (TOOL, "http.request"), (PROVIDER, "counter")], ids=["project", "tool", "provider"]
)
async def test_a_stopped_project_tool_or_provider(stack: Stack, counter: Counter, kind: int, name: str, mode: int) -> None:
    await stack.client.publish(hammering)
    async with (
        operator(stack) as stub,
        stack.worker(f"{FLOWS}:hammering", worker_id=f"stopped-{kind}-{mode}", slots=4),
    ):
        run = await stack.client.launch("hammering", {"calls": 24})
        name = name or f"{run.tenant}/{run.project}"
        prefix = f"/hit/{run.run_id}/"
        await wait_until(lambda: counter.total(prefix) >= 3, timeout_s=30, what="some calls")

        # What it would stop is said, and nothing is changed.
        was = await listed(stub, kind, name)
        dry = await stub.StopScope(asked(kind, name, mode, dry_run=True))
        assert not dry.changed
        if kind == PROJECT:
            assert dry.extent.active_runs >= 1
        assert await listed(stub, kind, name) == was is None
        seen = counter.total(prefix)
        await wait_until(lambda: counter.total(prefix) > seen, timeout_s=30, what="calls after a dry run")

        try:
            told = await stub.StopScope(asked(kind, name, mode))
            assert told.changed
            scope = await acknowledged(stub, kind, name, mode)
            assert set((await held_by_points(stack, kind, name)).values()) == {(scope.epoch, mode)}
            intents = len(await stack.client.effects(run.run_id))
            later = await stack.client.launch("hammering", {"calls": 2})
            assert await calls_stand_still(counter, prefix) <= intents < 24
            assert counter.total(f"/hit/{later.run_id}/") == 0, "nothing new begins"
            assert len(await stack.client.effects(run.run_id)) == intents, "an intent committed while it was stopped"
        finally:
            released = pb.ReleaseScopeRequest(kind=pb.ScopeKind.ValueType(kind), name=name, **WHO)
            await stub.ReleaseScope(released)
        finals = [await stack.client.wait(one.run_id, settled=True, timeout_s=60) for one in (run, later)]
        assert [final.outcome for final in finals] == ["succeeded", "succeeded"]
        await wait_until(lambda: _opened(stack, kind, name, scope.epoch), timeout_s=20, what="every point open again")
    if mode == DRAIN:
        (step,) = await stack.client.steps(run.run_id)
        assert step.attempts == 1, "returning a lease is no attempt"
    assert (counter.done(prefix), counter.done(f"/hit/{later.run_id}/")) == (24, 2)


async def _opened(stack: Stack, kind: int, name: str, epoch: int) -> bool:
    return all(held[0] > epoch and held[1] == 0 for held in (await held_by_points(stack, kind, name)).values())
