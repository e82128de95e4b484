"""`make bench-check`: what a step costs now, held against the committed ranges; and the history of every figure.

Authoritative for what counts as a regression: `ranges.json` gives for each figure the most that was seen of a sound commit, with
the noise of a shared machine in it. Processor time and log volume are compared, never steps a second. The least of several rounds
counts, since a neighbour only ever adds.
"""

import json
import time
from pathlib import Path
from typing import Any

from tests.bench import measures
from tests.bench.bench_stack import started

RANGES = Path(__file__).parent / "ranges.json"
HISTORY = Path(__file__).parent / "history.jsonl"
ROUNDS = 6


async def measure(rounds: int = ROUNDS) -> dict[str, float]:
    """The figures that are guarded."""
    async with started("check") as bench:
        await bench.worker("ten")
        await measures.steps(bench, 30, 10)
        taken = [await measures.steps(bench, 200, 10) for _ in range(rounds)]
    kinds = ("services", "postgres", "worker")
    found = {f"{kind}_us_per_step": float(min(figures["cpu_us_per_step"][kind] for figures in taken)) for kind in kinds}  # type: ignore[index]
    found["total_us_per_step"] = float(min(figures["cpu_us_per_step_total"] for figures in taken))  # type: ignore[type-var]
    found["wal_bytes_per_step"] = float(min(figures["wal_bytes_per_step"] for figures in taken))  # type: ignore[type-var]
    return found


def judge(found: dict[str, float], ranges: dict[str, dict[str, float]]) -> list[str]:
    """What is beyond its range, in words."""
    wrong = [f"{name}: nothing was measured" for name in ranges if name not in found]
    for name, value in found.items():
        most = ranges.get(name, {}).get("most")
        if most is None:
            wrong.append(f"{name}: {RANGES.name} has no range for it")
        elif value > most:
            wrong.append(f"{name}: {value:g} is more than {most:g}")
    return wrong


async def run(commit: str) -> int:
    """Measures, compares, prints; the exit status."""
    found = await measure()
    ranges = json.loads(RANGES.read_text())["figures"]
    wrong = judge(found, ranges)
    for name, value in found.items():
        print(f"{name:24}{value:>10g}   at most {ranges.get(name, {}).get('most', '?')}")
    for text in wrong:
        print(f"REGRESSION {text}")
    print(f"{commit[:12]}: {'beyond the ranges' if wrong else 'within the ranges'}")
    return 1 if wrong else 0


def remember(whole: dict[str, Any]) -> None:
    """One line a run of `make bench`, with its commit, for whoever commits it."""
    mine, peers = whole["runway"], whole["peers"]
    line = {
        "commit": whole["commit"],
        "at": whole["at"],
        "commit_ms": whole["commit_ms"],
        "steps_per_s": mine["steps"]["steps_per_s"],
        "launches_per_s": mine["launches_queued"]["launches_per_s"],
        "launches_working_per_s": mine["launches"]["launches_per_s"],
        "launch_batches_per_s": mine["launch_batches"]["launches_per_s"],
        "latency_p50_ms": mine["latency"]["p50"],
        "latency_p99_ms": mine["latency"]["p99"],
        "split_p50_ms": mine["latency_split"]["p50"],
        "cpu_us_per_step": mine["steps"]["cpu_us_per_step"],
        "wal_bytes_per_step": mine["steps"]["wal_bytes_per_step"],
        "peers_steps_per_s": {n: f["steps"]["steps_per_s"] if isinstance(f, dict) else None for n, f in peers.items()},
        "ratio": whole["ratio"],
        "judged": whole.get("judged", {}),
        "missed": whole.get("missed", []),
        "written": time.strftime("%Y-%m-%d"),
    }
    with HISTORY.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
