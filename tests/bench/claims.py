"""What a claim costs over queues of a thousand, ten thousand and a hundred thousand tickets, in the processes that serve it.

A process per service. As many tickets as the queue is long wait beyond those that are claimed, so that it is never shorter; workers hold
what they get for a moment and report it. Processor time of the scheduler alone, and of PostgreSQL, by claimed ticket. n log n or better is:
a claim at 100,000 costs at most log 100,000 / log 1,000 = 1.67 times what it costs at 1,000. Can go wrong: what comes after a report
(readiness, launch) counted as a claim's cost; those processes are not counted.
"""

import asyncio
import math
import time
from typing import Any

import psutil

from tests.bench import flows
from tests.bench.bench_stack import SERVICES, Bench, say, started
from tests.bench.raw_fleet import raw_fleet
from tests.bench.tenants import BADLY, fill, fleet_key, handlers, reaches, tenant

AUTOMATION = 2
GROWTH = math.log(100_000) / math.log(1_000)


async def claims(shortest: int = 1_000, longest: int = 100_000, sample: int = 3_000, rounds: int = 2) -> dict[str, Any]:
    """By length of the queue; the least of the rounds."""
    found: dict[str, Any] = {}
    lengths = sorted({shortest, math.isqrt(shortest * longest), longest})
    for length in lengths:
        say(f"a queue of {length}")
        async with started("queue", apart=SERVICES) as bench, tenant(bench, "queuer", flows.one) as queuer:
            key = await fleet_key(bench)
            await fill(queuer, flows.one, length + sample * (rounds + 1), AUTOMATION)
            await reaches(bench, length + sample * (rounds + 1))
            await asyncio.sleep(1)  # the last writes of filling are over before measuring begins
            await _taken(bench, key, sample)  # everything is warm then
            taken = [await _taken(bench, key, sample) for _ in range(rounds)]
            found[str(length)] = {name: min(figures[name] for figures in taken) for name in taken[0]}
            badly = await bench.admin.fetchval(BADLY)
            found[str(length)]["leases_ended_badly"] = badly
    first, last = found[str(lengths[0])], found[str(lengths[-1])]
    return {
        "judged": {
            "growth_of_a_claim": round(last["scheduler_us"] / first["scheduler_us"], 2),
            "growth_beyond_n_log_n": round(
                last["scheduler_us"] / first["scheduler_us"] / (math.log(lengths[-1]) / math.log(lengths[0])), 2
            ),
            "leases_ended_badly": sum(figures["leases_ended_badly"] for figures in found.values()),
        },
        "by_length": found,
    }


def _cpu_s(bench: Bench) -> dict[str, float]:
    """Processor seconds of the scheduler and of PostgreSQL so far."""
    used = {"scheduler": 0.0, "postgres": 0.0}
    for process in bench.processes():
        try:
            times, name, command = process.cpu_times(), process.name(), process.cmdline()
        except psutil.Error:
            continue
        kind = "postgres" if name == "postgres" else "scheduler" if "host" in command and "scheduler" in command else ""
        if kind:
            used[kind] += times.user + times.system
    return used


async def _taken(bench: Bench, key: str, sample: int) -> dict[str, float]:
    """What `sample` claims and reports cost."""
    done = asyncio.Event()
    got = 0

    def note(*_: object) -> None:
        nonlocal got
        got += 1
        if got >= sample:
            done.set()

    before, began = _cpu_s(bench), time.perf_counter()
    async with raw_fleet(
        bench.target, key, handlers(flows.one), workers=4, slots=100, step_s=0.05, on_lease=note, name=f"claims-{began:.0f}"
    ) as fleet:
        await asyncio.wait_for(done.wait(), 300)
        for worker in fleet:
            worker.slots = 0
        while any(worker.live for worker in fleet):
            await asyncio.sleep(0.05)  # what is held is reported within moments
        took, after = time.perf_counter() - began, _cpu_s(bench)
    return {
        "scheduler_us": round((after["scheduler"] - before["scheduler"]) * 1e6 / got, 1),
        "postgres_us": round((after["postgres"] - before["postgres"]) * 1e6 / got, 1),
        "ms": round(took * 1e3 / got, 3),
    }
