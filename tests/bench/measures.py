"""Our side of the benchmark: what is measured of a running installation, by callers over gRPC and from the operating system.

Authoritative for nothing. Can go wrong: a figure that measures the measuring. Callers live in the benchmark's process, workers
in theirs; processor time is read from the kernel, per process.
"""

import asyncio
import statistics
import time

from runway.launch.v1 import launch_service_pb2 as pb
from runway.launch.v1 import launch_service_pb2_grpc
from runway.scheduler.v1 import scheduler_service_pb2 as sc
from runway.scheduler.v1 import worker_service_pb2 as wk
from runway.scheduler.v1 import worker_service_pb2_grpc
from runway_sdk.connection import Connection
from runway_sdk.values import to_value

from tests.bench.bench_stack import Bench, spent


def percentile(ordered: list[float], share: float) -> float:
    """Of a sorted list."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


async def steps(bench: Bench, runs: int, per_run: int, flow: str = "bench-ten") -> dict[str, object]:
    """Runs of sequential trivial steps, launched together and waited for; with processor time and log volume a step."""
    client = bench.client
    before, wal, began = bench.cpu_s(), await bench.wal_bytes(), time.perf_counter()
    launched = await asyncio.gather(*(client.launch(flow, number) for number in range(runs)))
    await asyncio.gather(*(client.wait(run.run_id, timeout_s=300) for run in launched))
    took = time.perf_counter() - began
    used, wal = spent(before, bench.cpu_s()), await bench.wal_bytes() - wal
    total = runs * per_run
    return {
        "steps_per_s": round(total / took, 1),
        "cpu_us_per_step": {kind: round(seconds * 1e6 / total) for kind, seconds in used.items() if seconds > 0.005},
        "cpu_us_per_step_total": round(sum(used.values()) * 1e6 / total),
        "wal_bytes_per_step": round(wal / total),
    }


async def best_steps(bench: Bench, runs: int, per_run: int, rounds: int) -> dict[str, object]:
    """The median round by steps a second, and the least processor time a step: a noisy neighbour only ever adds."""
    taken = [await steps(bench, runs, per_run) for _ in range(rounds)]
    taken.sort(key=lambda figures: figures["steps_per_s"])
    least = min(taken, key=lambda figures: figures["cpu_us_per_step_total"])
    return {
        **least,
        "steps_per_s": taken[len(taken) // 2]["steps_per_s"],
        "steps_per_s_rounds": [figures["steps_per_s"] for figures in taken],
        "runs": runs,
        "steps_per_run": per_run,
    }


async def launches(bench: Bench, callers: int, count: int) -> dict[str, object]:
    """Unary LaunchRun calls by so many callers at once; each is durable, with its budget reserved, when it answers."""
    connections = [Connection(bench.target) for _ in range(4)]
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
    return {"launches_per_s": round(count / took, 1), "launches": count, "callers": callers}


async def launch_batches(bench: Bench, callers: int, count: int, batch: int = 100) -> dict[str, object]:
    """LaunchRuns by so many callers at once, `batch` runs a call."""
    left = iter(range(0, count, batch))

    async def caller() -> None:
        for at in left:
            names = [f"batch-{time.time_ns()}-{at}-{number}" for number in range(batch)]
            requests = [pb.LaunchRunRequest(request_id=name, workflow="bench-one", input=to_value(at)) for name in names]
            refused = [result for result in await bench.client.launch_many(requests) if not result.run.run_id]
            assert not refused, refused[0]

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    took = time.perf_counter() - began
    return {"launches_per_s": round(count / took, 1), "launches": count, "callers": callers, "batch": batch}


async def drained(bench: Bench, timeout_s: float = 240) -> float:
    """Waits until the launched runs have ended, so that what follows has the machine to itself; seconds."""
    states = [pb.RUN_STATE_ACCEPTED, pb.RUN_STATE_RUNNING, pb.RUN_STATE_CLOSING]
    began = time.perf_counter()
    while time.perf_counter() - began < timeout_s:
        if not (await bench.client.list_runs(states=states, page_size=1)).runs:
            break
        await asyncio.sleep(0.2)  # between two looks: looking costs what is measured next
    return time.perf_counter() - began


HOPS = """
SELECT r.created_ms, t.enqueued_ms, a.leased_ms, a.ended_ms, r.finished_ms
  FROM launch.run AS r JOIN scheduler.ticket AS t USING (run_id) JOIN scheduler.attempt AS a USING (run_id)
 WHERE r.run_id = ANY ($1::uuid[])
"""


async def latency(bench: Bench, samples: int) -> dict[str, object]:
    """From launch to result of a one-step run on an idle system, one at a time, and where the time goes.

    Hops are means of differences of the services' own clocks, in whole milliseconds each; the mean over all samples is not.
    """
    client = bench.client
    taken: list[float] = []
    answered: list[float] = []
    run_ids = []
    for number in range(samples + 10):
        began = time.perf_counter()
        run = await client.launch("bench-one", number)
        stored = time.perf_counter()
        await client.wait(run.run_id)
        if number >= 10:
            taken.append((time.perf_counter() - began) * 1000)
            answered.append((stored - began) * 1000)
            run_ids.append(run.run_id)
        await asyncio.sleep(0.02)  # the system is idle again: that is the measured case
    await drained(bench)
    rows = await bench.admin.fetch(HOPS, run_ids)
    names = ("stored to ticketed", "ticketed to leased", "leased to reported", "reported to settled")
    hops = {name: round(statistics.fmean(row[at + 1] - row[at] for row in rows), 2) for at, name in enumerate(names)}
    taken.sort()
    return {
        "p50": round(statistics.median(taken), 2),
        "p99": round(percentile(taken, 0.99), 2),
        "samples": samples,
        "hops_ms": {"launch call": round(statistics.fmean(answered), 2), **hops},
    }


async def heartbeats(bench: Bench, live: int, seconds: float, flow: str = "fleet", ttl_s: float = 60.0) -> dict[str, object]:
    """So many live attempts beating every third of their TTL from four worker processes: processor share, false expiries, and
    how long a heartbeat call of 100 attempts (that nobody knows, so that nothing is kept alive by the probe) takes meanwhile."""
    client = bench.client
    workers = [await bench.worker(flow, slots=live // 4) for _ in range(4)]
    requests = [pb.LaunchRunRequest(request_id=f"{flow}-{number}", workflow=f"bench-{flow}") for number in range(live)]
    runs: list[str] = []
    for at in range(0, live, 500):
        runs += [result.run.run_id for result in await client.launch_many(requests[at : at + 500])]

    async def leased() -> int:
        return sum(shard.live_leases for shard in await client.shards())

    began = time.perf_counter()
    while await leased() < live and time.perf_counter() - began < 180:
        await asyncio.sleep(0.5)  # between two looks while the fleet fills
    held, ramp_s = await leased(), time.perf_counter() - began
    before, began = bench.cpu_s(), time.perf_counter()
    answers: list[float] = []
    connection = Connection(bench.target)
    beating = worker_service_pb2_grpc.WorkerServiceStub(connection.control("scheduler"))
    while time.perf_counter() - began < seconds:
        beats = [wk.Heartbeat(run_id=run_id, attempt_id=b"?" * 16, lease_epoch=1, step_key="stay") for run_id in runs[:100]]
        asked = time.perf_counter()
        await connection.call(beating.HeartbeatAttempts, wk.HeartbeatAttemptsRequest(worker_id="probe", heartbeats=beats))
        answers.append((time.perf_counter() - asked) * 1000)
        await asyncio.sleep(0.1)  # the probe beats ten times a second beside the fleet
    await connection.close()
    took = time.perf_counter() - began
    used = spent(before, bench.cpu_s())
    still = await leased()
    ended = {sc.ATTEMPT_STATE_LOST, sc.ATTEMPT_STATE_TIMED_OUT, sc.ATTEMPT_STATE_UNCERTAIN}
    lost = 0
    for run_id in runs[:: max(1, len(runs) // 200)]:
        lost += sum(attempt.state in ended for attempt in await client.attempts(run_id))
    for worker in workers:
        worker.kill()
        await worker.wait()
    answers.sort()
    return {
        "live_attempts": held,
        "live_after": still,
        "per_s": round(live / (ttl_s / 3)),
        "seconds": round(took, 1),
        "false_expiries": (held - still) + lost,
        "cpu_share": {kind: round(seconds_used / took, 3) for kind, seconds_used in used.items() if seconds_used > 0.05},
        "p50_ms": round(percentile(answers, 0.5), 1),
        "p99_ms": round(percentile(answers, 0.99), 1),
        "ramp_s": round(ramp_s, 1),
    }
