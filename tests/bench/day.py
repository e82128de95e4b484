"""A share of the seeds' day: many runs of twenty steps, launched as fast as they are taken, and what the tables do meanwhile.

The day is 100,000 runs of 20 steps. Sampled once a second: runs that ended, rows and bytes of tables, dead rows, the outboxes'
oldest row, memory. Can go wrong: launches that wait for the sampling; they run beside it.
"""

import asyncio
import time

import asyncpg
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk.values import to_value

from libs.embedded import running_url
from tests.bench.bench_stack import Bench, memory_growth, say, spent, started

TABLES = """
SELECT s.schemaname || '.' || s.relname AS name, s.n_live_tup AS live, s.n_dead_tup AS dead,
       pg_table_size(s.relid) AS bytes, pg_indexes_size(s.relid) AS index_bytes, s.autovacuum_count AS vacuums
  FROM pg_stat_user_tables AS s WHERE pg_table_size(s.relid) > 65536 ORDER BY 4 DESC
"""
OUTBOXES = " UNION ALL ".join(
    f"SELECT '{name}' AS name, count(*) AS rows, coalesce(min(created_ms), 0) AS oldest FROM {name}.outbox"
    for name in ("launch", "readiness", "scheduler")
)
SAMPLE_S = 1.0
PACE_S = 0.05
"""Before it is looked again whether fewer runs are open: launching is held back, not measured."""
OPEN = "SELECT count(*) FROM launch.run WHERE state < 9"
KEPT = "SELECT count(*) FROM launch.run WHERE state >= 9"


async def _sample(bench: Bench, began: float) -> dict[str, object]:
    now_ms = time.time() * 1000
    outboxes = await bench.admin.fetch(OUTBOXES)
    tables = await bench.admin.fetch(TABLES)
    return {
        "t_s": round(time.perf_counter() - began, 1),
        "open": await bench.admin.fetchval(OPEN),
        "ended_and_kept": await bench.admin.fetchval(KEPT),
        "outbox_rows": {row["name"]: row["rows"] for row in outboxes},
        "outbox_oldest_ms": {row["name"]: round(now_ms - row["oldest"]) for row in outboxes if row["oldest"]},
        "table_mb": round(sum(row["bytes"] for row in tables) / 1e6, 1),
        "index_mb": round(sum(row["index_bytes"] for row in tables) / 1e6, 1),
        "dead_rows": sum(row["dead"] for row in tables),
        "vacuums": sum(row["vacuums"] for row in tables),
        "rss_mb": bench.rss_mb(),
    }


async def _launch(bench: Bench, runs: int, ahead: int) -> None:
    """Launches them all, while at most `ahead` are open."""
    watching = await asyncpg.connect(running_url(bench.profile.parent / "postgres"))  # the sampler has the other connection
    try:
        await _launch_all(bench, watching, runs, ahead)
    finally:
        await watching.close()


async def _launch_all(bench: Bench, watching: asyncpg.Connection, runs: int, ahead: int) -> None:
    for at in range(0, runs, 100):
        while await watching.fetchval(OPEN) > ahead:
            await asyncio.sleep(PACE_S)
        names = [f"day-{at + number}" for number in range(min(100, runs - at))]
        requests = [pb.LaunchRunRequest(request_id=name, workflow="bench-twenty", input=to_value(at)) for name in names]
        await bench.client.launch_many(requests)


async def share(runs: int, *, retention_s: float = 0, limit_s: float = 600) -> dict[str, object]:
    """So many runs of the day. With a retention, ended runs are forgotten after it, and the tables must stay bounded."""
    environ = {"RUNWAY_RETENTION_MS": str(int(retention_s * 1000))} if retention_s else {}
    samples: list[dict[str, object]] = []
    async with started("day", environ=environ) as bench:
        workers = [await bench.worker("twenty") for _ in range(1)]
        wal, before, began = await bench.wal_bytes(), bench.cpu_s(), time.perf_counter()
        launching = asyncio.create_task(_launch(bench, runs, 1_000))
        left = 1
        while (left or not launching.done()) and time.perf_counter() - began < limit_s:
            await asyncio.sleep(SAMPLE_S)
            samples.append(await _sample(bench, began))
            left = samples[-1]["open"]  # type: ignore[assignment]
        await launching
        ended = runs - await bench.admin.fetchval(OPEN)
        took, used = time.perf_counter() - began, spent(before, bench.cpu_s())
        total = ended * 20
        tables = await bench.admin.fetch(TABLES)
        say(f"{ended} runs in {took:.0f} s with {len(workers)} worker")
        return {
            "runs": ended,
            "steps_per_run": 20,
            "steps_per_s": round(total / took, 1),
            "cpu_us_per_step": {kind: round(seconds * 1e6 / total) for kind, seconds in used.items() if seconds > 0.1},
            "wal_bytes_per_step": round((await bench.wal_bytes() - wal) / total),
            "outbox_oldest_ms_max": max(
                (age for sample in samples for age in sample["outbox_oldest_ms"].values()),  # type: ignore[attr-defined]
                default=0,
            ),
            "tables": [
                {
                    "name": row["name"],
                    "rows": row["live"],
                    "dead": row["dead"],
                    "bytes": row["bytes"],
                    "vacuums": row["vacuums"],
                }
                for row in tables[:12]
            ],
            "memory_mb": memory_growth([sample["rss_mb"] for sample in samples]),  # type: ignore[misc]
            "samples": samples[:: max(1, len(samples) // 40)],
        }
