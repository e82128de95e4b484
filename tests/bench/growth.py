"""How processor time and log volume a step grow: with the queue, and with the number of schedulers.

A queue is filled while no worker is there; then a worker comes, and what the next steps cost is read while most of the queue
still waits. Can go wrong: the cost of filling counted as the cost of a step; counters are read after the queue has settled.
"""

import asyncio
import time

from tests.bench.bench_stack import Bench, say, spent, started, started_with_schedulers
from tests.bench.measures import best_steps, launch_batches, steps

WAITING = "SELECT count(*) FROM scheduler.ticket WHERE state = 1"
DONE = "SELECT count(*) FROM scheduler.ticket WHERE state = 4"


async def _reaches(bench: Bench, query: str, number: int, timeout_s: float) -> None:
    end = time.perf_counter() + timeout_s
    while await bench.admin.fetchval(query) < number:
        if time.perf_counter() > end:
            raise TimeoutError(f"{query} did not reach {number} in {timeout_s:.0f} s")
        await asyncio.sleep(0.1)  # between two looks at a table that the measured services fill


async def queue(depths: tuple[int, ...], sample: int) -> dict[str, object]:
    """Microseconds and bytes of log a step, at each depth of the queue."""
    found: dict[str, object] = {}
    for depth in depths:
        say(f"a queue of {depth}")
        async with started("growth") as bench:
            filled = await launch_batches(bench, 4, depth, 200)
            await _reaches(bench, WAITING, depth, 300)
            await asyncio.sleep(1)  # the last writes of filling are over before measuring begins
            before, wal, began = bench.cpu_s(), await bench.wal_bytes(), time.perf_counter()
            await bench.worker("one")
            await _reaches(bench, DONE, min(sample, depth), 120)
            done = await bench.admin.fetchval(DONE)
            took, used = time.perf_counter() - began, spent(before, bench.cpu_s())
            found[str(depth)] = {
                "filled_per_s": filled["launches_per_s"],
                "steps": done,
                "steps_per_s": round(done / took, 1),
                "cpu_us_per_step": {kind: round(seconds * 1e6 / done) for kind, seconds in used.items() if seconds > 0.02},
                "wal_bytes_per_step": round((await bench.wal_bytes() - wal) / done),
                "rss_mb": bench.rss_mb(),
            }
    return found


async def schedulers(numbers: tuple[int, ...], runs: int, per_run: int) -> dict[str, object]:
    """The same work with every service in its own process and so many schedulers."""
    found: dict[str, object] = {}
    for number in numbers:
        say(f"{number} scheduler processes")
        async with started_with_schedulers(f"schedulers-{number}", number) as bench:
            await bench.worker("ten")
            await steps(bench, 30, per_run)
            found[str(number)] = await best_steps(bench, runs, per_run, 2)
    return found
