"""What operators type at night, against a whole installation: each verb once as it should go, and where it is refused."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from runway_sdk import ApproverKey
from runway_sdk.testing import Stack

from libs.testkit.waiting import wait_until
from tests.system.conftest import FLOWS
from tests.system.flows import asking, endure, enduring, waiting
from tests.system.prompt import Prompt, prompting
from tests.system.test_command_line import environ_of

WHY = ("--reason", "a test", "-o", "json")
JSON = ("-o", "json")


@pytest.fixture(scope="module")
async def runway(stack: Stack) -> AsyncIterator[Prompt]:
    async with prompting(environ_of(stack)) as prompt:
        yield prompt


async def told(runway: Prompt, *arguments: str, **environ: str) -> Any:
    return json.loads(await runway(*arguments, **environ))


async def refused(runway: Prompt, *commands: tuple[int, tuple[str, ...]]) -> None:
    """Commands that change nothing, with the exit status of each."""
    for code, arguments in commands:
        await runway(*arguments, code=code)


@pytest.mark.requirement("sched.switch")
async def test_scopes_are_drained_killed_listed_and_released(runway: Prompt) -> None:
    tool = ("tool", "nosuch.tool")
    dry = await told(runway, "scope", "drain", *tool, "--dry-run", *WHY)
    assert (dry["dry_run"], dry["changed"]) == (True, False)
    await refused(
        runway,
        (2, ("scope", "kill", *tool)),  # no reason
        (2, ("scope", "kill", "planet", "earth", *WHY)),
        (1, ("scope", "kill", "tenant", "nobody", *WHY)),  # never seen
    )
    drained = await told(runway, "scope", "drain", *tool, *WHY)
    assert (drained["changed"], drained["scope"]["reason"]) == (True, "a test")
    assert [point["enforced"] for point in drained["scope"]["points"]] == [True] * 3
    killed = await told(runway, "scope", "kill", *tool, *WHY)
    assert killed["scope"]["epoch"] > drained["scope"]["epoch"]
    await runway("scope", "release", *tool, "--expected-epoch", "1", *WHY, code=1)
    (row,) = await told(runway, "scope", "list", *JSON)
    assert (row["kind"], row["name"], row["mode"]) == (*tool, "killed")
    assert {*row["points"].split(", ")} == {"gateway", "checkpoint", "scheduler"}
    await runway("scope", "release", *tool, *WHY)
    assert await told(runway, "scope", "list", *JSON) == []
    assert [row["mode"] for row in await told(runway, "scope", "list", "--all", *JSON) if row["name"] == tool[1]] == ["open"]


@pytest.mark.requirement("sched.buckets")
async def test_buckets_are_put_weighed_listed_and_removed(runway: Prompt) -> None:
    provider = ("provider", "nosuch-provider")
    await refused(
        runway,
        (2, ("bucket", "put", *provider, "--per-minute", "60")),  # no reason
        (2, ("bucket", "put", "planet", "earth", "--per-minute", "60", *WHY)),
        (1, ("bucket", "weight", *provider, "dev", "3", *WHY)),  # there is none yet
    )
    put = await told(runway, "bucket", "put", *provider, "--per-minute", "600", *WHY)
    assert (put["kind"], put["name"], put["unit"], put["capacity"], put["per_minute"]) == (*provider, "calls", 10, 600)
    weighed = await told(runway, "bucket", "weight", *provider, "dev", "3", *WHY)
    assert (weighed["tenant"], weighed["weight"]) == ("dev", 3)
    version = str(put["version"])
    if weighed["version"] != put["version"]:
        await runway("bucket", "put", *provider, "--per-minute", "60", "--expected-version", version, *WHY, code=1)
    rows = {row["name"]: row for row in await told(runway, "bucket", "list", *JSON)}
    assert rows[provider[1]]["per_minute"] == 600
    await runway("bucket", "remove", *provider, *WHY)
    assert provider[1] not in {row["name"] for row in await told(runway, "bucket", "list", *JSON)}
    changes = [change for change in await told(runway, "bucket", "changes", *JSON) if change["name"] == provider[1]]
    assert len(changes) == 3
    assert {change["reason"] for change in changes} == {"a test"}


@pytest.mark.requirement("sched.switch")
async def test_shards_are_held_and_only_a_lost_etcd_resets_them(runway: Prompt) -> None:
    await refused(
        runway,
        (1, ("shard", "drain", "3", "--dry-run", *WHY)),  # there is no other process
        (2, ("shard", "drain", *WHY)),  # of what?
        (2, ("shard", "hold", "64", *WHY)),
        (2, ("shard", "reset", *WHY)),  # nothing but a lost etcd is a reason
    )
    assert (await told(runway, "shard", "hold", "5", "--dry-run", *WHY))["changed"] is False
    held = await told(runway, "shard", "hold", "5", *WHY)
    assert (held["changed"], [replica["acted"] for replica in held["replicas"]]) == (True, [True])
    assert [(hold["kind"], hold["name"]) for hold in await told(runway, "hold", "list", *JSON)] == [(held["hold"]["kind"], "5")]
    epochs = {shard["shard_id"]: shard["authority_epoch"] for shard in await told(runway, "shard", "list", *JSON)}
    assert (await told(runway, "shard", "reset", "--etcd-lost", *WHY))["until"]
    await runway("shard", "release", "5", *WHY)
    after = {shard["shard_id"]: shard["authority_epoch"] for shard in await told(runway, "shard", "list", *JSON)}
    assert after == epochs, "where etcd lost nothing a reset does nothing"


@pytest.mark.requirement("sched.switch")
async def test_a_drained_worker_gets_nothing_and_what_waits_is_described(stack: Stack, runway: Prompt) -> None:
    await stack.client.publish(enduring)
    async with stack.worker(f"{FLOWS}:enduring", worker_id="drained-by-hand"):
        first = await stack.client.launch("enduring", {"stays": False})
        await stack.client.wait(first.run_id, settled=True, timeout_s=30)
        worker = f"{first.tenant}/drained-by-hand"

        async def seen() -> bool:
            return "drained-by-hand" in {row["worker_id"] for row in await told(runway, "worker", "list", *JSON)}

        await wait_until(seen, what="the worker in the list")
        await runway("worker", "drain", "drained-by-hand", *WHY, code=2)  # of which tenant?
        drained = await told(runway, "worker", "drain", worker, *WHY)
        assert drained["changed"]
        assert drained["replicas"]
        assert all(replica["acted"] for replica in drained["replicas"]), "every scheduler says that it acts on it"
        (row,) = [row for row in await told(runway, "worker", "list", *JSON) if row["worker_id"] == "drained-by-hand"]
        assert (row["state"], row["labels"], row["region"]) == ("drained by an operator: a test", "", "")
        listed = await runway("hold", "list")
        assert not {"HOLD_KIND", "HOLD_MODE"} & {*re.findall("HOLD_[A-Z]+", listed)}, "people do not read enums"
        assert worker in listed
        run = await stack.client.launch("enduring", {"stays": False})

        async def described() -> list[dict[str, Any]]:
            rows = await told(runway, "queue", "describe", run.tenant, *JSON)
            return [row for row in rows if row["handler"].startswith(f"enduring.{endure.key}@") and int(row["waiting"])]

        (row,) = await wait_until(described, timeout_s=30, what="a queue with something in it")
        assert (row["tenant"], row["project"], int(row["waiting"]), int(row["live_leases"])) == (run.tenant, run.project, 1, 0)
        assert row["oldest_at"]
        held = f"{run.run_id}/{endure.key}"
        await runway("queue", "hold", held, "--step", *WHY)
        assert f"held step: {held} (a test)" in await runway("queue", "describe", run.tenant)
        await runway("queue", "release", held, "--step", *WHY)
        assert await stack.client.attempts(run.run_id) == []
        await runway("worker", "release", worker, *WHY)
        assert (await stack.client.wait(run.run_id, settled=True, timeout_s=30)).outcome == "succeeded"
        await runway("run", "cancel", run.run_id, code=1)  # it came too late


@pytest.mark.requirement("run.pause")
async def test_a_run_is_paused_resumed_cancelled_and_retried(stack: Stack, runway: Prompt) -> None:
    await stack.client.publish(waiting)
    run = await stack.client.launch("waiting")
    paused = await told(runway, "run", "pause", run.run_id, "--reason", "a test", *JSON)
    assert paused["state"] in ("pausing", "paused")
    assert {receipt["point"] for receipt in paused["receipts"]} >= {"scheduler"}
    assert (await told(runway, "run", "describe", run.run_id, *JSON))["state"] in ("pausing", "paused")
    resumed = await told(runway, "run", "resume", run.run_id, *JSON)
    assert resumed["state"] not in ("pausing", "paused")
    assert int(resumed["epoch"]) > run.epoch
    assert (await told(runway, "run", "resume", run.run_id, *JSON))["epoch"] == resumed["epoch"], "once is enough"
    await refused(
        runway,
        (1, ("run", "retry", run.run_id)),  # it has not ended
        (1, ("run", "pause", "00000000-0000-7000-8000-000000000000")),
    )
    await stack.client.cancel(run.run_id)
    await stack.client.wait(run.run_id, settled=True, timeout_s=30)
    again = await told(runway, "run", "retry", run.run_id, "--request-id", "once more", *JSON)
    assert again["forked_from"] == run.run_id
    assert (await told(runway, "run", "retry", run.run_id, "--request-id", "once more", *JSON))["run_id"] == again["run_id"]
    await runway("run", "pause", run.run_id, code=1)  # it is over
    await stack.client.cancel(again["run_id"])


@pytest.mark.requirement("fx.approval")
async def test_an_approver_s_key_is_registered_and_revoked(runway: Prompt, tmp_path: Path) -> None:
    path = tmp_path / "approver.key"
    mine = {"RUNWAY_APPROVER_KEY": str(path)}
    await runway("approval", "key", "register", code=2, **mine)  # there is none yet
    key = ApproverKey.generate()
    key.write(path)
    registered = await told(runway, "approval", "key", "register", *JSON, **mine)
    assert registered["key_id"] == key.key_id
    assert not registered.get("revoked_at")
    revoked = await told(runway, "approval", "key", "revoke", key.key_id, *JSON, **mine)
    assert revoked["revoked_at"]
    rows = {row["key_id"]: row for row in await told(runway, "approval", "key", "list", *JSON)}
    assert rows[key.key_id]["revoked_at"] == revoked["revoked_at"]
    await runway("approval", "key", "revoke", "0" * 32, code=1)


@pytest.mark.requirement("money.settle")
async def test_the_meter_is_listed_with_what_each_call_used(stack: Stack, runway: Prompt) -> None:
    await stack.client.publish(asking)
    async with stack.worker(f"{FLOWS}:asking", worker_id="asks"):
        run = await stack.client.launch("asking", "what now?")
        assert (await stack.client.wait(run.run_id, settled=True, timeout_s=30)).outcome == "succeeded"
    events = await wait_until(lambda: stack.client.trees.meter(run.run_id), what="a meter event")
    rows = await told(runway, "budget", "meter", run.run_id, *JSON)
    assert [(row["run_id"], row["tool"], row["micros"], row["tokens"]) for row in rows] == [
        (run.run_id, "model:summary", event.micros, event.tokens) for event in events
    ]
    assert sum(row["micros"] for row in rows) == 200, "1,000 tokens in for 100 micros, 500 out for 100"
    assert rows[0] in await told(runway, "budget", "meter", *JSON)
    await runway("budget", "meter", "00000000-0000-7000-8000-000000000000", code=1)
