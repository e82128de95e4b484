"""What a flood of one tenant costs others: heartbeats and cancels with and without it, and what was sent away, by criticality.

A process floods with ten thousand pollers and hundreds of callers that launch and list without a pause, except as they are told;
another tenant's attempts live on meanwhile. The probe, the flood and the installation share one machine's cores, so these are
worst figures of a small machine: what counts is false expiries, which are none, and the heartbeat against the lease's TTL.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from runway.launch.v1 import launch_service_pb2 as pb
from runway.scheduler.v1 import scheduler_service_pb2 as sc
from runway.scheduler.v1 import worker_service_pb2 as wk
from runway.scheduler.v1 import worker_service_pb2_grpc
from runway_sdk import Client
from runway_sdk.connection import Connection

from tests.bench import flows
from tests.bench.bench_stack import Bench, say, started
from tests.bench.flooding import flooding, make_key

LIVE, CANCELS = 100, 20
ENDED = {sc.ATTEMPT_STATE_LOST, sc.ATTEMPT_STATE_TIMED_OUT, sc.ATTEMPT_STATE_UNCERTAIN}


async def overload(pollers: int = 10_000, callers: int = 400, seconds: float = 15.0) -> dict[str, object]:
    """The figures."""
    async with started("overload") as bench:
        secret = (bench.profile.parent / "service-secret").read_text().strip()
        key = await make_key(bench.target, secret, "flooder", "worker")
        async with Client(replace(bench.target, api_key=key)) as flooder:
            await flooder.publish(flows.one)
        await bench.worker("hurried", slots=LIVE + 2 * CANCELS)
        requests = [
            pb.LaunchRunRequest(request_id=f"live-{number}", workflow="bench-hurried") for number in range(LIVE + 2 * CANCELS)
        ]
        runs = [result.run.run_id for result in await bench.client.launch_many(requests)]
        while sum(shard.live_leases for shard in await bench.client.shards()) < len(runs):
            await asyncio.sleep(0.1)  # until every attempt is leased
        say("calm")
        calm = await _probe(bench, runs[LIVE : LIVE + CANCELS], seconds / 3)
        say("flooded")
        numbers = {"pollers": pollers, "launchers": callers, "readers": callers, "felt": pollers // 2}
        async with flooding(bench.profile, key, "bench-one", **numbers) as counted:
            flooded = await _probe(bench, runs[LIVE + CANCELS :], seconds)
        lost = 0
        for run_id in runs[:LIVE]:
            lost += sum(attempt.state in ENDED for attempt in await bench.client.attempts(run_id))
    return {
        "calm": calm,
        "flooded": flooded,
        "false_expiries": lost,
        "lease_ttl_ms": 6_000,
        "shed": {what: count for what, count in sorted(counted.items()) if what.startswith("shed as")},
        "flood": {what: count for what, count in sorted(counted.items()) if what.endswith((" ok", " OVERLOADED"))},
        "pollers": pollers,
        "callers": 2 * callers,
    }


async def _probe(bench: Bench, to_cancel: Sequence[str], seconds: float) -> dict[str, object]:
    """Heartbeats twenty times a second, and cancels one after the other, by how long each took."""
    connection = Connection(bench.target)
    stub = worker_service_pb2_grpc.WorkerServiceStub(connection.control("scheduler"))
    said = wk.Heartbeat(run_id=to_cancel[0], attempt_id=b"?" * 16, lease_epoch=1, step_key="stay")
    cancels: list[float] = []

    async def cancel() -> None:
        for run_id in to_cancel:
            began = time.perf_counter()
            await bench.client.cancel(run_id, "measured")
            cancels.append((time.perf_counter() - began) * 1000)

    cancelling = asyncio.create_task(cancel())
    beats: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not cancelling.done():
        began = time.perf_counter()
        await connection.call(stub.HeartbeatAttempts, wk.HeartbeatAttemptsRequest(worker_id="probe", heartbeats=[said]))
        beats.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.05)  # the pace of the probe
    await cancelling
    await connection.close()
    return {"heartbeat_ms": _spread(beats), "cancel_ms": _spread(cancels)}


def _spread(samples: Sequence[float]) -> dict[str, float]:
    ordered = sorted(samples)
    at = {name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] for name, share in (("p50", 0.5), ("p99", 0.99))}
    return {name: round(ms, 1) for name, ms in (at | {"max": ordered[-1]}).items()}
