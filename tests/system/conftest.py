"""One installation for all system tests of a run: six services (the gateway apart), on durable PostgreSQL and etcd."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread

import pytest
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk.testing import Stack

from libs.testkit.waiting import wait_until
from tests.system.flows import hammering

FLOWS = "tests.system.flows"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/system" in str(item.path):
            item.add_marker(pytest.mark.timeout(180))


@dataclass
class Counter:
    """An HTTP provider that counts what it was asked to do, per path; and what it did, if it honours idempotency keys."""

    hits: dict[str, int] = field(default_factory=dict)
    keys: dict[str, set[str]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)
    port: int = 0

    def count(self, path: str, key: str | None) -> int:
        with self.lock:
            self.hits[path] = self.hits.get(path, 0) + 1
            self.keys.setdefault(path, set()).add(key or f"none, {self.hits[path]}")
            return self.hits[path]

    def knows(self, key: str) -> bool:
        with self.lock:
            return any(key in keys for keys in self.keys.values())

    def done(self, prefix: str) -> int:
        """Requests that a provider does which takes one key twice for one request."""
        with self.lock:
            return sum(len(keys) for path, keys in self.keys.items() if path.startswith(prefix))

    def total(self, prefix: str) -> int:
        with self.lock:
            return sum(count for path, count in self.hits.items() if path.startswith(prefix))


def model_answer(asked: dict[str, object]) -> dict[str, object]:
    """What an OpenAI-compatible server says."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": f"as {asked['model']}: mend the links"},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}
    return {"id": "c1", "object": "chat.completion", "model": asked["model"], "choices": [choice], "usage": usage}


@pytest.fixture(scope="session")
def counter() -> Iterator[Counter]:
    counting = Counter()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            count = counting.count(self.path, self.headers.get("Idempotency-Key"))
            body = json.dumps(model_answer(json.loads(asked)) if "completions" in self.path else {"count": count}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            """/by-key/KEY: whether a key is known; /done/PREFIX: how much was done."""
            asked, _, what = self.path.removeprefix("/").partition("/")
            known = asked == "done" or counting.knows(what)
            body = str(counting.done(f"/{what}")).encode()
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    counting.port = server.server_address[1]
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield counting
    server.shutdown()
    server.server_close()
    thread.join()


@dataclass
class Origin:
    """A bare remote that counts pushes by its own hook."""

    path: Path
    log: Path

    def pushes(self, branch: str) -> int:
        text = self.log.read_text() if self.log.exists() else ""
        return sum(f" refs/heads/{branch}" in line for line in text.splitlines())

    def head(self, branch: str) -> str:
        command = ["git", "-C", str(self.path), "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@pytest.fixture(scope="session")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Origin:
    folder = tmp_path_factory.mktemp("origin")
    path, log = folder / "origin.git", folder / "pushes.log"
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false"]
    work = folder / "work"
    for command in (
        ["git", "init", "--quiet", "--initial-branch=main", str(work)],
        ["git", "-C", str(work), *identity, "commit", "--quiet", "--allow-empty", "-m", "start"],
        ["git", "clone", "--quiet", "--bare", str(work), str(path)],
    ):
        subprocess.run(command, check=True, capture_output=True)
    hook = path / "hooks" / "post-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ncat >> '{log}'\n")
    hook.chmod(0o755)
    subprocess.run(["git", "-C", str(path), "config", "core.hooksPath", str(hook.parent)], check=True)
    return Origin(path, log)


def model_route(counter: Counter) -> dict[str, object]:
    return {
        "base_url": f"http://127.0.0.1:{counter.port}/v1",
        "model": "small-1",
        "api_key": "sk-canary-of-the-model",
        "price_micros_per_1k_input": 100,
        "price_micros_per_1k_output": 200,
    }


@pytest.fixture(scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory, origin: Origin, counter: Counter) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    for parent in (folder, *folder.parents):
        if "pytest" in parent.name:
            parent.chmod(0o755)
    environ = {
        "RUNWAY_GATEWAY_GIT_REMOTES": json.dumps({"origin": {"url": str(origin.path)}}),
        "RUNWAY_GATEWAY_MODELS": json.dumps({"summary": model_route(counter)}),
        "RUNWAY_GATEWAY_HTTP_TARGETS": json.dumps(
            {
                "counter": {"base_url": f"http://127.0.0.1:{counter.port}", "settle_ms": 100},
                "shop": {
                    "base_url": f"http://127.0.0.1:{counter.port}",
                    "settle_ms": 100,
                    "lookup_path": "/by-key/{key}",
                    "lookup_authoritative": True,
                },
            }
        ),
    }
    async with Stack.start(folder / "s", environ=environ) as started:
        yield started


@asynccontextmanager
async def calling(stack: Stack, counter: Counter, count: int) -> AsyncIterator[list[pb.Run]]:
    """So many runs that call without an end, each of which has called twice by now."""
    await stack.client.publish(hammering)
    async with stack.worker(f"{FLOWS}:hammering", worker_id="hammers", slots=count):
        runs = await asyncio.gather(*(stack.client.launch("hammering", {"calls": 10_000}) for _ in range(count)))
        prefixes = [f"/hit/{run.run_id}/" for run in runs]
        await wait_until(
            lambda: all(counter.total(prefix) >= 2 for prefix in prefixes), timeout_s=60, what="two calls of every run"
        )
        yield runs
