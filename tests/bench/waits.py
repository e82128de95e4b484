"""Steps that wait: what so many cost while nothing is due, and how late they wake when so many a second are.

Each run's one step waits until a time of its own. Filling is launching, one attempt and one yield a step; then nothing is due for a
while, in which processor time is the cost of waiting; then the times come, evenly. Can go wrong: times that come before all steps
wait. The figures then say so (`waiting_when_first_due`), and the fill rate has to be given lower.
"""

import asyncio
import time

from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk.values import to_value

from tests.bench.bench_stack import Bench, say, spent, started

BATCH = 500
IDLE_S = 10.0
WAITING = "SELECT count(*) FROM readiness.step WHERE state = 4"
LEFT = "SELECT count(*) FROM readiness.wait WHERE state = 1"
LAGS = """
SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY ended_ms - due_ms) AS p50,
       percentile_disc(0.99) WITHIN GROUP (ORDER BY ended_ms - due_ms) AS p99, max(ended_ms - due_ms) AS most,
       max(ended_ms) - min(ended_ms) AS took
  FROM readiness.wait WHERE state = 2
"""
STARTS = """
SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY a.leased_ms - w.due_ms) AS p50,
       percentile_disc(0.99) WITHIN GROUP (ORDER BY a.leased_ms - w.due_ms) AS p99, max(a.leased_ms - w.due_ms) AS most
  FROM readiness.wait AS w JOIN scheduler.attempt AS a ON a.run_id = w.run_id AND a.end_kind = 1
"""
PACE_S = 0.2


async def waits(steps: int = 100_000, per_s: int = 1_000, fill_per_s: int = 250) -> dict[str, object]:
    """The figures."""
    async with started("waits") as bench:
        await bench.worker("waits", slots=1_000)
        first_ms = int(time.time() * 1000 + (steps / fill_per_s + IDLE_S + 10) * 1000)
        filled = await _fill(bench, steps, first_ms, per_s)
        memory = bench.rss_mb()
        say("nothing is due")
        before, began = bench.cpu_s(), time.perf_counter()
        while time.perf_counter() - began < IDLE_S and time.time() * 1000 < first_ms - 1_000:
            await asyncio.sleep(PACE_S)
        took, used = time.perf_counter() - began, spent(before, bench.cpu_s())
        idle = {kind: round(seconds / took, 3) for kind, seconds in used.items() if seconds > 0.005}
        waiting = await bench.admin.fetchval(WAITING)
        say("they wake")
        before, wal = bench.cpu_s(), await bench.wal_bytes()
        while await bench.admin.fetchval(LEFT):
            await asyncio.sleep(PACE_S)
        while await bench.admin.fetchval("SELECT count(*) FROM launch.run WHERE state < 9"):
            await asyncio.sleep(PACE_S)
        used = spent(before, bench.cpu_s())
        woken, leased = await bench.admin.fetchrow(LAGS), await bench.admin.fetchrow(STARTS)
        return {
            "steps": steps,
            "waking_per_s": per_s,
            "filled_per_s": round(steps / filled, 1),
            "waiting_when_first_due": waiting,
            "memory_mb_while_waiting": memory,
            "idle_cpu_share": idle,
            "woken_per_s": round(steps / max(0.001, woken["took"] / 1000), 1),
            "wake_lag_ms": {"p50": woken["p50"], "p99": woken["p99"], "max": woken["most"]},
            "leased_lag_ms": {"p50": leased["p50"], "p99": leased["p99"], "max": leased["most"]},
            "cpu_us_per_wake": {kind: round(seconds * 1e6 / steps) for kind, seconds in used.items() if seconds > 0.05},
            "wal_bytes_per_wake": round((await bench.wal_bytes() - wal) / steps),
        }


async def _fill(bench: Bench, steps: int, first_ms: int, per_s: int) -> float:
    """Launches them all and returns once they wait; how long it took."""
    began = time.perf_counter()
    for at in range(0, steps, BATCH):
        numbers = range(at, min(at + BATCH, steps))
        requests = [
            pb.LaunchRunRequest(
                request_id=f"wait-{number}", workflow="bench-waits", input=to_value(first_ms + number * 1000 // per_s, "input")
            )
            for number in numbers
        ]
        await bench.client.launch_many(requests)
    while await bench.admin.fetchval(WAITING) < steps and time.time() * 1000 < first_ms:
        await asyncio.sleep(PACE_S)
    return time.perf_counter() - began
