"""A gateway process that is killed at a boundary: its tries are adopted once its death is proved, never before."""

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from runway.gateway.v1 import gateway_service_pb2 as pb
from runway.gateway.v1 import gateway_service_pb2_grpc
from runway.internal.gateway.v1 import gateway_internal_pb2 as internal_pb
from runway_sdk.values import from_value, to_value

from libs.kernel.refusal import Reason
from libs.testkit.waiting import wait_until
from tests.rpc.gateway.harness import KEY, SECRET, Attempt, Repositories, Stack, refused, stored
from tests.rpc.gateway.provider import Provider


@asynccontextmanager
async def other_process(stack: Stack, faults: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A second gateway on the same database, armed; its public address."""
    addresses = stack.host.addresses
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "RUNWAY_GATEWAY_DATABASE_URL": stack.url,
        "RUNWAY_SERVICE_SECRET": SECRET,
        "RUNWAY_FAULTS_ARMED": "development",
        "RUNWAY_FAULTS": faults,
    }
    for peer in ("LAUNCH", "SCHEDULER", "CHECKPOINT", "READINESS", "RECONCILER"):
        environment[f"RUNWAY_{peer}_ADDRESS"] = addresses.public
        environment[f"RUNWAY_{peer}_CONTROL_ADDRESS"] = addresses.control
        environment[f"RUNWAY_{peer}_LEAF_ADDRESS"] = addresses.leaf
    command = (sys.executable, "-m", "libs.runtime", "host", "--services", "gateway")
    pipe = asyncio.subprocess.PIPE
    scratch = tempfile.TemporaryDirectory(prefix="runway-test-", ignore_cleanup_errors=True)
    environment["RUNWAY_GATEWAY_SCRATCH_DIR"] = scratch.name
    child = await asyncio.create_subprocess_exec(*command, env=environment, stdout=pipe, stderr=asyncio.subprocess.DEVNULL)
    assert child.stdout is not None
    try:
        async with asyncio.timeout(30):
            line = json.loads(await child.stdout.readline())
        yield child, line["public"]
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
        scratch.cleanup()


async def invoke(address: str, attempt: Attempt, tool: str, arguments: dict[str, Any]) -> pb.InvokeToolResponse:
    metadata = (("authorization", f"Bearer {KEY}"), ("runway-lease-bin", attempt.token))
    async with grpc.aio.insecure_channel(address) as channel:
        stub = gateway_service_pb2_grpc.GatewayServiceStub(channel)
        request = pb.InvokeToolRequest(tool=tool, arguments=to_value(arguments), slot="x")
        return await stub.InvokeTool(request, metadata=metadata, timeout=30)


@pytest.mark.requirement("fx.unknown")
async def test_a_push_of_a_killed_gateway_is_found_at_the_remote_and_not_repeated(
    stack: Stack, repositories: Repositories
) -> None:
    attempt = stack.grant()
    commit = repositories.commit("two")
    bundle = stored(stack.world, attempt.run_id, repositories.bundle())
    arguments = {"remote": "origin", "branch": "fix", "bundle": bundle, "commit": commit, "expected_old": ""}
    async with other_process(stack, "gateway.after_call=kill") as (child, address):
        with pytest.raises(grpc.aio.AioRpcError):
            await invoke(address, attempt, "git.push", arguments)
        assert await child.wait() == -signal.SIGKILL
    assert repositories.head("fix") == commit
    await wait_until(lambda: stack.world.facts("effect_unknown"))
    (fact,) = stack.world.facts("effect_unknown")
    assert (fact.slot, fact.cause, fact.replay_class) == ("x", "process_died", "idempotent")
    unknown = await refused(stack.tool(attempt, "git.push", arguments, slot="x"))
    assert unknown.reason is Reason.EFFECT_UNKNOWN
    found = await stack.inspect(attempt, "x")
    assert found.finding == internal_pb.FINDING_OBSERVED
    assert (await stack.resolve(attempt, "x", "observed", found.version, result=found.result)).recorded
    answer = await stack.tool(attempt, "git.push", arguments, slot="x")
    assert answer.replayed
    assert from_value(answer.effect.result)["commit"] == commit
    assert answer.effect.dispatches == 1


@pytest.mark.requirement("fx.unknown")
async def test_a_push_that_never_left_is_absent_since_the_remote_compares_and_sets(
    stack: Stack, repositories: Repositories
) -> None:
    attempt = stack.grant()
    bundle = stored(stack.world, attempt.run_id, repositories.bundle())
    commit = repositories.base
    arguments = {"remote": "origin", "branch": "fix", "bundle": bundle, "commit": commit, "expected_old": ""}
    async with other_process(stack, "gateway.after_intent=kill") as (_, address):
        with pytest.raises(grpc.aio.AioRpcError):
            await invoke(address, attempt, "git.push", arguments)
    await wait_until(lambda: stack.world.facts("effect_unknown"))
    found = await stack.inspect(attempt, "x")
    assert found.finding == internal_pb.FINDING_ABSENT
    assert (await stack.resolve(attempt, "x", "absent", found.version)).recorded
    answer = await stack.tool(attempt, "git.push", arguments, slot="x")
    assert (answer.effect.state, answer.effect.dispatches) == (pb.EFFECT_STATE_SUCCEEDED, 2)
    assert repositories.head("fix") == commit


async def test_a_pure_call_of_a_killed_gateway_may_be_repeated_at_its_cost(stack: Stack, provider: Provider) -> None:
    attempt = stack.grant()
    read = {"target": "api", "method": "GET", "path": "/ok"}
    async with other_process(stack, "gateway.after_call=kill") as (_, address):
        with pytest.raises(grpc.aio.AioRpcError):
            await invoke(address, attempt, "http.request", read)
    states = "SELECT state, failure_type FROM effect"

    async def adopted() -> bool:
        return [tuple(row) for row in await stack.rows(states)] == [("failed", "PROCESS_DIED")]

    await wait_until(adopted)
    answer = await stack.tool(attempt, "http.request", read, slot="x")
    assert (answer.effect.state, answer.effect.dispatches) == (pb.EFFECT_STATE_SUCCEEDED, 2)
    assert stack.world.facts("effect_unknown") == []


@pytest.mark.requirement("fx.unknown")
async def test_a_process_that_only_stands_still_is_not_dead_and_its_receipt_counts(stack: Stack, provider: Provider) -> None:
    attempt = stack.grant()
    write = {"target": "api", "method": "POST", "path": "/act"}
    async with other_process(stack, "gateway.after_call=pause") as (child, address):
        asking = asyncio.create_task(invoke(address, attempt, "http.request", write))
        await asyncio.wait_for(provider.arrived.wait(), 10)

        async def stopped() -> bool:
            with open(f"/proc/{child.pid}/stat") as stat:
                return stat.read().rpartition(")")[2].split()[0] == "T"

        await wait_until(stopped)
        passes = len(await stack.rows("SELECT 1 FROM gateway_process"))
        assert passes == 2
        joined = asyncio.create_task(stack.tool(attempt, "http.request", write, slot="x"))
        late = await refused(stack.tool(attempt, "http.request", write, slot="x", wait_s=0.6))
        assert late.reason is Reason.EFFECT_IN_FLIGHT
        child.send_signal(signal.SIGCONT)
        assert (await asking).effect.state == pb.EFFECT_STATE_SUCCEEDED
        assert (await joined).replayed
    assert len(provider.asked("/act")) == 1
