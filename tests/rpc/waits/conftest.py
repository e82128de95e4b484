"""The main path in one process with a worker, for steps that wait; over real gRPC, PostgreSQL and etcd."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg
import pytest
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk import Client, Target, Worker, Workflow

from libs.runtime.host import Host
from libs.testkit.clocks import ManualClock
from libs.testkit.fixtures import StackDatabase
from libs.testkit.hosts import Peer, make_key, running_host
from libs.testkit.waiting import wait_until


@dataclass
class Bench:
    host: Host
    client: Client
    target: Target
    db: asyncpg.Connection

    @asynccontextmanager
    async def worker(self, *flows: Workflow, slots: int = 50) -> AsyncIterator[Worker]:
        for found in flows:
            await self.client.publish(found)
        worker = Worker(flows, target=self.target, slots=slots)
        running = asyncio.create_task(worker.run())
        try:
            yield worker
            assert not running.done(), "the worker ended"
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def waiting(self, run_id: str, reason: str) -> pb.Run:
        """The run, once it is shown as waiting for this."""
        found: list[pb.Run] = []

        async def seen() -> bool:
            found.append(await self.client.get(run_id))
            return found[-1].state == pb.RUN_STATE_WAITING and reason in found[-1].wait_reasons

        await wait_until(seen, timeout_s=20, what=f"a run that waits for {reason}")
        return found[-1]


@pytest.fixture
async def bench(
    stack_db: StackDatabase, etcd_server: list[str], etcd_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    async with opened(stack_db, etcd_server, etcd_prefix, monkeypatch) as found:
        yield found


@asynccontextmanager
async def opened(
    stack_db: StackDatabase,
    etcd_server: list[str],
    etcd_prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    clock: ManualClock | None = None,
    *,
    gateway: bool = False,
) -> AsyncIterator[Bench]:
    names = ["launch", "readiness", "scheduler", *(["gateway"] if gateway else [])]
    urls = await stack_db(names)
    monkeypatch.setenv("RUNWAY_ETCD_ENDPOINTS", ",".join(etcd_server))
    monkeypatch.setenv("RUNWAY_SCHEDULER_ETCD_PREFIX", etcd_prefix)
    environ = {"RUNWAY_ETCD_ENDPOINTS": ",".join(etcd_server)}
    peers = [Peer(name) for name in ("gateway", "checkpoint") if name not in names]
    db = await asyncpg.connect(urls["readiness"])
    try:
        async with running_host(names, urls, peers=peers, environ=environ, clock=clock) as host:
            target = Target(host.addresses.public, await make_key(host), host.addresses.control)
            async with Client(target) as client:
                yield Bench(host, client, target, db)
    finally:
        await db.close()
