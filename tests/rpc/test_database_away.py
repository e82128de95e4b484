"""A service whose database is away: NOT_SERVING, UNAVAILABLE with RetryInfo, and back by itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from runway_sdk import Client, Target, Unavailable, step, workflow

from libs.rpc.channels import open_channel
from libs.runtime.host import Host
from libs.testkit.fixtures import StackDatabase
from libs.testkit.hosts import Peer, make_key, running_host
from libs.testkit.proxy import FaultProxy
from libs.testkit.waiting import wait_until


@step
def only() -> int:
    return 1


@asynccontextmanager
async def through(url: str) -> AsyncIterator[tuple[FaultProxy, str]]:
    parts = urlsplit(url)
    assert parts.port
    async with FaultProxy(parts.port) as proxy:
        place = parts.netloc.rpartition("@")[0] + f"@127.0.0.1:{proxy.port}"
        yield proxy, urlunsplit(parts._replace(netloc=place))


async def health(host: Host, name: str) -> int:
    async with open_channel(host.addresses.public) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=name))
        return int(answer.status)


@pytest.mark.requirement("launch.after-commit")
async def test_launch_without_its_database_refuses_and_recovers(stack_db: StackDatabase) -> None:
    urls = await stack_db(["launch"])
    async with through(urls["launch"]) as (proxy, url):
        peers = [Peer(name) for name in ("readiness", "scheduler")]
        async with running_host(["launch"], {"launch": url}, peers=peers) as host:
            key = await make_key(host)
            name = "runway.launch.v1.LaunchService"
            async with Client(Target(host.addresses.public, key)) as client:
                await client.publish(workflow("w", steps=[only]))
                before = await client.launch("w")
                proxy.refuse()

                async def is_not_serving() -> bool:
                    return await health(host, name) == health_pb2.HealthCheckResponse.NOT_SERVING

                await wait_until(is_not_serving, timeout_s=15, what="NOT_SERVING")
                with pytest.raises(Unavailable) as refused:
                    await client.get(before.run_id)
                assert refused.value.reason == "AUTHORITY_UNREACHABLE"
                assert refused.value.retry_after_ms > 0
                proxy.heal()

                async def is_serving() -> bool:
                    return await health(host, name) == health_pb2.HealthCheckResponse.SERVING

                await wait_until(is_serving, timeout_s=15, what="SERVING")
                assert (await client.get(before.run_id)).run_id == before.run_id
                assert (await client.launch("w")).run_id != before.run_id


@pytest.mark.requirement("launch.once")
@pytest.mark.requirement("launch.after-commit")
async def test_a_commit_whose_answer_was_lost_is_one_run(stack_db: StackDatabase) -> None:
    urls = await stack_db(["launch"])
    async with through(urls["launch"]) as (proxy, url):
        readiness = Peer("readiness")
        async with running_host(["launch"], {"launch": url}, peers=[readiness, Peer("scheduler")]) as host:
            key = await make_key(host)
            async with Client(Target(host.addresses.public, key)) as client:
                await client.publish(workflow("w", steps=[only]))
                proxy.lose_the_answer_to(b"COMMIT")
                run = await client.launch("w", request_id="once")
                assert proxy.triggered.is_set(), "the answer of the commit was not lost"
                proxy.heal()
                assert (await client.launch("w", request_id="once")).run_id == run.run_id
                assert len((await client.list_runs()).runs) == 1
                launched = await readiness.wait_for("run_launched", timeout_s=15)
                assert {event.run_launched.run_id.hex() for event in launched} == {run.run_id.replace("-", "")}
