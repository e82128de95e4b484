"""The peer's side of the benchmark, run by its own environment: the Temporal development server and its Python SDK.

Used as its documentation says: `temporal server start-dev --db-filename …`, asynchronous activities of one worker, `start_workflow`
and `result`. `python temporal_side.py FOLDER SHAPES_JSON` prints one JSON object with its figures.
"""

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import time
import uuid
from datetime import timedelta
from pathlib import Path

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

QUEUE = "bench"


@activity.defn
async def trivial(number: int) -> int:
    return number + 1


@workflow.defn
class Chain:
    @workflow.run
    async def run(self, number: int, steps: int) -> int:
        for _ in range(steps):
            number = await workflow.execute_activity(trivial, number, start_to_close_timeout=timedelta(seconds=60))
        return number


async def start(client: Client, number: int, steps: int):
    return await client.start_workflow(Chain.run, args=[number, steps], id=f"bench-{uuid.uuid4()}", task_queue=QUEUE)


async def launches(client: Client, callers: int, count: int) -> dict:
    left = iter(range(count))
    handles = []

    async def caller() -> None:
        for number in left:
            handles.append(await start(client, number, 1))

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    took = time.perf_counter() - began
    await asyncio.gather(*(handle.result() for handle in handles))
    return {"launches": {"launches_per_s": round(count / took, 1), "launches": count, "callers": callers}}


async def steps(client: Client, runs: int, per_run: int) -> float:
    began = time.perf_counter()
    handles = await asyncio.gather(*(start(client, number, per_run) for number in range(runs)))
    await asyncio.gather(*(handle.result() for handle in handles))
    took = time.perf_counter() - began
    return runs * per_run / took


async def latency(client: Client, samples: int) -> dict:
    taken = []
    for number in range(samples):
        began = time.perf_counter()
        handle = await start(client, number, 1)
        await handle.result()
        taken.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.02)
    taken.sort()
    figures = {"p50": taken[len(taken) // 2], "p99": taken[int(len(taken) * 0.99)]}
    return {"latency": {**{name: round(value, 2) for name, value in figures.items()}, "samples": samples}}


async def measure(port: int, shapes: dict) -> dict:
    client = await connected(port)
    # As many tasks at a time as our own worker has slots.
    async with Worker(
        client,
        task_queue=QUEUE,
        workflows=[Chain],
        activities=[trivial],
        max_concurrent_activities=400,
        max_concurrent_workflow_tasks=400,
    ):
        await steps(client, 20, 10)
        found = await latency(client, shapes["latency_samples"])
        rounds = sorted([await steps(client, shapes["runs"], shapes["steps_per_run"]) for _ in range(shapes["rounds"])])
        found["steps"] = {
            "steps_per_s": round(rounds[len(rounds) // 2], 1),
            "steps_per_s_rounds": [round(figure, 1) for figure in rounds],
        }
        found |= await launches(client, shapes["callers"], shapes["peer_launches"])
    return found


async def connected(port: int) -> Client:
    """The server's client, once it answers."""
    for _ in range(150):
        try:
            return await Client.connect(f"127.0.0.1:{port}")
        except RuntimeError:
            await asyncio.sleep(0.2)
    raise SystemExit("the server did not answer within 30 s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main() -> None:
    folder, shapes = Path(sys.argv[1]), json.loads(sys.argv[2])
    binary = shutil.which("temporal", path=str(Path(sys.executable).parent))
    if binary is None:
        raise SystemExit("the server's binary is not in this environment")
    port = free_port()
    command = [binary, "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(port)]
    command += ["--db-filename", str(folder / "temporal.db"), "--log-level", "error"]
    with (folder / "temporal.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        print(json.dumps(asyncio.run(measure(port, shapes))))
    finally:
        server.terminate()
        server.wait(20)


if __name__ == "__main__":
    main()
