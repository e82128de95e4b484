"""Approvals through the command line and the whole installation: asked, looked at, decided; the gateway dies in between."""

import json
import stat
from pathlib import Path

import pytest
from runway.gateway.v1 import gateway_service_pb2 as gw
from runway_sdk.testing import Stack

from libs.testkit.waiting import wait_until
from tests.system.conftest import FLOWS, Counter
from tests.system.flows import paying, spending
from tests.system.test_command_line import runway
from tests.system.test_waits import waits_for


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "keys" / "approver.key"
    monkeypatch.setenv("RUNWAY_APPROVER_KEY", str(path))
    return path


async def pending(stack: Stack, run_id: str) -> str:
    """The run's pending approval, as the command line lists it."""

    async def there() -> str:
        found = json.loads(await runway(stack, "approval", "list", "--run", run_id, "--state", "pending", "-o", "json"))
        return found[0]["approval_id"] if found else ""

    return str(await wait_until(there, timeout_s=30, what="an approval that is asked for"))


@pytest.mark.requirement("fx.approval")
@pytest.mark.requirement("run.explain")
async def test_people_decide_by_the_command_line_and_the_gateway_dies_between(
    stack: Stack, counter: Counter, key_file: Path
) -> None:
    await stack.client.publish(paying)
    async with stack.worker(f"{FLOWS}:paying", worker_id="pays-1"):
        run = await stack.client.launch("paying", 7)
        await waits_for(stack, run.run_id, "approval")
    approval = await pending(stack, run.run_id)
    shown = json.loads(await runway(stack, "approval", "show", approval, "-o", "json"))
    assert (shown["tool"], shown["content"]["json"], shown["need"]) == ("http.request", {"sum": 7}, 1)
    for words in (await runway(stack, "explain", run.run_id), await runway(stack, "run", "describe", run.run_id)):
        assert approval in words
        assert "runway approval" in words
    await runway(stack, "approval", "approve", approval, "--break-glass", code=2)  # without a reason
    yes = json.loads(await runway(stack, "approval", "approve", approval, "--reason", "paid before", "-o", "json"))
    assert (yes["state"], yes["effective"], yes["decisions"][0]["approver"]) == ("approved", True, "reviewer")
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    gone = await stack.kill("gateway")
    await stack.back("gateway", gone)
    async with stack.worker(f"{FLOWS}:paying", worker_id="pays-2"):
        assert await stack.client.result(run.run_id, timeout_s=60) == 1
    assert counter.total(f"/pay/{run.run_id}") == 1

    async def used() -> bool:
        return (await stack.client.approvals.get(approval)).HasField("consumed_at")

    await wait_until(used, what="launch knows that it was used")
    again = json.loads(await runway(stack, "approval", "approve", approval, "-o", "json"))
    assert again["replayed"] is True
    await runway(stack, "approval", "deny", approval, code=1)
    back = json.loads(await runway(stack, "approval", "withdraw", approval, "--reason", "late", "-o", "json", code=1))
    assert back["outcome"] == "already_consumed"
    log = (stack.folder / "stack.log").read_bytes()
    assert key_file.read_bytes().splitlines()[1] not in log


@pytest.mark.requirement("fx.approval")
async def test_a_no_by_the_command_line_and_an_exposed_key(stack: Stack, counter: Counter, key_file: Path) -> None:
    await stack.client.publish(paying)
    async with stack.worker(f"{FLOWS}:paying", worker_id="pays-3"):
        run = await stack.client.launch("paying", 9)
        approval = await pending(stack, run.run_id)
        made = json.loads(await runway(stack, "approval", "key", "new", "-o", "json"))
        await runway(stack, "approval", "key", "new", code=2)
        assert made["key_id"] in await runway(stack, "approval", "key", "list")
        key_file.chmod(0o644)
        await runway(stack, "approval", "deny", approval, code=1)
        key_file.chmod(0o600)
        no = json.loads(await runway(stack, "approval", "deny", approval, "--reason", "too much", "-o", "json"))
        assert no["state"] == "rejected"
        final = await stack.client.wait(run.run_id, settled=True, timeout_s=60)
    assert (final.outcome, final.failure.failure_class) == ("failed", "policy")
    (effect,) = await stack.client.effects(run.run_id)
    assert (effect.state, counter.total(f"/pay/{run.run_id}")) == (gw.EFFECT_STATE_NOT_SENT, 0)


@pytest.mark.requirement("fx.approval")
@pytest.mark.requirement("gw.budget")
async def test_a_person_lets_a_run_spend_more_and_is_not_asked_for_each_call(
    stack: Stack, counter: Counter, key_file: Path
) -> None:
    await stack.client.publish(spending)
    async with stack.worker(f"{FLOWS}:spending", worker_id="spends"):
        run = await stack.client.launch("spending", 5, budget_micros=2_000)
        approval = await pending(stack, run.run_id)
        shown = json.loads(await runway(stack, "approval", "show", approval, "-o", "json"))
        assert shown["total_micros"] == "500"
        assert counter.total(f"/spend/{run.run_id}") == 2, "nothing beyond 250 was sent"
        assert "total_micros" in await runway(stack, "approval", "show", approval)
        await runway(stack, "approval", "approve", approval)
        assert await stack.client.result(run.run_id, timeout_s=60) == 5
    assert counter.total(f"/spend/{run.run_id}") == 5

    async def used() -> bool:
        (only,) = await stack.client.approvals.find(run.run_id)
        return only.HasField("consumed_at")

    await wait_until(used, what="five calls of 100 each, and one question for all that was above 250")
