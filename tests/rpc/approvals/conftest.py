"""The room, opened for each test; with a clock that stands still where a test moves it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
from runway_sdk import Client, Target

from libs.testkit.clocks import ManualClock
from libs.testkit.fixtures import StackDatabase
from libs.testkit.hosts import Peer, make_key, running_host
from tests.rpc.approvals.room import Room
from tests.rpc.gateway.provider import provider_on_loopback

SERVICES = ["launch", "readiness", "scheduler", "gateway"]


@pytest.fixture
async def room(
    stack_db: StackDatabase, etcd_server: list[str], etcd_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Room]:
    async with opened(stack_db, etcd_server, etcd_prefix, monkeypatch) as found:
        yield found


@pytest.fixture
async def still(
    stack_db: StackDatabase, etcd_server: list[str], etcd_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Room, ManualClock]]:
    clock = ManualClock()
    async with opened(stack_db, etcd_server, etcd_prefix, monkeypatch, clock) as found:
        yield found, clock


@asynccontextmanager
async def opened(
    stack_db: StackDatabase,
    etcd_server: list[str],
    etcd_prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    clock: ManualClock | None = None,
) -> AsyncIterator[Room]:
    urls = await stack_db(SERVICES)
    monkeypatch.setenv("RUNWAY_ETCD_ENDPOINTS", ",".join(etcd_server))
    monkeypatch.setenv("RUNWAY_SCHEDULER_ETCD_PREFIX", etcd_prefix)
    environ = {"RUNWAY_ETCD_ENDPOINTS": ",".join(etcd_server)}
    async with provider_on_loopback() as provider:
        monkeypatch.setenv("RUNWAY_GATEWAY_HTTP_TARGETS", json.dumps({"api": {"base_url": provider.url, "settle_ms": 0}}))
        async with running_host(SERVICES, urls, peers=[Peer("checkpoint")], environ=environ, clock=clock) as host:
            target = Target(host.addresses.public, await make_key(host, name="olga"), host.addresses.control)
            gateway, launch = await asyncpg.connect(urls["gateway"]), await asyncpg.connect(urls["launch"])
            try:
                async with Client(target) as client:
                    yield Room(host, client, target, provider, gateway, launch, clock)
            finally:
                await gateway.close()
                await launch.close()
