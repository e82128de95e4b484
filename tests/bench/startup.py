"""`runway dev`: from its start to the first accepted launch, and what it uses while nothing happens."""

import asyncio
import json
import shutil
import sys
import time

import psutil
from runway_sdk import Client
from runway_sdk.connection import read_profile

from tests.bench import flows
from tests.bench.bench_stack import FOLDER


async def dev(idle_s: float) -> dict[str, object]:
    """Seconds to the first accepted launch on a fresh folder, and on one that is there; share of a core while idle."""
    folder = FOLDER / "dev"
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    fresh, _ = await _start(folder, 0)
    again, idle = await _start(folder, idle_s)
    return {"fresh_s": round(fresh, 2), "again_s": round(again, 2), "idle_share_of_a_core": round(idle, 4)}


async def _start(folder: object, idle_s: float) -> tuple[float, float]:
    command = [sys.executable, "-m", "libs.cli.main", "dev", "--data", str(folder), "--output", "json"]
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            if json.loads(line)["event"] == "ready":
                break
        async with Client(read_profile(FOLDER / "dev" / "profile.json")) as client:
            await client.publish(flows.one)
            run = await client.launch("bench-one", 1)
            took = time.perf_counter() - began
            await client.cancel(run.run_id)
        await asyncio.sleep(1)
        used = _cpu_s(process.pid)
        await asyncio.sleep(idle_s)
        idle = (_cpu_s(process.pid) - used) / idle_s if idle_s else 0.0
        return took, idle
    finally:
        process.terminate()
        await process.wait()


def _cpu_s(pid: int) -> float:
    root = psutil.Process(pid)
    total = 0.0
    for process in [root, *root.children(recursive=True)]:
        times = process.cpu_times()
        total += times.user + times.system
    return total
