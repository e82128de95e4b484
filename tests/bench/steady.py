"""Steady load for as long as you like: so many runs of twenty steps a second, and what each process's memory does meanwhile.

A process per service, retention of a minute, so that whatever is kept for longer than a run lives shows. Memory is a process's own
(without shared pages), sampled every few seconds; PostgreSQL's processes by their mean. The first sixth is
for warming up: caches that are bounded fill. Flat is: the median of the last sixth is at most a tenth and 8 MB above that of the
second. Can go wrong: a load that the machine cannot carry; then runs pile up, which is said and is not flat.
"""

import asyncio
import time

from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk.values import to_value

from tests.bench.bench_stack import SERVICES, Bench, memory_growth, say, spent, started
from tests.bench.day import OPEN

SAMPLE_S = 5.0
KEEP_MS = 60_000
PILE_S = 20
"""Runs of so many seconds may be open: more is a pile."""


async def steady(minutes: float, runs_per_s: int) -> dict[str, object]:
    """So many runs a second, for so many minutes."""
    memory: list[dict[str, float]] = []
    open_runs: list[int] = []
    async with started("steady", apart=SERVICES, environ={"RUNWAY_RETENTION_MS": str(KEEP_MS)}) as bench:
        await bench.worker("twenty")
        before, began = bench.cpu_s(), time.perf_counter()
        loading = asyncio.create_task(_load(bench, minutes * 60, runs_per_s))
        while not loading.done():
            await asyncio.wait({loading}, timeout=SAMPLE_S)
            memory.append(bench.rss_mb_of_each())
            open_runs.append(await bench.admin.fetchval(OPEN))
        runs = await loading
        used, took = spent(before, bench.cpu_s()), time.perf_counter() - began
    each = memory_growth(memory)
    piled = max(open_runs[len(open_runs) // 6 :]) > PILE_S * runs_per_s
    flat = not piled and all(entry["flat"] for entry in each.values())
    say(f"{runs} runs in {took / 60:.0f} min; memory {'flat' if flat else 'NOT flat'}")
    return {
        "runs": runs,
        "minutes": round(took / 60, 1),
        "steps_per_s": round(runs * 20 / took, 1),
        "cores": {kind: round(seconds / took, 3) for kind, seconds in used.items() if seconds > 1},
        "most_open_runs": max(open_runs),
        "memory_mb": each,
        "flat": flat,
        "samples": memory[:: max(1, len(memory) // 60)],
    }


async def _load(bench: Bench, seconds: float, runs_per_s: int) -> int:
    """Launches at this rate; how many it launched. A second that comes late is not made up for."""
    runs = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        due = time.perf_counter() + 1
        requests = [
            pb.LaunchRunRequest(request_id=f"steady-{runs + number}", workflow="bench-twenty", input=to_value(number))
            for number in range(runs_per_s)
        ]
        await bench.client.launch_many(requests)
        runs += runs_per_s
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
    return runs
