"""`make bench`, `make bench-check`, and the loads of `make soak`: measures, prints, writes build/bench/summary.json and comparison.png.

`python -m tests.bench` measures everything beside the peers, in one run on one machine; its exit status is 1 where a bound of
`tests/bench/promises.py` was missed. `python -m tests.bench check` measures steps alone and compares with the committed ranges.
`python -m tests.bench day RUNS [RETENTION_S]` is the seeds' day, or a share.
`python -m tests.bench steady MINUTES RUNS_PER_S` is steady load; its exit status is 1 where memory grew.
`python -m tests.bench planning` is what a claim cycle costs over long queues.
`python -m tests.bench waits [STEPS [PER_S [FILL_PER_S]]]` is so many waiting steps, and so many of them a second waking.
`python -m tests.bench children [N]` is so many children of one parent, joined; `cancel-tree [RUNS [ROUNDS]]` a tree that is cancelled,
and `cancel [N]` runs alone.
`python -m tests.bench flood`, `shares`, `takeover`, `heartbeats`, `queue` are what scheduling promises (`tests/bench/numbers.py`): exit
status 1 where a bound was missed.
`python -m tests.bench overload` is what one tenant's flood costs the heartbeats and cancels of others.
Figures of one run are comparable with each other, not with those of another machine or hour: that is what ratios are for.
"""

import libs  # noqa: F401, I001  (first: it keeps gRPC's fork handlers off)

import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from typing import Any

from libs.embedded import running_url
from tests.bench import check, children, day, growth, measures, numbers, overload, planning, promises, startup, steady, waits
from tests.bench.bench_stack import FOLDER, Bench, say, started, write_json
from tests.bench.peers import environments as peers

SHAPES: dict[str, Any] = {
    "callers": 64,
    "launches": int(os.environ.get("BENCH_LAUNCHES", "4000")),
    "batch_launches": int(os.environ.get("BENCH_BATCH_LAUNCHES", "10000")),
    "peer_launches": int(os.environ.get("BENCH_PEER_LAUNCHES", "600")),
    "runs": 200,
    "steps_per_run": 10,
    "rounds": int(os.environ.get("BENCH_ROUNDS", "3")),
    "latency_samples": 200,
    "fleet": int(os.environ.get("BENCH_FLEET", "10000")),
    "fleet_seconds": float(os.environ.get("BENCH_FLEET_SECONDS", "45")),
    "waits": int(os.environ.get("BENCH_WAITS", "100000")),
    "waits_filled_per_s": int(os.environ.get("BENCH_WAITS_FILL", "1500")),
    "waking_per_s": int(os.environ.get("BENCH_WAKING", "1000")),
    "children": int(os.environ.get("BENCH_CHILDREN", "10000")),
    "tree": int(os.environ.get("BENCH_TREE", "1000")),
    "cancels": int(os.environ.get("BENCH_CANCELS", "300")),
    "queue": [1_000, int(os.environ.get("BENCH_QUEUE", "100000"))],
    "schedulers": [1, 3],
    "day_runs": int(os.environ.get("BENCH_DAY_RUNS", "5000")),
}


def commit() -> str:
    """What is measured."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


async def ours_and_peers() -> dict[str, Any]:
    """The comparison: steps, latency and launches of ours, and of the peers while our workers rest."""
    found: dict[str, Any] = {"peers": {}}
    async with started("stack") as bench:
        found["commit_ms"] = await bench.commit_ms()
        say("ours: launches into a queue")
        mine: dict[str, Any] = {"launches_queued": await measures.launches(bench, SHAPES["callers"], SHAPES["launches"])}
        mine["launch_batches"] = await measures.launch_batches(bench, 4, SHAPES["batch_launches"])
        await bench.worker("one")
        await bench.worker("ten")
        await measures.drained(bench)
        say("ours: latency")
        await measures.steps(bench, 30, 10)
        mine["latency"] = await measures.latency(bench, SHAPES["latency_samples"])
        say("ours: steps")
        mine["steps"] = await measures.best_steps(bench, SHAPES["runs"], SHAPES["steps_per_run"], SHAPES["rounds"])
        say("ours: launches while their runs are worked on, as the peers' are")
        mine["launches"] = await measures.launches(bench, SHAPES["callers"], SHAPES["launches"])
        await measures.drained(bench)
        for name in ("restate", "dbos", "temporal"):
            say(f"{name}: the same work")
            found["peers"][name] = await peer(name, bench)
        say("ours: steps once more, after the peers")
        again = await measures.best_steps(bench, SHAPES["runs"], SHAPES["steps_per_run"], SHAPES["rounds"])
        mine["steps"]["steps_per_s_again"] = again["steps_per_s"]
        found["runway"] = mine
    say("ours: latency and steps with a process per service")
    async with started("split", apart=("all",)) as bench:
        await bench.worker("one")
        await measures.steps(bench, 30, 1, "bench-one")
        mine["latency_split"] = await measures.latency(bench, SHAPES["latency_samples"])
        await bench.worker("ten")
        await measures.steps(bench, 30, 10)
        mine["steps_split"] = await measures.best_steps(bench, SHAPES["runs"], SHAPES["steps_per_run"], SHAPES["rounds"])
    return found


async def peer(name: str, bench: Bench) -> object:
    """A peer's figures, or why there are none."""
    folder = FOLDER / f"peer-{name}"
    await asyncio.to_thread(subprocess.run, ["rm", "-rf", str(folder)], check=True)
    await asyncio.to_thread(folder.mkdir, parents=True)
    shapes = {**SHAPES, "rounds": 1} if name == "temporal" else SHAPES
    try:
        if name == "dbos":
            python = await asyncio.to_thread(peers.python_with, name, peers.DBOS)
            await bench.admin.execute("CREATE DATABASE dbos_bench")
            url = running_url(bench.profile.parent / "postgres").rsplit("/", 1)[0] + "/dbos_bench"
            arguments = [url, json.dumps(shapes)]
        elif name == "temporal":
            python = await asyncio.to_thread(peers.python_with, name, peers.TEMPORAL)
            arguments = [str(folder), json.dumps(shapes)]
        else:
            python = await asyncio.to_thread(peers.python_with, name, peers.RESTATE)
            server = await asyncio.to_thread(peers.restate_server)
            arguments = [str(folder), json.dumps(shapes), str(server)]
    except (peers.Absent, subprocess.TimeoutExpired) as absent:
        return f"absent: {absent}"
    return await asyncio.to_thread(peers.run_side, name, python, arguments)


async def everything() -> dict[str, Any]:
    """All of it, in one run."""
    began = time.perf_counter()
    whole = finished(await ours_and_peers(), began)  # written down at once: what comes after may fail
    say("runway dev: start and idle")
    whole["dev"] = await startup.dev(20)
    say("live attempts")
    async with started("fleet") as bench:
        whole["heartbeats"] = await measures.heartbeats(bench, SHAPES["fleet"], SHAPES["fleet_seconds"])
    async with started("hurried") as bench:
        whole["heartbeats_tenfold"] = await measures.heartbeats(bench, SHAPES["fleet"], 30, "hurried", 6.0)
    say("a flood")
    whole["overload"] = await overload.overload()
    say("steps that wait")
    whole["waits"] = await waits.waits(SHAPES["waits"], SHAPES["waking_per_s"], SHAPES["waits_filled_per_s"])
    say("children of one parent; a tree that is cancelled; runs that are cancelled alone")
    whole["children"] = await children.children(SHAPES["children"])
    whole["cancel_tree"] = await children.cancel_tree(SHAPES["tree"], 3)
    whole["cancel"] = await children.cancel(SHAPES["cancels"])
    whole["queue"] = await growth.queue(tuple(SHAPES["queue"]), 5_000)
    whole["schedulers"] = await growth.schedulers(tuple(SHAPES["schedulers"]), SHAPES["runs"], SHAPES["steps_per_run"])
    say("a twentieth of the day")
    whole["planning"] = planning.planning()
    whole["day"] = await day.share(SHAPES["day_runs"], retention_s=15)
    return finished(whole, began)


def finished(whole: dict[str, Any], began: float) -> dict[str, Any]:
    """With what it was measured on."""
    whole |= {
        "commit": commit(),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
        "shapes": SHAPES,
        "settings": peers.ABOUT,
        "seconds": round(time.perf_counter() - began),
        "repeat": "make bench",
    }
    whole["ratio"] = ratios(whole)
    write_json(FOLDER / "summary.json", whole)
    return whole


def ratios(whole: dict[str, Any]) -> dict[str, Any]:
    """Ours to the best of the peers that were there."""
    there = {name: figures for name, figures in whole["peers"].items() if isinstance(figures, dict)}
    if not there:
        return {}
    best = max(there, key=lambda name: there[name]["steps"]["steps_per_s"])
    mine = whole["runway"]
    return {
        "best_peer_by_steps": best,
        "steps_per_s": round(mine["steps"]["steps_per_s"] / there[best]["steps"]["steps_per_s"], 2),
        "steps_per_s_split": round(mine["steps_split"]["steps_per_s"] / there[best]["steps"]["steps_per_s"], 2),
        "launches_per_s": round(
            mine["launches"]["launches_per_s"] / max(figures["launches"]["launches_per_s"] for figures in there.values()), 2
        ),
        "latency_p50": {name: round(mine["latency"]["p50"] / figures["latency"]["p50"], 2) for name, figures in there.items()},
    }


def table(whole: dict[str, Any]) -> None:
    """For people."""
    names = ["runway", "restate", "dbos", "temporal"]
    systems = {"runway": whole["runway"], **whole["peers"]}

    def row(title: str, *path: str) -> None:
        cells = []
        for name in names:
            value: Any = systems[name]
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            cells.append("-" if value is None else f"{value:,.1f}")
        print(f"{title:34}" + "".join(f"{cell:>14}" for cell in cells))

    print(f"{'':34}" + "".join(f"{name:>14}" for name in names))
    row("steps/s, 200 runs x 10", "steps", "steps_per_s")
    row("  the same, a process per service", "steps_split", "steps_per_s")
    row("launches/s while worked on, 64", "launches", "launches_per_s")
    row("launches/s into a queue, 64", "launches_queued", "launches_per_s")
    row("launches/s in batches of 100", "launch_batches", "launches_per_s")
    row("launch to result p50, ms", "latency", "p50")
    row("launch to result p99, ms", "latency", "p99")
    for name in ("latency_split",):
        print(f"{'p50/p99, a process per service, ms':34}{whole['runway'][name]['p50']:>14} / {whole['runway'][name]['p99']}")
    for title, value in (
        ("one durable commit, ms", whole["commit_ms"]),
        ("hops, ms", whole["runway"]["latency"]["hops_ms"]),
        ("processor us/step", whole["runway"]["steps"]["cpu_us_per_step"]),
        ("log bytes/step", whole["runway"]["steps"]["wal_bytes_per_step"]),
        ("dev: start, start again, idle", whole["dev"]),
        ("heartbeats", {key: whole["heartbeats"][key] for key in ("per_s", "false_expiries", "cpu_share", "p50_ms", "p99_ms")}),
        (
            "ten times that",
            {key: whole["heartbeats_tenfold"][key] for key in ("per_s", "false_expiries", "cpu_share", "p99_ms")},
        ),
        ("one tenant floods", {key: whole["overload"][key] for key in ("calm", "flooded", "false_expiries", "shed")}),
        ("steps that wait", {key: whole["waits"][key] for key in ("steps", "woken_per_s", "leased_lag_ms", "idle_cpu_share")}),
        ("children of one parent", {key: whole["children"][key] for key in ("children", "told", "spawned_s", "joined_s")}),
        ("a tree cancelled, s", whole["cancel_tree"]["rounds"]),
        ("a run cancelled, ms", whole["cancel"]["enforced_ms"]),
        ("ratios", whole["ratio"]),
    ):
        print(f"{title:34}{value}")
    for name, value in {**whole["queue"], **whole["schedulers"]}.items():
        print(
            f"{name:>34} {value['steps_per_s']} steps/s, {value['cpu_us_per_step']}, {value['wal_bytes_per_step']} log bytes a step"
        )
    absent = {name: figures for name, figures in whole["peers"].items() if not isinstance(figures, dict)}
    for name, why in absent.items():
        print(f"{name}: {why}")


def main(arguments: list[str]) -> int:
    """The exit status."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    if arguments[:1] == ["check"]:
        return asyncio.run(check.run(commit()))
    if arguments[:1] == ["day"]:
        runs, retention_s = int(arguments[1]), float(arguments[2]) if len(arguments) > 2 else 0.0
        found = asyncio.run(day.share(runs, retention_s=retention_s, limit_s=float("inf")))
        write_json(FOLDER / "day.json", found)
        print({key: value for key, value in found.items() if key not in ("samples", "tables")})
        return 0
    if arguments and arguments[0] in numbers.ROWS:
        return numbers.run(
            arguments[0], arguments[1:], {"commit": commit(), "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        )
    if arguments[:1] == ["planning"]:
        print(planning.planning())
        return 0
    if arguments[:1] in (["children"], ["cancel-tree"], ["cancel"]):
        row = {"children": children.children, "cancel-tree": children.cancel_tree, "cancel": children.cancel}[arguments[0]]
        found = asyncio.run(row(*(int(word) for word in arguments[1:3])))
        write_json(FOLDER / f"{arguments[0]}.json", found)
        print(json.dumps(found, indent=2))
        return 0
    if arguments[:1] == ["waits"]:
        found = asyncio.run(waits.waits(*(int(word) for word in arguments[1:4])))
        write_json(FOLDER / "waits.json", found)
        print(json.dumps(found, indent=2))
        return 0
    if arguments[:1] == ["overload"]:
        flood = asyncio.run(overload.overload())
        write_json(FOLDER / "overload.json", flood)
        print(json.dumps(flood, indent=2))
        return 1 if flood["false_expiries"] else 0
    if arguments[:1] == ["steady"]:
        minutes, runs_per_s = float(arguments[1]), int(arguments[2])
        found = asyncio.run(steady.steady(minutes, runs_per_s))
        write_json(FOLDER / "steady.json", found)
        print({key: value for key, value in found.items() if key != "samples"})
        return 0 if found["flat"] else 1
    if arguments:
        known = ["check", "day", *numbers.ROWS, "planning", "waits", "children", "cancel-tree", "cancel", "overload", "steady"]
        print(f"no row {arguments[0]!r}: {', '.join(known)}; without one, all that `make bench` measures", file=sys.stderr)
        return 2
    whole = asyncio.run(everything())
    why = peers.plot(FOLDER / "summary.json", FOLDER / "comparison.png")
    table(whole)
    missed = promises.verdict(whole)
    write_json(FOLDER / "summary.json", whole)
    check.remember(whole)
    print(f"{FOLDER / 'summary.json'}" + (f"; no picture: {why}" if why else f" and {FOLDER / 'comparison.png'}"))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
