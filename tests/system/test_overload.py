"""One tenant floods the public port of a whole installation, from a process of its own; others' work goes on.

Judged against the lease's life, not against the clock of a machine that does other things as well.
"""

import asyncio
import time
from dataclasses import replace

import pytest
from runway.launch.v1 import launch_service_pb2 as pb
from runway.scheduler.v1 import scheduler_service_pb2 as sc
from runway.scheduler.v1 import worker_service_pb2 as wk
from runway.scheduler.v1 import worker_service_pb2_grpc
from runway_sdk import Client
from runway_sdk.connection import Connection
from runway_sdk.testing import Stack

from libs.testkit.waiting import wait_until
from tests.bench.flooding import flooding, make_key
from tests.system.conftest import FLOWS
from tests.system.flows import enduring, waiting

LIVE, CANCELLED = 20, 10
TTL_S = 6.0
FLOOD_S = 6.0


async def running(client: Client, runs: list[str]) -> None:
    async def all_running() -> bool:
        states = await asyncio.gather(*(client.get(run_id) for run_id in runs))
        return all(run.state == pb.RUN_STATE_RUNNING for run in states)

    await wait_until(all_running, timeout_s=60, what="an attempt of every run")


async def beats_for(connection: Connection, seconds: float) -> list[float]:
    """How long heartbeats took, asked all the while; of an attempt that nobody knows, so that they keep nothing alive."""
    stub = worker_service_pb2_grpc.WorkerServiceStub(connection.control("scheduler"))
    said = wk.Heartbeat(run_id="01890000-0000-7000-8000-000000000000", attempt_id=b"?" * 16, lease_epoch=1, step_key="s")
    took = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        await connection.call(stub.HeartbeatAttempts, wk.HeartbeatAttemptsRequest(worker_id="probe", heartbeats=[said]))
        took.append(time.perf_counter() - began)
        await asyncio.sleep(0.05)  # the pace of the probe
    return took


@pytest.mark.requirement("sched.bulkheads")
@pytest.mark.requirement("sched.flood")
async def test_a_flood_of_launches_reads_and_pollers_expires_no_lease_and_delays_no_cancel(stack: Stack) -> None:
    client, profile = stack.client, stack.folder / "data" / "profile.json"
    secret = (stack.folder / "data" / "service-secret").read_text().strip()
    key = await make_key(stack.target, secret, "flooder", "worker")
    flooder = Client(replace(stack.target, api_key=key))
    await flooder.publish(waiting)
    await client.publish(enduring)
    connection = Connection(stack.target)
    async with stack.worker(f"{FLOWS}:enduring", worker_id="endures", slots=LIVE + CANCELLED + 5) as worker:
        launched = [await client.launch("enduring", {"stays": True}) for _ in range(LIVE + CANCELLED)]
        runs = [run.run_id for run in launched]
        await running(client, runs)
        calm = await beats_for(connection, 1.0)
        async with flooding(profile, key, "waiting", pollers=10_000, launchers=200, readers=200, felt=4_000) as counted:
            beating = asyncio.create_task(beats_for(connection, FLOOD_S))
            cancels = []
            for run_id in runs[LIVE:]:
                began = time.perf_counter()
                await client.cancel(run_id, "in the flood")
                ended = await client.wait(run_id, settled=True, timeout_s=60)
                cancels.append(time.perf_counter() - began)
                assert ended.outcome == "cancelled", "raised at every point, and quiesced there"
            short = await client.launch("enduring", {"stays": False}, run_class="interactive")
            assert (await client.wait(short.run_id, timeout_s=90)).outcome == "succeeded", "another tenant's work goes on"
            beats = await beating
        assert worker.running
        assert max(beats) < TTL_S * 2 / 3, "heartbeats come every third of the TTL: this one would have been too late"
        assert sorted(cancels)[len(cancels) // 2] < TTL_S, "a cancel waits behind the flood"
        assert sum(count for what, count in counted.items() if what.startswith("shed as")) > 1_000, counted
        assert counted.get("shed without a delay", 0) == 0
        assert not [what for what in counted if what.startswith("shed as work for overload")], "work was shed before bulk"
        for run_id in runs[:LIVE]:
            (attempt,) = await client.attempts(run_id)
            assert attempt.state in (sc.ATTEMPT_STATE_LEASED, sc.ATTEMPT_STATE_RUNNING), "a lease expired falsely"
        print(
            f"\nbeats: calm {max(calm):.3f} s at most, flooded {max(beats):.3f} s ({len(beats)}); cancels {max(cancels):.3f} s"
        )
        print(dict(sorted(counted.items())))
        await asyncio.gather(*(client.cancel(run_id) for run_id in runs[:LIVE]))
    await connection.close()
    await flooder.close()
