"""The peer's side of the benchmark, run by its own environment: DBOS, used as its documentation says (async workflows and steps).

`python dbos_side.py URL SHAPES_JSON` prints one JSON object with its figures.
"""

import asyncio
import json
import sys
import time

from dbos import DBOS, DBOSConfig


@DBOS.step()
async def trivial(number: int) -> int:
    return number + 1


@DBOS.workflow()
async def ten(number: int, steps: int) -> int:
    for _ in range(steps):
        number = await trivial(number)
    return number


@DBOS.workflow()
async def one(number: int) -> int:
    return await trivial(number)


async def launches(callers: int, count: int) -> dict:
    left = iter(range(count))
    handles = []

    async def caller() -> None:
        for number in left:
            handles.append(await DBOS.start_workflow_async(one, number))

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    took = time.perf_counter() - began
    for handle in handles:
        await handle.get_result()
    return {"launches": {"launches_per_s": round(count / took, 1), "launches": count, "callers": callers}}


async def steps(runs: int, per_run: int) -> float:
    began = time.perf_counter()
    handles = [await DBOS.start_workflow_async(ten, number, per_run) for number in range(runs)]
    for handle in handles:
        await handle.get_result()
    took = time.perf_counter() - began
    return runs * per_run / took


async def latency(samples: int) -> dict:
    taken = []
    for number in range(samples):
        began = time.perf_counter()
        handle = await DBOS.start_workflow_async(one, number)
        await handle.get_result(polling_interval_sec=0.005)
        taken.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.02)
    taken.sort()
    figures = {"p50": taken[len(taken) // 2], "p99": taken[int(len(taken) * 0.99)]}
    return {"latency": {**{name: round(value, 2) for name, value in figures.items()}, "samples": samples}}


async def measure(shapes: dict) -> dict:
    await steps(20, 10)
    found = {}
    found |= await launches(shapes["callers"], shapes["peer_launches"])
    rounds = sorted([await steps(shapes["runs"], shapes["steps_per_run"]) for _ in range(shapes["rounds"])])
    found["steps"] = {
        "steps_per_s": round(rounds[len(rounds) // 2], 1),
        "steps_per_s_rounds": [round(figure, 1) for figure in rounds],
    }
    found |= await latency(shapes["latency_samples"])
    return found


def main() -> None:
    url, shapes = sys.argv[1], json.loads(sys.argv[2])
    config: DBOSConfig = {"name": "bench", "system_database_url": url, "log_level": "ERROR", "sys_db_pool_size": 20}
    DBOS(config=config)
    DBOS.launch()
    try:
        print(json.dumps(asyncio.run(measure(shapes))))
    finally:
        DBOS.destroy()


if __name__ == "__main__":
    main()
