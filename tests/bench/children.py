"""Children of one parent with a joined result; a tree that is cancelled; runs that are cancelled alone.

Leaves of the tree are attempts that run under a live lease, so that a cancel has something to end. Can go wrong: a tree that
is not whole when it is cancelled. It is waited for until every leaf is leased.
"""

import asyncio
import time
from typing import Any

from runway.launch.v1 import launch_service_pb2 as pb

from tests.bench.bench_stack import Bench, say, spent, started

PACE_S = 0.05
LEASED = "SELECT count(*) FROM scheduler.ticket WHERE open AND state = 2"
MIDDLE = 9


async def children(count: int = 10_000) -> dict[str, Any]:
    """So many children of one parent: spawned, run, joined."""
    async with started("children") as bench:
        await bench.worker("parent", slots=4)
        await bench.worker("one", slots=1_000)
        await _warm(bench)
        before, wal = bench.cpu_s(), await bench.wal_bytes()
        began = time.perf_counter()
        run = await bench.client.launch("bench-parent", count)
        spawned_s = await _until(bench, f"SELECT count(*) FROM launch.run WHERE parent_id = '{run.run_id}'", count, began)
        told = await bench.client.result(run.run_id, timeout_s=900)
        joined_s = time.perf_counter() - began
        await bench.client.wait(run.run_id, settled=True, timeout_s=60)
        used = spent(before, bench.cpu_s())
        return {
            "children": count,
            "succeeded": told["succeeded"],
            "told": told["told"],
            "spawned_s": round(spawned_s, 2),
            "joined_s": round(joined_s, 2),
            "settled_s": round(time.perf_counter() - began, 2),
            "children_per_s": round(count / joined_s, 1),
            "cpu_us_per_child": {kind: round(seconds * 1e6 / count) for kind, seconds in used.items() if seconds > 0.05},
            "wal_bytes_per_child": round((await bench.wal_bytes() - wal) / count),
        }


async def cancel_tree(runs: int = 1_000, rounds: int = 3) -> dict[str, Any]:
    """A tree of so many runs, three levels deep, its leaves at work: cancelled until every point holds all of it."""
    async with started("cancel-tree") as bench:
        await bench.worker("tree", slots=100)
        await bench.worker("held", slots=runs + 100)
        await _warm(bench)
        leaves = (runs - 1 - MIDDLE) // MIDDLE
        found = []
        for number in range(rounds):
            say(f"tree {number}")
            run = await bench.client.launch("bench-tree", [MIDDLE, leaves])
            await _until(bench, LEASED, MIDDLE * leaves, time.perf_counter())
            began = time.perf_counter()
            answer = await bench.client.cancel(run.run_id)
            answered_s = time.perf_counter() - began
            first = answer.descendants.enforced
            while answer.descendants.enforced < answer.descendants.total or answer.phase < pb.CANCEL_PHASE_ENFORCED:
                await asyncio.sleep(PACE_S)
                answer = await bench.client.cancel(run.run_id)
            enforced_s = time.perf_counter() - began
            await bench.client.wait(run.run_id, settled=True, timeout_s=120)
            found.append(
                {
                    "runs": answer.descendants.total + 1,
                    "answered_s": round(answered_s, 3),
                    "enforced_in_the_answer": first,
                    "enforced_s": round(enforced_s, 3),
                    "settled_s": round(time.perf_counter() - began, 3),
                }
            )
        return {"rounds": found, "worst_enforced_s": max(one["enforced_s"] for one in found)}


async def cancel(count: int = 300) -> dict[str, Any]:
    """Runs at work, cancelled one after the other: how long until every point holds it."""
    async with started("cancel") as bench:
        await bench.worker("held", slots=count + 20)
        await _warm(bench)
        launches = [pb.LaunchRunRequest(request_id=f"c-{number}", workflow="bench-held") for number in range(count)]
        results = await bench.client.launch_many(launches)
        await _until(bench, LEASED, count, time.perf_counter())
        took, late = [], 0
        for result in results:
            began = time.perf_counter()
            answer = await bench.client.cancel(result.run.run_id)
            late += answer.phase < pb.CANCEL_PHASE_ENFORCED
            while answer.phase < pb.CANCEL_PHASE_ENFORCED:
                await asyncio.sleep(PACE_S)
                answer = await bench.client.cancel(result.run.run_id)
            took.append(time.perf_counter() - began)
        took.sort()
        at = lambda share: round(took[min(len(took) - 1, int(len(took) * share))] * 1000, 1)  # noqa: E731
        return {"cancels": count, "not_enforced_at_once": late, "enforced_ms": {"p50": at(0.5), "p99": at(0.99), "max": at(1)}}


async def _warm(bench: Bench) -> None:
    run = await bench.client.launch("bench-held")
    await _until(bench, "SELECT count(*) FROM launch.run", 1, time.perf_counter())
    await bench.client.cancel(run.run_id)
    await bench.client.wait(run.run_id, settled=True, timeout_s=30)


async def _until(bench: Bench, sql: str, count: int, began: float) -> float:
    while await bench.admin.fetchval(sql) < count:
        if time.perf_counter() - began > 600:
            raise RuntimeError(f"{sql} did not come to {count}")
        await asyncio.sleep(PACE_S)
    return time.perf_counter() - began
