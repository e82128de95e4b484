"""`make bench`: measures, prints a table, writes build/bench/summary.json.

What: (a) durable launches a second by 64 callers, (b) steps a second for 200 runs of 10 sequential trivial steps, (c) median
and p99 from launch to result of a one-step run on an idle system, (d) 10,000 live attempts that beat every 20 s. DBOS does
(a) to (c) on the same PostgreSQL in the same run, in an environment of its own; where it cannot be installed it is absent.
"""

import asyncio
import json
import os
import platform
import subprocess
import sys
import time
import venv
from pathlib import Path

import asyncpg
from runway_sdk.testing import Stack

from tests.bench import flows, runway_side

FOLDER = Path("build/bench")
SHAPES = {
    "callers": 64,
    "launches": int(os.environ.get("BENCH_LAUNCHES", "4000")),
    "dbos_launches": int(os.environ.get("BENCH_DBOS_LAUNCHES", "1500")),
    "runs": 200,
    "steps_per_run": 10,
    "latency_samples": 200,
    "fleet": int(os.environ.get("BENCH_FLEET", "10000")),
    "fleet_seconds": float(os.environ.get("BENCH_FLEET_SECONDS", "65")),
}
DBOS = "dbos==3.4.0"


def dbos_python() -> Path | None:
    """The peer's own environment; None where it cannot be had."""
    folder = FOLDER / "dbos-env"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    done = subprocess.run([python, "-m", "pip", "install", "--quiet", DBOS], capture_output=True, text=True, check=False)
    return python if done.returncode == 0 else None


async def commit_ms(url: str) -> float:
    """What one durable one-row commit costs here, milliseconds, median of 200."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("CREATE TABLE IF NOT EXISTS commit_probe (n int)")
        taken = []
        for number in range(200):
            began = time.perf_counter()
            await connection.execute("INSERT INTO commit_probe VALUES ($1)", number)
            taken.append((time.perf_counter() - began) * 1000)
        await connection.execute("DROP TABLE commit_probe")
        return sorted(taken)[100]
    finally:
        await connection.close()


async def admin_url(stack: Stack) -> str:
    """The embedded PostgreSQL of the installation."""
    folder = stack.folder / "data" / "postgres"
    port = (folder / "data" / "postmaster.pid").read_text().splitlines()[3].strip()
    password = (
        next(path for path in folder.iterdir() if path.name.endswith(".pw") or "password" in path.name).read_text().strip()
    )
    return f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres"


async def ours() -> tuple[dict[str, object], str, object]:
    """Our figures, with the peer's in between on the same server."""
    peer: object = "absent: could not be installed"
    async with Stack.start(FOLDER / "stack", apart=()) as stack:
        url = await admin_url(stack)
        pids = [stack._process.pid]
        worker = await stack.start_worker("tests.bench.flows:one", worker_id="bench-1", slots=400)
        second = await stack.start_worker("tests.bench.flows:ten", worker_id="bench-2", slots=400)
        await stack.client.publish(flows.one)
        await stack.client.publish(flows.ten)
        await stack.client.publish(flows.fleet)
        pids += [worker.pid, second.pid]
        found: dict[str, object] = {"commit_ms": round(await commit_ms(url), 2)}
        say("warming up")
        await runway_side.steps(stack, 30, 10, pids)
        say("(c) latency")
        found |= await runway_side.latency(stack, SHAPES["latency_samples"])
        say("(b) steps")
        found |= await runway_side.steps(stack, SHAPES["runs"], SHAPES["steps_per_run"], pids)
        say("(a) launches")
        found |= await runway_side.launches(stack, SHAPES["callers"], SHAPES["launches"])
        await drained(stack)
        python = dbos_python()
        if python is not None:
            say("the same shapes with DBOS")
            peer = await dbos(python, url)
        await worker.stop()
        await second.stop()
        say("(d) heartbeats")
        found |= await runway_side.heartbeats(stack, SHAPES["fleet"], SHAPES["fleet_seconds"], pids[:1], FOLDER)
    return found, url, peer


async def drained(stack: Stack) -> None:
    """Waits until the launched runs have ended, so that what follows has the machine to itself."""
    from runway.launch.v1 import launch_service_pb2 as pb

    open_states = [pb.RUN_STATE_ACCEPTED, pb.RUN_STATE_RUNNING, pb.RUN_STATE_CLOSING]
    began = time.perf_counter()
    while time.perf_counter() - began < 240:
        if not (await stack.client.list_runs(states=open_states, page_size=1)).runs:
            return
        await asyncio.sleep(0.5)


async def dbos(python: Path, url: str) -> object:
    """The peer's figures, or why there are none."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("CREATE DATABASE dbos_bench")
    finally:
        await connection.close()
    own = url.rsplit("/", 1)[0] + "/dbos_bench"
    done = await asyncio.to_thread(
        subprocess.run,
        [python.absolute(), Path(__file__).parent / "dbos_side.py", own, json.dumps(SHAPES)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        return "absent: " + done.stderr.strip().splitlines()[-1][:300]
    return json.loads(done.stdout.strip().splitlines()[-1])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def summary(found: dict, peer: object) -> dict:
    """Figures and ratios."""
    whole = {
        **found,
        "dbos": peer,
        "ratio": {},
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
        "shapes": SHAPES,
        "dbos_version": DBOS,
        "repeat": "make bench",
    }
    if isinstance(peer, dict):
        whole["ratio"] = {
            "launches_per_s": found["launches_per_s"] / peer["launches_per_s"],
            "steps_per_s": found["steps_per_s"] / peer["steps_per_s"],
            "latency_p50": found["latency_ms"]["p50"] / peer["latency_ms"]["p50"],
        }
    return whole


def table(whole: dict) -> None:
    """For people."""
    peer = whole["dbos"] if isinstance(whole["dbos"], dict) else None

    def row(name: str, ours: object, theirs: object = "") -> None:
        print(f"{name:34} {ours!s:>14} {theirs!s:>14}")

    row("", "runway", "dbos" if peer else str(whole["dbos"])[:40])
    row("launches/s, 64 callers", round(whole["launches_per_s"]), round(peer["launches_per_s"]) if peer else "")
    row("steps/s, 200 runs x 10", round(whole["steps_per_s"]), round(peer["steps_per_s"]) if peer else "")
    for share in ("p50", "p99"):
        row(
            f"launch to result {share}, ms",
            round(whole["latency_ms"][share], 1),
            round(peer["latency_ms"][share], 1) if peer else "",
        )
    row("processor us/step", whole["cpu_us_per_step"])
    row("commit, ms", whole["commit_ms"])
    for name, value in whole["heartbeats"].items():
        row(f"heartbeats {name}", value)
    row("ratios", {name: round(value, 2) for name, value in whole["ratio"].items()})


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    subprocess.run(["rm", "-rf", str(FOLDER / "stack")], check=True)
    found, _, peer = asyncio.run(ours())
    whole = summary(found, peer)
    (FOLDER / "summary.json").write_text(json.dumps(whole, indent=2) + "\n")
    table(whole)


if __name__ == "__main__":
    main()
