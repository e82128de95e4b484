"""What the command line says where something is missing, only looked at, or over: enough to go on without asking anybody."""

import asyncio
import json
import subprocess
from typing import Any

import pytest
from runway_sdk.examples.hello import flow
from runway_sdk.testing import Stack

from libs.testkit.waiting import wait_until
from tests.system.conftest import FLOWS, Counter
from tests.system.flows import paying
from tests.system.test_approvals import key_file, pending
from tests.system.test_command_line import BIN, ROOT, environ_of, runway

__all__ = ["key_file"]
HELLO = "runway_sdk.examples.hello:flow"


async def said(stack: Stack, *arguments: str, code: int | None) -> str:
    """All that a command writes; `code` None: however it ends."""
    command = [str(BIN / "python"), "-m", "libs.cli.main", *arguments]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, env=environ_of(stack), capture_output=True, text=True, timeout=60
    )
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return str(done.stdout + done.stderr)


async def told(stack: Stack, *arguments: str) -> Any:
    """What a program is told."""
    return json.loads(await runway(stack, *arguments, "-o", "json"))


async def listed(stack: Stack, *command: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = await told(stack, *command)
    return found


@pytest.mark.requirement("run.explain")
async def test_a_worker_that_ended_in_order_is_gone_at_once(stack: Stack) -> None:
    await stack.client.publish(flow)
    async with stack.worker(HELLO, worker_id="leaves-1") as worker:

        async def seen() -> bool:
            return any(row["worker_id"] == "leaves-1" for row in await listed(stack, "worker", "list"))

        await wait_until(seen, what="a worker in the list")
        (row,) = [row for row in await listed(stack, "worker", "list") if row["worker_id"] == "leaves-1"]
        assert row["state"] == "at work"
        await worker.stop()
    run = await stack.client.launch("hello", {"item": "tea", "pieces": 1})

    async def explained() -> bool:
        return "price" in await said(stack, "explain", run.run_id, code=0)

    await wait_until(explained, what="steps that are explained")
    assert "NO_WORKER_CARRIES_BUILD" in await said(stack, "explain", run.run_id, code=0)

    async def gone() -> bool:
        return not any(row["worker_id"] == "leaves-1" for row in await listed(stack, "worker", "list"))

    await wait_until(gone, 20.0, what="a list without it")
    sick = await said(stack, "doctor", "-o", "json", code=None)  # other tests of this installation leave cases undecided
    checks = {row["check"]: row["detail"] for row in json.loads(sick)}
    assert "at work" in checks["workers"]
    assert f"runway explain {run.run_id}" in checks["work without a worker"]
    await stack.client.cancel(run.run_id)


async def test_what_is_missing_is_named_with_what_to_do(stack: Stack) -> None:
    unpublished = await said(stack, "run", "launch", "never-published", code=1)
    assert "no such workflow 'never-published'" in unpublished
    assert "runway workflow publish MODULE:NAME" in unpublished
    nameless = await said(stack, "worker", "drain", "leaves-1", "--reason", "a test", code=2)
    assert "TENANT/leaves-1" in nameless
    no_project = await said(stack, "key", "create", "--role", "worker", "--name", "n", "--project", "nope", code=1)
    assert "runway project create nope" in no_project


async def test_a_dry_run_says_that_it_is_one(stack: Stack) -> None:
    why = ("--reason", "a test", "--dry-run")
    for command in (
        ("scope", "drain", "tenant", "default", *why),
        ("queue", "hold", "default", *why),
        ("worker", "drain", "default/nobody", "--unseen", *why),
    ):
        assert "dry run: nothing was changed" in await said(stack, *command, code=0), command
        assert (await told(stack, *command))["dry_run"] is True
    assert not await listed(stack, "hold", "list")
    assert not await listed(stack, "scope", "list")


async def test_weights_are_shown_where_there_are_any(stack: Stack) -> None:
    await said(stack, "share", "put", "default", "--user", "ann", "--most-leases", "3", "--reason", "a test", code=0)
    (mine,) = [row for row in await listed(stack, "share", "list") if row["user"] == "ann"]
    assert (mine["weight"], mine["most_leases"]) == (None, 3)
    why = ("--reason", "a test")
    await said(stack, "bucket", "put", "tool", "http.request", "--per-minute", "60000", "--capacity", "60000", *why, code=0)
    row = await told(stack, "bucket", "weight", "tool", "http.request", "default", "7", *why)
    assert (row["kind"], row["name"], row["tenant"], row["weight"]) == ("tool", "http.request", "default", 7)
    await said(stack, "bucket", "remove", "tool", "http.request", *why, code=0)


@pytest.mark.requirement("fx.approval")
async def test_an_operator_breaks_the_glass_after_the_reviewer_has_used_his_key(
    stack: Stack, counter: Counter, key_file: Any
) -> None:
    await stack.client.publish(paying)
    async with stack.worker(f"{FLOWS}:paying", worker_id="pays-4"):
        runs = [await stack.client.launch("paying", sum_) for sum_ in (11, 12)]
        first, second = [await pending(stack, run.run_id) for run in runs]
        await said(stack, "approval", "approve", first, "--reason", "as always", code=0)
        broken = await told(stack, "approval", "approve", second, "--break-glass", "--reason", "at night")
        (decision,) = broken["decisions"]
        assert (decision["approver"], decision["break_glass"]) == ("dev", True)
        assert key_file.with_name("approver-operator.key").exists()
        for run in runs:
            assert await stack.client.result(run.run_id, timeout_s=60) == 1
