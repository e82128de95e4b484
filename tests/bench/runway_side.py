"""Our side of the benchmark: an installation as `runway dev` starts it, a worker process, and callers over gRPC."""

import asyncio
import statistics
import time
from pathlib import Path

import psutil
from runway.launch.v1 import launch_service_pb2 as pb
from runway.launch.v1 import launch_service_pb2_grpc
from runway.scheduler.v1 import scheduler_service_pb2 as sc
from runway.scheduler.v1 import worker_service_pb2 as wk
from runway.scheduler.v1 import worker_service_pb2_grpc
from runway_sdk.connection import Connection
from runway_sdk.testing import Stack
from runway_sdk.values import to_value

FLOWS = "tests.bench.flows"


def percentile(sorted_ms: list[float], share: float) -> float:
    return sorted_ms[min(len(sorted_ms) - 1, int(len(sorted_ms) * share))]


def cpu_s(pids: list[int]) -> dict[str, float]:
    """Processor seconds used so far by these processes and their children, by kind."""
    found: dict[str, float] = {}
    for pid in pids:
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            try:
                times = process.cpu_times()
                kind = process.name()
                if kind.startswith("python"):
                    command = " ".join(process.cmdline())
                    kind = "worker" if "runway_sdk.serve" in command else "services" if " host " in command else "other"
                found[kind] = found.get(kind, 0.0) + times.user + times.system
            except psutil.Error:
                continue
    return found


def spent(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {kind: after[kind] - before.get(kind, 0.0) for kind in after}


async def launches(stack: Stack, callers: int, count: int) -> dict[str, object]:
    """Unary LaunchRun calls by so many callers at once."""
    connections = [Connection(stack.target) for _ in range(4)]
    stubs = [launch_service_pb2_grpc.LaunchServiceStub(connection.public("launch")) for connection in connections]
    left = iter(range(count))

    async def caller(number: int) -> None:
        for at in left:
            request = pb.LaunchRunRequest(request_id=f"bench-{time.time_ns()}-{at}", workflow="bench-one", input=to_value(at))
            await connections[number % 4].call(stubs[number % 4].LaunchRun, request)

    began = time.perf_counter()
    await asyncio.gather(*(caller(number) for number in range(callers)))
    took = time.perf_counter() - began
    for connection in connections:
        await connection.close()
    return {"launches_per_s": count / took, "launches": count, "callers": callers}


async def settled(stack: Stack, run_ids: list[str]) -> None:
    await asyncio.gather(*(stack.client.wait(run_id, timeout_s=300) for run_id in run_ids))


async def steps(stack: Stack, runs: int, per_run: int, pids: list[int]) -> dict[str, object]:
    """Runs of sequential trivial steps, launched together and waited for."""
    before = cpu_s(pids)
    began = time.perf_counter()
    launched = await asyncio.gather(*(stack.client.launch("bench-ten", number) for number in range(runs)))
    await settled(stack, [run.run_id for run in launched])
    took = time.perf_counter() - began
    used = spent(before, cpu_s(pids))
    total = runs * per_run
    return {
        "steps_per_s": total / took,
        "runs": runs,
        "steps_per_run": per_run,
        "cpu_us_per_step": {kind: round(seconds * 1e6 / total) for kind, seconds in used.items() if seconds > 0.01},
    }


async def latency(stack: Stack, samples: int) -> dict[str, object]:
    """From launch to result of a one-step run, one at a time."""
    taken: list[float] = []
    for number in range(samples + 10):
        began = time.perf_counter()
        run = await stack.client.launch("bench-one", number)
        await stack.client.wait(run.run_id)
        if number >= 10:
            taken.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.02)
    taken.sort()
    return {"latency_ms": {"p50": statistics.median(taken), "p99": percentile(taken, 0.99), "samples": samples}}


async def heartbeats(stack: Stack, live: int, seconds: float, pids: list[int], folder: Path) -> dict[str, object]:
    """So many live attempts beating every 20 s from a few worker processes: processor share, false expiries, and how long a
    heartbeat call of 100 attempts (that nobody knows, so that nothing is kept alive by the probe) takes meanwhile."""
    workers = [await stack.start_worker(f"{FLOWS}:fleet", worker_id=f"fleet-{number}", slots=live // 4) for number in range(4)]
    requests = [pb.LaunchRunRequest(request_id=f"fleet-{number}", workflow="bench-fleet") for number in range(live)]
    runs: list[str] = []
    for at in range(0, live, 500):
        runs += [result.run.run_id for result in await stack.client.launch_many(requests[at : at + 500])]
    scheduler = stack.client

    async def leased() -> int:
        return sum(shard.live_leases for shard in await scheduler.shards())

    began = time.perf_counter()
    while await leased() < live and time.perf_counter() - began < 180:
        await asyncio.sleep(0.5)
    held = await leased()
    ramp_s = time.perf_counter() - began
    before, began = cpu_s(pids), time.perf_counter()
    answers: list[float] = []
    connection = Connection(stack.target)
    beating = worker_service_pb2_grpc.WorkerServiceStub(connection.control("scheduler"))
    while time.perf_counter() - began < seconds:
        beats = [wk.Heartbeat(run_id=run_id, attempt_id=b"?" * 16, lease_epoch=1, step_key="stay") for run_id in runs[:100]]
        asked = time.perf_counter()
        await connection.call(beating.HeartbeatAttempts, wk.HeartbeatAttemptsRequest(worker_id="probe", heartbeats=beats))
        answers.append((time.perf_counter() - asked) * 1000)
        await asyncio.sleep(0.1)
    await connection.close()
    took = time.perf_counter() - began
    used = spent(before, cpu_s(pids))
    still = await leased()
    lost = 0
    for run_id in runs[:: max(1, len(runs) // 200)]:
        ended = {sc.ATTEMPT_STATE_LOST, sc.ATTEMPT_STATE_TIMED_OUT, sc.ATTEMPT_STATE_UNCERTAIN}
        lost += sum(attempt.state in ended for attempt in await stack.client.attempts(run_id))
    for worker in workers:
        await worker.kill()
    answers.sort()
    return {
        "heartbeats": {
            "live_attempts": held,
            "live_after": still,
            "per_s": live / 20,
            "seconds": round(took, 1),
            "false_expiries": (held - still) + lost,
            "cpu_share": {kind: round(seconds_used / took, 3) for kind, seconds_used in used.items() if seconds_used > 0.05},
            "p50_ms": round(percentile(answers, 0.5), 1),
            "p99_ms": round(percentile(answers, 0.99), 1),
            "ramp_s": round(ramp_s, 1),
        }
    }
