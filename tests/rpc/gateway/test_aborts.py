"""Calls under way of a run that is closed: connections closed, processes signalled, and nothing said that is not so."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from runway.gateway.v1 import gateway_service_pb2 as pb
from runway_sdk.values import from_value, to_value

from libs.kernel.epochs import Mode
from libs.telemetry.catalogue import EFFECTS_ABORTED
from libs.testkit.waiting import wait_until
from tests.rpc.gateway.harness import Attempt, Repositories, Stack, asked, gateway_stack, stored
from tests.rpc.gateway.provider import Provider, listening

SUCCEEDED, FAILED, NOT_SENT = pb.EFFECT_STATE_SUCCEEDED, pb.EFFECT_STATE_FAILED, pb.EFFECT_STATE_NOT_SENT
BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 50}
SOON_S = 15.0
"""For a busy machine; what is cut would take a minute and more."""


@pytest.fixture
def call_timeout_ms() -> int:
    return 60_000


def call(method: str, path: str = "/act") -> dict[str, Any]:
    return {"target": "api", "method": method, "path": path}


def generate(stack: Stack, attempt: Attempt, slot: str = "m") -> "asyncio.Task[Any]":
    request = pb.GenerateRequest(model="small", body=to_value(BODY), slot=slot)
    return asyncio.create_task(asked(stack.gateway(attempt).Generate(request)))


async def closed(stack: Stack, attempt: Attempt) -> None:
    """As another gateway process would commit it: this one hears nothing."""
    await stack.rows("UPDATE run_gate SET epoch = epoch + 1, mode = 2, outcome = 'cancelled' WHERE run_id = $1", attempt.run_id)


async def slot_of(stack: Stack, attempt: Attempt, *states: int) -> pb.Effect:
    async def there() -> pb.Effect | None:
        (effect,) = await stack.ledger(attempt)
        return effect if effect.state in states else None

    found = await wait_until(there, timeout_s=SOON_S, what="an outcome")
    assert found is not None
    return found


@dataclass
class Silent:
    """A model's provider that begins to answer and never ends: `left` is set when its caller has gone."""

    port: int = 0
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    head: bytes = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n{"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.decode().lower().split("\r\n") if line.startswith("content-length"))
            await reader.readexactly(int(length.partition(":")[2]))
            writer.write(self.head)
            await writer.drain()
            self.begun.set()
            assert await reader.read(1) == b""
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.left.set()
            writer.close()


@asynccontextmanager
async def silent() -> AsyncIterator[Silent]:
    found = Silent()
    async with listening(found.serve) as found.port:
        yield found


@pytest.fixture
async def model(configured: None, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Silent]:
    async with silent() as found:
        route = {"base_url": f"http://127.0.0.1:{found.port}/v1", "model": "x", "price_micros_per_1k_output": 2000}
        monkeypatch.setenv("RUNWAY_GATEWAY_MODELS", json.dumps({"small": route}))
        monkeypatch.setenv("RUNWAY_GATEWAY_ABORT_INTERVAL_MS", "600000")  # who takes the raise needs no look
        yield found


@pytest.mark.requirement("run.abort")
async def test_a_model_call_of_a_cancelled_run_ends_at_once_and_its_provider_sees_it(model: Silent, stack: Stack) -> None:
    counted = EFFECTS_ABORTED.labels("model:small")._value.get()
    attempt = stack.grant(models=["small"])
    asking = generate(stack, attempt)
    await asyncio.wait_for(model.begun.wait(), SOON_S)
    raised = await stack.raise_gate(attempt.run_id, 2, Mode.CLOSED, "cancelled")
    assert [(effect.slot, effect.state) for effect in raised.unresolved] == [("m", "requested")]
    await asyncio.wait_for(model.left.wait(), SOON_S)
    told = (await asyncio.wait_for(asking, SOON_S)).effect
    assert (told.state, told.failure.type, told.failure.failure_class) == (FAILED, "ABORTED", "policy")
    assert told.cost_micros == 100, "what was held: the provider may have worked for it"
    (row,) = await stack.rows("SELECT held, used FROM run_gate")
    assert (row["held"], row["used"]) == (0, 100)
    assert await stack.rows("SELECT cause FROM effect_dispatch WHERE cause = 'aborted'")
    await wait_until(lambda: stack.world.facts("point_quiesced", "launch"), timeout_s=SOON_S, what="a quiet run")
    (fact,) = stack.world.facts("point_quiesced", "launch")
    assert (fact.epoch, fact.used_micros) == (2, 100)
    assert EFFECTS_ABORTED.labels("model:small")._value.get() == counted + 1


@pytest.mark.requirement("run.abort")
async def test_what_another_process_was_told_is_found_within_moments_and_a_pause_cuts_nothing(
    stack: Stack, provider: Provider
) -> None:
    provider.gates = {path: asyncio.Event() for path in ("/closed", "/paused", "/post")}
    ended, paused, acting = [stack.grant() for _ in range(3)]
    pure = asyncio.create_task(stack.tool(ended, "http.request", call("GET", "/closed"), slot="x"))
    waits = asyncio.create_task(stack.tool(paused, "http.request", call("GET", "/paused"), slot="x"))
    posts = asyncio.create_task(stack.tool(acting, "http.request", call("POST", "/post"), slot="x"))
    await wait_until(lambda: len(provider.requests) == 3, timeout_s=SOON_S, what="three calls")
    await stack.raise_gate(paused.run_id, 1, Mode.DRAINING)
    await closed(stack, acting)
    await closed(stack, ended)
    told = (await asyncio.wait_for(pure, SOON_S)).effect
    assert (told.state, told.failure.type) == (FAILED, "ABORTED")
    for path in ("/paused", "/post"):  # the look that found the one has seen the others
        provider.gates[path].set()
    assert (await asyncio.wait_for(waits, SOON_S)).effect.state == SUCCEEDED, "a pause waits for what is under way"
    answer = (await asyncio.wait_for(posts, SOON_S)).effect
    assert (answer.state, from_value(answer.result)["status"]) == (SUCCEEDED, 200), "it happened, and that is known"


GIT = """#!/bin/sh
for word in "$@"; do
    if [ "$word" = "{verb}" ] && [ ! -e "{folder}/go" ]; then
        {trap}
        echo $$ > "{folder}/pid.new" && mv "{folder}/pid.new" "{folder}/pid"
        while [ ! -e "{folder}/go" ]; do sleep 0.05; done
    fi
done
exec "{real}" "$@"
"""
KIND = {"asked": "trap 'echo TERM > \"{folder}/told\"; exit 1' TERM", "deaf": "trap '' TERM"}


@dataclass
class Slow:
    """A git that waits before it does what the test names, and says whether it was asked to end."""

    folder: Path

    async def pid(self) -> int:
        await wait_until(lambda: (self.folder / "pid").exists(), timeout_s=SOON_S, what="git that waits")
        return int((self.folder / "pid").read_text())

    def go(self) -> None:
        (self.folder / "go").write_text("")


def slow_git(folder: Path, monkeypatch: pytest.MonkeyPatch, verb: str, kind: str = "asked") -> Slow:
    real = shutil.which("git")
    program = folder / "git"
    folder.mkdir()
    program.write_text(GIT.format(verb=verb, folder=folder, real=real, trap=KIND[kind].format(folder=folder)))
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return Slow(folder)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def push(stack: Stack, attempt: Attempt, repositories: Repositories) -> tuple[str, dict[str, Any]]:
    commit = repositories.commit("two")
    bundle = stored(stack.world, attempt.run_id, repositories.bundle())
    return commit, {"remote": "origin", "branch": "fix", "bundle": bundle, "commit": commit, "expected_old": ""}


@pytest.mark.requirement("run.abort")
@pytest.mark.parametrize("kind", ["asked", "deaf"])
async def test_a_git_that_has_pushed_nothing_yet_is_asked_to_end_and_then_made_to(
    stack: Stack, repositories: Repositories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    attempt = stack.grant()
    _, arguments = push(stack, attempt, repositories)
    git = slow_git(tmp_path / "slow", monkeypatch, "ls-remote", kind)
    asking = asyncio.create_task(stack.tool(attempt, "git.push", arguments, slot="push"))
    pid = await git.pid()
    assert alive(pid)
    await stack.raise_gate(attempt.run_id, 2, Mode.CLOSED, "cancelled")
    await wait_until(lambda: not alive(pid), timeout_s=SOON_S, what="the end of git")
    effect = await slot_of(stack, attempt, NOT_SENT)
    assert (effect.failure.type, effect.evidence.startswith("cut before it began")) == ("ABORTED", True)
    assert (git.folder / "told").exists() == (kind == "asked")
    await asyncio.gather(asking, return_exceptions=True)
    await wait_until(lambda: stack.world.facts("point_quiesced", "launch"), timeout_s=SOON_S, what="a quiet run")
    git.go()
    assert repositories.head("fix") == ""


@pytest.mark.requirement("run.abort")
async def test_a_push_that_has_begun_is_waited_for(
    stack: Stack, repositories: Repositories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, other = stack.grant(), stack.grant()
    commit, arguments = push(stack, attempt, repositories)
    git = slow_git(tmp_path / "slow", monkeypatch, "push")
    asking = asyncio.create_task(stack.tool(attempt, "git.push", arguments, slot="push"))
    pid = await git.pid()
    await stack.raise_gate(attempt.run_id, 2, Mode.CLOSED, "cancelled")
    await stack.tool(other, "http.request", call("GET"))  # answered after the raise was obeyed
    assert alive(pid)
    git.go()
    answer = await asyncio.wait_for(asking, SOON_S)
    assert (answer.effect.state, repositories.head("fix")) == (SUCCEEDED, commit)
    assert not (git.folder / "told").exists()


async def test_every_tool_says_how_it_is_cut(stack: Stack) -> None:
    tools = (await asked(stack.gateway().ListTools(pb.ListToolsRequest()))).tools
    assert {tool.name: tool.abort for tool in tools} == {"git.push": "signal", "http.request": "close", "small": "close"}


async def test_a_process_that_ends_leaves_what_nobody_knows(
    model: Silent, gateway_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the process cancels the same task: that is no abort, and is not called one."""
    monkeypatch.setenv("RUNWAY_GATEWAY_STOP_GRACE_MS", "50")
    async with gateway_stack(gateway_url) as stack:
        attempt = stack.grant(models=["small"])
        asking = generate(stack, attempt)
        await asyncio.wait_for(model.begun.wait(), SOON_S)
        rows = await stack.rows("SELECT state FROM effect_dispatch")
        assert [row["state"] for row in rows] == ["requested"]
    await asyncio.gather(asking, return_exceptions=True)
    assert [row["state"] for row in await stack.rows("SELECT state FROM effect_dispatch")] == ["requested"]
