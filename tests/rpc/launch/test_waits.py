"""Waits for many runs: each is told once, in one stream; what is not there is named; a time that passes leaves the run as it is."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID

import pytest
from google.protobuf.duration_pb2 import Duration
from runway.events.v1 import events_pb2
from runway.internal.inbox.v1 import inbox_pb2
from runway.launch.v1 import launch_service_pb2 as pb
from runway.launch.v1 import launch_service_pb2_grpc
from runway_sdk import Client, NotFound, Target, step, workflow
from runway_sdk.connection import Connection

from libs.runtime.host import Host
from libs.testkit.fixtures import StackDatabase
from libs.testkit.hosts import Peer, make_key, running_host

LONG_S = 60


@step
async def plain() -> int:
    return 1


@dataclass
class Bench:
    host: Host
    target: Target
    client: Client

    async def finish(self, *runs: pb.Run) -> None:
        facts = [events_pb2.GraphFinished(run_id=UUID(run.run_id).bytes, outcome="cancelled") for run in runs]
        events = [events_pb2.Event(graph_finished=fact).SerializeToString() for fact in facts]
        await self.host.peers.deliver("launch", inbox_pb2.DeliverRequest(service="launch", events=events))


@pytest.fixture
async def bench(stack_db: StackDatabase) -> AsyncIterator[Bench]:
    urls = await stack_db(["launch"])
    peers = [Peer(name) for name in ("readiness", "scheduler", "gateway", "checkpoint")]
    async with running_host(["launch"], urls, peers=peers) as host:
        target = Target(host.addresses.public, await make_key(host))
        async with Client(target) as client:
            await client.publish(workflow("plain", steps=[plain]))
            yield Bench(host, target, client)


async def test_waits_of_one_moment_are_each_told_once_their_run_is_decided(bench: Bench) -> None:
    runs = [await bench.client.launch("plain") for _ in range(4)]
    async with asyncio.timeout(LONG_S):
        waits = [asyncio.create_task(bench.client.wait(run.run_id)) for run in [*runs, runs[0]]]
        await bench.finish(runs[0], runs[2])
        early = await asyncio.gather(waits[0], waits[2], waits[4])
        assert [run.run_id for run in early] == [runs[0].run_id, runs[2].run_id, runs[0].run_id]
        assert not waits[1].done()
        assert not waits[3].done()
        await bench.finish(runs[1], runs[3])
        late = await asyncio.gather(waits[1], waits[3])
    assert {run.outcome for run in (*early, *late)} == {"cancelled"}


async def test_a_stream_tells_each_run_once_and_ends_with_the_last_or_with_its_time(bench: Bench) -> None:
    done, other = [await bench.client.launch("plain") for _ in range(2)]
    await bench.finish(done)
    connection = Connection(bench.target)
    stub = launch_service_pb2_grpc.LaunchServiceStub(connection.public("launch"))
    nobody = str(UUID(int=7 << 76 | 2 << 62 | 1))

    async def told(run_ids: list[str], wait: Duration) -> list[tuple[str, str]]:
        request = pb.WaitRunsRequest(run_ids=run_ids, until=pb.WAIT_UNTIL_SETTLED, timeout=wait)
        stream = stub.WaitRuns(request, metadata=connection.metadata, timeout=LONG_S)
        return [(item.run_id, item.error.reason or item.run.outcome) async for part in stream for item in part.runs]

    try:
        ids = [done.run_id, nobody, other.run_id]
        assert sorted(await told(ids, Duration(nanos=200_000_000))) == sorted(
            [(done.run_id, "cancelled"), (nobody, "NOT_FOUND")]
        )
        waiting = asyncio.create_task(told(ids, Duration(seconds=LONG_S)))
        await bench.finish(other)
        assert sorted(await waiting) == sorted([(done.run_id, "cancelled"), (nobody, "NOT_FOUND"), (other.run_id, "cancelled")])
    finally:
        await connection.close()


async def test_a_run_of_another_tenant_is_not_there(bench: Bench) -> None:
    runs = [await bench.client.launch("plain") for _ in range(2)]
    async with Client(Target(bench.host.addresses.public, await make_key(bench.host, tenant="rival"))) as rival:
        answers = await asyncio.gather(*(rival.wait(run.run_id) for run in runs), return_exceptions=True)
    assert [type(answer) for answer in answers] == [NotFound, NotFound]


async def test_when_the_time_has_passed_the_run_is_told_as_it_is(bench: Bench) -> None:
    runs = [await bench.client.launch("plain") for _ in range(3)]
    async with asyncio.timeout(LONG_S):
        found = await asyncio.gather(*(bench.client.wait(run.run_id, timeout_s=0.2) for run in runs))
    assert [run.state for run in found] == [pb.RUN_STATE_ACCEPTED] * 3


async def test_nothing_is_asked_any_more_once_nobody_waits(bench: Bench) -> None:
    runs = [await bench.client.launch("plain") for _ in range(2)]
    waits = [asyncio.create_task(bench.client.wait(run.run_id)) for run in runs]
    await asyncio.wait(waits, timeout=0.2)
    for wait in waits:
        wait.cancel()
    async with asyncio.timeout(LONG_S):
        await asyncio.gather(*waits, return_exceptions=True)
        await asyncio.gather(*bench.client._waits._tasks, return_exceptions=True)
    assert not bench.client._waits._tasks
