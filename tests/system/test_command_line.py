"""The command line and grpcurl against a whole installation, as the README shows them."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from runway_sdk import workflow
from runway_sdk.examples.hello import Order, flow, offer, price, stock
from runway_sdk.testing import Stack

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def environ_of(stack: Stack) -> dict[str, str]:
    """Of somebody who sits before this installation."""
    environ = {"PATH": "/usr/bin:/bin", "RUNWAY_PROFILE": str(stack.folder / "data" / "profile.json"), "HOME": "/tmp"}
    return environ | {name: os.environ[name] for name in ("PYTHONPATH", "RUNWAY_APPROVER_KEY") if name in os.environ}


async def runway(stack: Stack, *arguments: str, code: int = 0) -> str:
    done = await asyncio.to_thread(
        subprocess.run,
        [str(BIN / "python"), "-m", "libs.cli.main", *arguments],
        cwd=ROOT,
        env=environ_of(stack),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.mark.requirement("ux.dev")
async def test_publish_launch_list_describe_watch_events(stack: Stack) -> None:
    published = json.loads(await runway(stack, "workflow", "publish", "runway_sdk.examples.hello:flow", "-o", "json"))
    assert published["workflow"].startswith("hello@")
    async with stack.worker("runway_sdk.examples.hello:flow", worker_id="hello-1"):
        given = json.dumps({"item": "tea", "pieces": 3})
        run = json.loads(await runway(stack, "run", "launch", "hello", "-i", given, "--wait", "-o", "json"))
        assert (run["outcome"], run["output"]) == ("succeeded", "3 x tea for 3.09")
        assert json.dumps(run["input"]["pieces"]) == "3"
        run_id = run["run_id"]
        lines = (await runway(stack, "run", "list", "-o", "jsonl")).splitlines()
        assert any(json.loads(line)["run_id"] == run_id for line in lines)
        described = json.loads(await runway(stack, "run", "describe", run_id, "-o", "json"))
        assert {step["step_key"]: step["state"] for step in described["steps"]} == dict.fromkeys(
            ("price", "stock", "offer"), "succeeded"
        )
        assert len(described["attempts"]) == 3
        text = await runway(stack, "run", "describe", run_id)
        assert "price" in text
        assert "succeeded" in text
        watched = await runway(stack, "run", "watch", run_id)
        assert "run.succeeded" in watched
        events = json.loads(await runway(stack, "run", "events", run_id, "-o", "json"))
        assert events[0]["kind"] == "run.accepted"
        workers = json.loads(await runway(stack, "worker", "list", "-o", "json"))
        assert any(worker["worker_id"] == "hello-1" for worker in workers)
    shards = json.loads(await runway(stack, "shard", "list", "-o", "json"))
    assert len(shards) == 64
    assert all(shard["leader"] for shard in shards)
    assert all(shard["live_leases"] == 0 for shard in shards)


async def test_refusals_have_a_sentence_and_an_exit_code(stack: Stack) -> None:
    await stack.client.publish(flow)
    await runway(stack, "run", "launch", "hello", "-i", '{"item": 5}', code=1)
    await runway(stack, "run", "launch", "hello", "-i", "{nonsense", code=2)
    await runway(stack, "run", "describe", "00000000-0000-7000-8000-000000000000", code=1)
    await runway(stack, "run", "watch", "00000000-0000-7000-8000-000000000000", code=1)
    await runway(stack, "run", "launch", "hello", "--class", "royal", code=2)
    await runway(stack, "run", "list", "--state", "nosuch", code=2)
    await runway(stack, "run", "list", "--state", "waiting", code=2)
    await runway(stack, "run", "launch", "hello", "-i", "tea", code=2)
    await runway(stack, "run", "launch", "hello", "--label", "team", code=2)
    named = json.loads(
        await runway(stack, "run", "launch", "hello", "-i", '{"item": "tea", "pieces": 3}', "--label", "team=web", "-o", "json")
    )
    found = await runway(stack, "run", "list", "--label", "team=web", "-o", "jsonl")
    assert [json.loads(line)["run_id"] for line in found.splitlines()] == [named["run_id"]]
    await runway(stack, "run", "cancel", named["run_id"])
    for name in ("nosuch", "./README.md", "runway_sdk.examples.hello:nosuch", "runway_sdk.examples.hello:price"):
        await runway(stack, "workflow", "publish", name, code=2)
        await runway(stack, "worker", "run", name, code=2)
    await runway(stack, "worker", "run", "runway_sdk.examples.hello:flow", "--profile", "/nosuch", code=1)
    run = await stack.client.launch("hello", {"item": "milk", "pieces": 1})
    answer = json.loads(await runway(stack, "run", "cancel", run.run_id, "--reason", "none left", "-o", "json"))
    assert answer["phase"] in ("enforced", "quiesced")
    await runway(stack, "run", "cancel", run.run_id)  # once more is the same


async def test_reflection_serves_launch_watch_and_cancel_to_grpcurl_and_buf(stack: Stack) -> None:
    await stack.client.publish(flow)
    address, key = stack.target.address, f"authorization: Bearer {stack.target.api_key}"

    async def call(*command: str) -> str:
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def grpcurl(method: str, request: object) -> tuple[str, ...]:
        data = json.dumps(request)
        service = "runway.launch.v1.LaunchService"
        return (str(BIN / "grpcurl"), "-plaintext", "-H", key, "-d", data, address, f"{service}/{method}")

    assert "runway.launch.v1.LaunchService" in await call(str(BIN / "grpcurl"), "-plaintext", address, "list")
    launched = json.loads(await call(*grpcurl("LaunchRun", {"workflow": "hello", "input": {"item": "tea", "pieces": 3}})))
    run_id = launched["run"].get("runId") or launched["run"]["run_id"]
    cancelled = json.loads(await call(*grpcurl("CancelRun", {"run_id": run_id, "reason": "changed my mind"})))
    assert cancelled["phase"] in ("CANCEL_PHASE_ENFORCED", "CANCEL_PHASE_QUIESCED")
    watched = await call(*grpcurl("WatchRun", {"run_id": run_id}))
    assert "run.cancelled" in watched
    url = f"http://{address}/runway.launch.v1.LaunchService/GetRun"
    buf = (
        str(BIN / "buf"),
        "curl",
        "--protocol",
        "grpc",
        "--http2-prior-knowledge",
        "-H",
        key,
        "-d",
        json.dumps({"runId": run_id}),
        url,
    )
    assert json.loads(await call(*buf))["run"]["outcome"] == "cancelled"


@pytest.mark.requirement("sched.switch")
async def test_operators_hold_drain_and_release(stack: Stack) -> None:
    why = ("--reason", "a test", "-o", "json")
    await runway(stack, "queue", "hold", "hello.price@nobody", *why, code=1)
    held = json.loads(await runway(stack, "queue", "hold", "dev", "--unseen", *why))
    assert (held["changed"], [replica["acted"] for replica in held["replicas"]]) == (True, [True])
    assert [hold["name"] for hold in json.loads(await runway(stack, "hold", "list", "-o", "json"))] == ["dev"]
    await runway(stack, "queue", "hold", "dev", code=2)  # no reason
    await runway(stack, "queue", "release", "dev", *why)
    await runway(stack, "queue", "release", "dev", *why, code=1)
    step = "01900000-0000-7000-8000-000000000001/price"
    await runway(stack, "queue", "hold", step, "--step", *why, code=1)  # never seen
    one = json.loads(await runway(stack, "queue", "hold", step, "--step", "--drain", "--unseen", *why))
    assert (one["hold"]["name"], one["hold"]["mode"], one["changed"]) == (step, "HOLD_MODE_DRAIN", True)
    await runway(stack, "queue", "hold", "price", "--step", "--unseen", *why, code=1)  # names no run
    await runway(stack, "queue", "release", step, *why, code=1)  # no such queue
    assert json.loads(await runway(stack, "queue", "release", step, "--step", *why))["hold"]["name"] == step
    await runway(stack, "worker", "drain", "dev/nobody", *why, code=1)
    assert json.loads(await runway(stack, "worker", "drain", "dev/w", "--unseen", "--dry-run", *why))["changed"] is False
    await runway(stack, "shard", "drain", "3", *why, code=1)  # there is no other process
    await runway(stack, "shard", "hold", "3", *why)
    released = json.loads(await runway(stack, "shard", "release", "3", *why))
    assert released == [{"shard_id": 3, "returned": False, "released": True}]
    assert json.loads(await runway(stack, "queue", "describe", "-o", "json")) == []


@pytest.mark.requirement("sched.fair")
async def test_operators_look_at_shares_and_change_them(stack: Stack) -> None:
    why = ("--reason", "a test", "-o", "json")
    await runway(stack, "share", "put", "dev", *why, code=2)  # nothing to change
    await runway(stack, "share", "put", "dev", "--weight", "2", code=2)  # no reason
    await runway(stack, "share", "put", "dev/p", "--weight", "2", *why, code=1)  # a project has none
    put = json.loads(await runway(stack, "share", "put", "dev", "--weight", "2", "--most-leases", "900", *why))
    assert (put["weight"], put["most_leases"]) == (2, 900)
    await runway(stack, "share", "put", "dev", "--weight", "3", "--expected-version", "1", *why, code=1)
    rows = json.loads(await runway(stack, "share", "list", "-o", "json"))
    row = next(row for row in rows if row["tenant"] == "dev" and not row["project"])
    assert (row["weight"], row["most_leases"], row["live_leases"]) == (2, 900, 0)
    await runway(stack, "share", "policy", "--reserve", "200", code=2)  # no reason
    policy = json.loads(await runway(stack, "share", "policy", "--reserve", "200", "--half-life-s", "60", *why))
    assert (policy["reserve_permille"], policy["migration_permille"]) == (200, 500)
    assert json.loads(await runway(stack, "share", "policy", "-o", "json")) == policy
    changes = json.loads(await runway(stack, "share", "changes", "-o", "json"))
    assert [change["reason"] for change in changes] == ["a test", "a test"]


unheard = workflow("unheard", steps=[price, stock, offer], input=Order)
"""That no worker ever carried."""


@pytest.mark.requirement("run.explain")
async def test_explain_says_what_blocks_in_order_to_people_and_to_programs(stack: Stack) -> None:
    await stack.client.publish(unheard)
    run = await stack.client.launch("unheard", {"item": "tea", "pieces": 1})
    steps: list[dict[str, Any]] = []
    async with asyncio.timeout(20):
        while not steps or [found["code"] for found in steps[0]["blockers"]] != ["NO_WORKER_CARRIES_BUILD"]:
            steps = json.loads(await runway(stack, "explain", run.run_id, "--json"))["steps"]
    assert [step["step_key"] for step in steps] == ["price", "stock", "offer"]
    assert [found["code"] for found in steps[2]["blockers"]] == ["NEEDS"]
    text = await runway(stack, "explain", run.run_id, "price")
    assert text.splitlines()[0] == f"run {run.run_id} is accepted"
    assert "    NO_WORKER_CARRIES_BUILD: no worker seen lately carries unheard.price@" in text
    assert "      -> start a worker with this very build" in text
    assert "place 1 of 1 in its line" in text
    await runway(stack, "explain", run.run_id, "nosuch", code=1)
    await runway(stack, "explain", "00000000-0000-7000-8000-000000000000", code=1)
    await stack.client.cancel(run.run_id)
    assert "RUN_" in await runway(stack, "explain", run.run_id)


@pytest.mark.requirement("sched.simulate")
async def test_what_ran_is_recorded_and_replayed_under_other_shares(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "day.jsonl"
    async with stack.worker("runway_sdk.examples.hello:flow", worker_id="hello-1"):
        await stack.client.publish(flow)
        runs = [await stack.client.launch("hello", {"item": "tea", "pieces": n}) for n in range(5)]
        for run in runs:
            await stack.client.result(run.run_id, timeout_s=30)
    await runway(stack, "share", "put", "dev", "--weight", "3", "--reason", "a test")
    async with asyncio.timeout(20):  # the last ends are written down a moment after they are told
        while True:
            await runway(stack, "queue", "record", str(file), "--hours", "1")
            header, *lines = [json.loads(line) for line in file.read_text().splitlines()]
            mine = [line for line in lines if line["run"] in {run.run_id for run in runs}]
            if len(mine) == 15 and all(line["duration_ms"] is not None for line in mine):
                break
    assert header["recording"] == 1
    assert header["shares"][0]["weight"] == 3
    assert {line["handler"].split("@")[0] for line in mine} == {"hello.price", "hello.stock", "hello.offer"}
    done = json.loads(await runway(stack, "queue", "simulate", str(file), "--bound", f"{mine[0]['tenant']}=1", "-o", "json"))
    (row,) = [row for row in done["rows"] if row["name"] == mine[0]["tenant"]]
    assert row["was"]["tickets"] == len(lines)
    assert row["now"]["waits"]["most"] >= row["was"]["waits"]["most"]
    assert row["recorded_waits"]["most"] >= 0
    text = await runway(stack, "queue", "simulate", str(file), "--own-slots", f"{mine[0]['tenant']}=0")
    assert "share of slots while two or more of them waited" in text
    await runway(stack, "queue", "simulate", str(file), "--weight", "a=x", code=2)
    file.write_text('{"ready_ms": 1}\n')
    await runway(stack, "queue", "simulate", str(file), code=1)
    await runway(stack, "queue", "simulate", str(tmp_path / "nosuch"), code=2)
    await runway(stack, "queue", "record", str(tmp_path / "no" / "such"), code=2)
    await runway(stack, "queue", "record", str(file), "--until", "noon", code=2)


@pytest.mark.requirement("sec.tenant")
@pytest.mark.requirement("project.onboard")
async def test_admins_make_keys_and_suspend_projects(stack: Stack) -> None:
    json_ = ("-o", "json")
    made = json.loads(await runway(stack, "key", "create", "-r", "auditor", "--name", "aud", "--expires", "2h", *json_))
    assert made["api_key"].startswith("rk_")
    assert made["created_by"] == "key:dev"
    listed = json.loads(await runway(stack, "key", "list", *json_))
    assert made["key_id"] in {key["key_id"] for key in listed}
    assert made["api_key"] not in json.dumps(listed)
    revoked = json.loads(await runway(stack, "key", "revoke", made["key_id"], *json_))
    assert revoked["revoked_by"] == "key:dev"
    once = ("key", "create", "-r", "auditor", "--request-id", "once", *json_)
    first, again = json.loads(await runway(stack, *once)), json.loads(await runway(stack, *once))
    assert (again["key_id"], bool(first["api_key"]), again["api_key"]) == (first["key_id"], True, "")
    await runway(stack, "key", "create", "-r", "admin", "--request-id", "once", code=1)  # another request
    await runway(stack, "key", "create", "-r", "king", code=2)
    await runway(stack, "key", "create", "-r", "admin", "--expires", "soon", code=2)
    assert json.loads(await runway(stack, "project", "create", "web", *json_))["created"]
    suspended = json.loads(await runway(stack, "project", "suspend", "web", "--reason", "audit", *json_))
    assert (suspended["state"], suspended["reason"]) == ("suspended", "audit")
    assert json.loads(await runway(stack, "project", "resume", "web", *json_))["state"] == "active"
    await runway(stack, "project", "suspend", "nowhere", "--reason", "audit", code=1)
    assert "web" in {row["project"] for row in json.loads(await runway(stack, "project", "list", *json_))}
