"""A tenant that floods an installation, in a process of its own: pollers, launches and lists, as many at once as it is told.

Its callers are as generated clients are: they come again after the delay in RetryInfo, and count what they met. `python -m
tests.bench.flooding` with a profile and numbers floods until its standard input closes, then prints what it counted, as JSON. Can
go wrong: a flood that measures itself. Whoever measures does so from another process.
"""

import libs  # noqa: F401, I001  (first: it keeps gRPC's fork handlers off)

import argparse
import asyncio
import json
import secrets
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from runway.launch.v1 import admin_service_pb2, admin_service_pb2_grpc, launch_service_pb2, launch_service_pb2_grpc
from runway.scheduler.v1 import worker_service_pb2, worker_service_pb2_grpc
from runway_sdk.connection import Connection, Target, read_profile
from runway_sdk.errors import error_of

from libs.rpc.channels import open_channel
from libs.testkit.waiting import wait_until

CHANNELS = 8
POLL_S = 20


class Flood:
    """One tenant's callers."""

    def __init__(self, target: Target, workflow: str) -> None:
        self._workflow = workflow
        self._connections = [Connection(target) for _ in range(CHANNELS)]
        self.counts: Counter[str] = Counter()

    async def _again_and_again(self, kind: str, number: int, call: Callable[[int], Awaitable[Any]]) -> None:
        """Calls without a pause, except as it is told."""
        while True:
            try:
                await call(number)
                self.counts[f"{kind} ok"] += 1
            except grpc.aio.AioRpcError as error:
                refused = error_of(error)
                self.counts[f"{kind} {refused.reason}"] += 1
                if refused.reason != "OVERLOADED":
                    self.counts[f"{kind}: {refused.message[:200]}"] += 1
                if refused.reason == "OVERLOADED":
                    self.counts[f"shed as {refused.detail.get('criticality')} for {refused.detail.get('bound')}"] += 1
                    self.counts["shed without a delay"] += refused.retry_after_ms <= 0
                await asyncio.sleep(max(0.05, refused.retry_after_ms / 1000))

    async def run(self, pollers: int, launchers: int, readers: int) -> None:
        """All of them, until it is cancelled."""
        made = [connection.metadata for connection in self._connections]
        workers = [worker_service_pb2_grpc.WorkerServiceStub(c.public("scheduler")) for c in self._connections]
        stubs = [launch_service_pb2_grpc.LaunchServiceStub(c.public("launch")) for c in self._connections]

        async def poll(n: int) -> None:
            request = worker_service_pb2.ClaimAttemptsRequest(
                claim_id=secrets.token_bytes(16),
                worker_id=f"poller-{n}",
                slots=1,
                handlers=["nobody.has@1"],
                wait=Duration(seconds=POLL_S),
            )
            await workers[n % CHANNELS].ClaimAttempts(request, metadata=made[n % CHANNELS], timeout=POLL_S + 20)

        async def launch(n: int) -> None:
            request = launch_service_pb2.LaunchRunRequest(
                request_id=secrets.token_hex(16), workflow=self._workflow, run_class=3
            )
            await stubs[n % CHANNELS].LaunchRun(request, metadata=made[n % CHANNELS], timeout=60)

        async def read(n: int) -> None:
            request = launch_service_pb2.ListRunsRequest(page_size=50)
            await stubs[n % CHANNELS].ListRuns(request, metadata=made[n % CHANNELS], timeout=60)

        kinds = (("poll", pollers, poll), ("launch", launchers, launch), ("read", readers, read))
        async with asyncio.TaskGroup() as group:
            for kind, count, call in kinds:
                for number in range(count):
                    group.create_task(self._again_and_again(kind, number, call))


async def make_key(target: Target, secret: str, tenant: str, *scopes: str) -> str:
    """A tenant of its own, and a key of it."""
    async with open_channel(target.control_address, secret=secret) as channel:
        admin = admin_service_pb2_grpc.AdminServiceStub(channel)
        request = admin_service_pb2.PutTenantRequest(tenant=tenant, limit_micros=10**15, max_active_runs=1_000_000)
        await admin.PutTenant(request)
        made = admin_service_pb2.CreateApiKeyRequest(tenant=tenant, scopes=scopes, name="flood")
        return str((await admin.CreateApiKey(made)).api_key)


@asynccontextmanager
async def flooding(profile: Path, api_key: str, workflow: str, **numbers: int) -> AsyncIterator[dict[str, int]]:
    """A flood while the block runs, once it is felt; afterwards the dictionary holds what it counted."""
    command = [sys.executable, "-m", "tests.bench.flooding", str(profile), workflow]
    command += [f"--{name}={number}" for name, number in numbers.items()]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=_environ(api_key)
    )
    assert process.stdin is not None
    assert process.stdout is not None
    counted: dict[str, int] = {}
    try:
        await asyncio.wait_for(process.stdout.readline(), 120)
        yield counted
        process.stdin.close()
        counted |= json.loads(await asyncio.wait_for(process.stdout.readline(), 120))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _environ(api_key: str) -> dict[str, str]:
    import os

    return {**os.environ, "FLOOD_API_KEY": api_key}


async def _main(arguments: argparse.Namespace, api_key: str) -> None:
    found = read_profile(arguments.profile)
    target = Target(found.address, api_key, found.control_address, False, found.services, found.control_services)
    flood = Flood(target, arguments.workflow)
    tasks = [asyncio.create_task(flood.run(arguments.pollers, 0, 0))]
    await wait_until(lambda: flood.counts["poll OVERLOADED"] >= arguments.felt, 100, what="the pollers felt")
    tasks.append(asyncio.create_task(flood.run(0, arguments.launchers, arguments.readers)))
    await wait_until(lambda: flood.counts["launch ok"] and flood.counts["read ok"], 100, what="the callers felt")
    print("flooding", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(json.dumps(flood.counts), flush=True)


def main() -> None:
    """One flood."""
    import os

    parser = argparse.ArgumentParser()
    parser.add_argument("profile", type=Path)
    parser.add_argument("workflow")
    for name in ("pollers", "launchers", "readers", "felt"):
        parser.add_argument(f"--{name}", type=int, default=0)
    asyncio.run(_main(parser.parse_args(), os.environ["FLOOD_API_KEY"]))
    os._exit(0)  # thousands of calls under way are nobody's any more


if __name__ == "__main__":
    main()
