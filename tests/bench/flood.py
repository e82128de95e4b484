"""One tenant queues a hundred thousand migration runs over two hundred shared slots; another launches an interactive run a second.

Measured from the scheduler's rows: how long interactive tickets wait from ready to leased, how many migration leases ever lived at once
(the reserve is what they may not touch), and whether migrations that have begun go on. From launch: until a worker has the lease, all hops
included. Can go wrong: rows that say when a commit began, not when it was over; that is milliseconds, and the same for both ends.
"""

import asyncio
import time
from typing import Any

from runway.scheduler.v1 import worker_service_pb2 as wk
from runway_sdk import Client

from tests.bench import flows
from tests.bench.bench_stack import Bench, say, spent, started
from tests.bench.measures import percentile
from tests.bench.raw_fleet import raw_fleet
from tests.bench.tenants import BADLY, SPANS, fill, fleet_key, handlers, most_at_once, reaches, tenant

INTERACTIVE, MIGRATION = 1, 3
RESERVE_PERMILLE = 100
LAST_FIRST = "s0"
BEGUN_WAITING = """
SELECT coalesce(max($1 - t.enqueued_ms), 0) FROM scheduler.ticket AS t
 WHERE t.open AND t.state = 1 AND t.step_key <> 's0' AND t.run_class = 3
"""
NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"


async def flood(tickets: int = 100_000, seconds: float = 120.0, slots: int = 200, step_s: float = 2.0) -> dict[str, Any]:
    """The figures; `tickets` migration runs of three steps wait before the first slot is there."""
    arrived: dict[str, float] = {}

    def note(lease: wk.Lease, at: float) -> None:
        if lease.tenant == "person":
            arrived.setdefault(lease.run_id, at)

    async with (
        started("flood") as bench,
        tenant(bench, "mover", flows.three) as mover,
        tenant(bench, "person", flows.one) as person,
    ):
        key = await fleet_key(bench)
        say(f"{tickets} migration runs")
        filled = await fill(mover, flows.three, tickets, MIGRATION)
        await reaches(bench, tickets)
        async with raw_fleet(
            bench.target, key, handlers(flows.one, flows.three), workers=4, slots=slots, step_s=step_s, on_lease=note
        ) as fleet:
            await asyncio.sleep(2 * step_s)  # every slot that migrations may have is theirs
            say("an interactive run a second")
            before, began = bench.cpu_s(), time.perf_counter()
            launched = await _one_a_second(person, seconds)
            used, took = spent(before, bench.cpu_s()), time.perf_counter() - began
            await asyncio.sleep(step_s)
            fenced, refused = sum(worker.fenced for worker in fleet), {k: v for w in fleet for k, v in w.refused.items()}
            found = await _judged(bench, slots, launched, arrived)
        return {
            **found,
            "filled_per_s": filled,
            "seconds": round(took, 1),
            "cores": {kind: round(value / took, 3) for kind, value in used.items() if value > 0.05},
            "told_fenced": fenced,
            "refused": refused,
        }


async def _one_a_second(person: Client, seconds: float) -> dict[str, tuple[float, float]]:
    """Run → when it was asked for, and when it was stored."""
    launched: dict[str, tuple[float, float]] = {}
    calls: set[asyncio.Task[None]] = set()

    async def one(number: int) -> None:
        asked = time.perf_counter()
        run = await person.launch("bench-one", number, run_class="interactive")
        launched[run.run_id] = (asked, time.perf_counter())

    end = time.perf_counter() + seconds
    number = 0
    while (due := time.perf_counter() + 1.0) <= end + 1.0:
        calls.add(asyncio.create_task(one(number)))
        number += 1
        await asyncio.sleep(max(0.0, due - time.perf_counter()))  # the rate of the load
    await asyncio.gather(*calls)
    return launched


async def _judged(
    bench: Bench, slots: int, launched: dict[str, tuple[float, float]], arrived: dict[str, float]
) -> dict[str, Any]:
    now_ms = await bench.admin.fetchval(NOW)
    begun_waiting_ms = await bench.admin.fetchval(BEGUN_WAITING, now_ms)
    spans = await bench.admin.fetch(SPANS)
    waits = sorted(float(row["leased_ms"] - row["enqueued_ms"]) for row in spans if row["run_class"] == INTERACTIVE)
    whole = sorted((arrived[run] - asked) * 1000 for run, (asked, _) in launched.items() if run in arrived)
    stored = sorted((done - asked) * 1000 for asked, done in launched.values())
    migrations = [row for row in spans if row["run_class"] == MIGRATION]
    most = most_at_once((row["leased_ms"], row["ended_ms"]) for row in migrations)
    next_waits = sorted(float(r["leased_ms"] - r["enqueued_ms"]) for r in migrations if r["step_key"] != LAST_FIRST)
    return {
        "judged": {
            "ready_to_leased_p95_ms": percentile(waits, 0.95) if waits else None,
            "interactive_not_leased": len(launched) - len(waits),
            "launched_to_worker_p95_ms": round(percentile(whole, 0.95), 1) if whole else None,
            "migrations_in_the_reserve": max(0, most - (slots - slots * RESERVE_PERMILLE // 1000)),
            "slots_over_all": max(0, most_at_once((row["leased_ms"], row["ended_ms"]) for row in spans) - slots),
            "migration_runs_finished": sum(row["step_key"] == "s2" and row["ended_ms"] is not None for row in migrations),
            "begun_migration_longest_wait_ms": max(begun_waiting_ms, next_waits[-1] if next_waits else 0),
            "leases_ended_badly": await bench.admin.fetchval(BADLY),
        },
        "interactive_runs": len(launched),
        "ready_to_leased_ms": _spread(waits),
        "launched_to_worker_ms": _spread(whole),
        "launch_call_ms": _spread(stored),
        "most_migration_leases_at_once": most,
        "migration_steps_done": sum(row["ended_ms"] is not None for row in migrations),
        "queue": await bench.admin.fetchval("SELECT count(*) FROM scheduler.ticket WHERE open AND state = 1"),
    }


def _spread(ordered: list[float]) -> dict[str, float]:
    if not ordered:
        return {}
    return {name: round(percentile(ordered, share), 1) for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0))}
