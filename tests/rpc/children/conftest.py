"""Launch, readiness, scheduler and gateway in one process with a worker and a model on the loopback; PostgreSQL and etcd are
real."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest
from runway.events.v1 import events_pb2
from runway.internal.inbox.v1 import inbox_pb2
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk import Client, Target, Worker, Workflow

from libs.runtime.host import Host
from libs.testkit.fixtures import StackDatabase
from libs.testkit.hosts import Peer, make_key, running_host
from libs.testkit.waiting import wait_until
from tests.rpc.gateway.provider import Provider, provider_on_loopback

SERVICES = ("launch", "readiness", "scheduler", "gateway")
CALL_MICROS = 3_000
"""What a call of the model costs."""


@dataclass
class Bench:
    host: Host
    client: Client
    target: Target
    provider: Provider
    db: Mapping[str, asyncpg.Connection]

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

    async def settled(self, run_id: str) -> pb.Run:
        run: pb.Run = await self.client.wait(run_id, settled=True, timeout_s=30)
        return run

    async def tell(self, service: str, *events: events_pb2.Event) -> list[int]:
        request = inbox_pb2.DeliverRequest(service=service, events=[event.SerializeToString() for event in events])
        return [item.verdict for item in (await self.host.peers.deliver(service, request)).verdicts]

    async def balanced(self) -> None:
        """Every ledger sums: launch's accounts, and what is out at the gateway."""
        await wait_until(self._balanced, timeout_s=10, what="ledgers that sum")

    async def _balanced(self) -> bool:
        assert not await self.db["launch"].fetch(UNBALANCED), "launch's balances are not the sum of its postings"
        assert not await self.db["gateway"].fetch(MISCOUNTED), "a gate does not count its slices"
        return True


UNBALANCED = """
WITH flows AS (
    SELECT tenant, CASE account WHEN 'parent:reserved' THEN 'run:reserved' ELSE account END AS account, sum(micros) AS micros
      FROM (SELECT tenant, credit AS account, micros FROM ledger_posting
            UNION ALL SELECT tenant, debit, -micros FROM ledger_posting) AS f GROUP BY 1, 2)
SELECT t.* FROM tenant AS t
  LEFT JOIN flows AS r ON r.tenant = t.tenant AND r.account = 'run:reserved'
  LEFT JOIN flows AS s ON s.tenant = t.tenant AND s.account = 'tenant:spent'
 WHERE t.reserved_micros <> coalesce(r.micros, 0) OR t.spent_micros <> coalesce(s.micros, 0)
    OR t.reserved_micros <> (SELECT coalesce(sum(budget_micros - delegated_micros), 0) FROM run WHERE run.tenant = t.tenant AND state < 9)
    OR t.active_descendants <> (SELECT count(*) FROM run WHERE run.tenant = t.tenant AND state < 9 AND parent_id IS NOT NULL)
    OR t.active_runs <> (SELECT count(*) FROM run WHERE run.tenant = t.tenant AND state < 9 AND parent_id IS NULL)
    OR EXISTS (SELECT FROM run AS p WHERE p.tenant = t.tenant AND p.open_children
                  <> (SELECT count(*) FROM run AS c WHERE c.parent_id = p.run_id AND c.state < 9 AND NOT c.independent))
"""
MISCOUNTED = """
SELECT g.run_id FROM run_gate AS g
 WHERE g.delegated <> (SELECT coalesce(sum(CASE WHEN returned_ms > 0 THEN spent ELSE micros END), 0)
                         FROM delegation AS d WHERE d.run_id = g.run_id)
    OR g.held + g.used + g.delegated > g.granted AND g.granted > 0
"""


@asynccontextmanager
async def opened(
    stack_db: StackDatabase,
    etcd_server: list[str],
    etcd_prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    **environ: str,
) -> AsyncIterator[Bench]:
    urls = await stack_db(list(SERVICES))
    endpoints = {"RUNWAY_ETCD_ENDPOINTS": ",".join(etcd_server)}
    async with provider_on_loopback() as provider:
        route: dict[str, Any] = {
            "base_url": f"{provider.url}/v1",
            "model": "small-1",
            "provider": "loop",
            "price_micros_per_1k_input": 1000,
            "price_micros_per_1k_output": 2000,
            "default_max_tokens": 1000,
        }
        usage = {"prompt_tokens": 1000, "completion_tokens": 1000, "total_tokens": 2000}
        answer = {"choices": [{"message": {"role": "assistant", "content": "yes"}}], "usage": usage}
        provider.answers["/v1/chat/completions"] = (200, answer)
        settings = endpoints | {"RUNWAY_GATEWAY_MODELS": json.dumps({"small": route}), **environ}
        for name, text in settings.items():
            monkeypatch.setenv(name, text)
        monkeypatch.setenv("RUNWAY_SCHEDULER_ETCD_PREFIX", etcd_prefix)
        db = {name: await asyncpg.connect(urls[name]) for name in SERVICES}
        try:
            async with running_host(
                list(SERVICES), urls, peers=[Peer("checkpoint"), Peer("reconciler")], environ=settings
            ) as host:
                target = Target(host.addresses.public, await make_key(host), host.addresses.control)
                async with Client(target) as client:
                    yield Bench(host, client, target, provider, db)
        finally:
            for connection in db.values():
                await connection.close()


@pytest.fixture
async def bench(
    stack_db: StackDatabase, etcd_server: list[str], etcd_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    async with opened(stack_db, etcd_server, etcd_prefix, monkeypatch) as found:
        yield found
