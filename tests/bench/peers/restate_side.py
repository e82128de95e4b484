"""The peer's side of the benchmark, run by its own environment: restate-server and its Python SDK.

Used as its documentation says: a service of the SDK behind Hypercorn, registered at the server's admin port, called through its HTTP
ingress; a step is `ctx.run`. `python restate_side.py FOLDER SHAPES_JSON SERVER` prints one JSON object with its figures.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import restate

bench = restate.Service("Bench")


async def trivial(number: int) -> int:
    return number + 1


@bench.handler()
async def chain(ctx: restate.Context, asked: dict) -> int:
    number = asked["number"]
    for at in range(asked["steps"]):
        number = await ctx.run_typed(f"s{at}", trivial, number=number)
    return number


app = restate.app([bench])


class Ingress:
    """Calls through the server's HTTP ingress."""

    def __init__(self, port: int) -> None:
        limits = httpx.Limits(max_connections=256, max_keepalive_connections=256)
        self._client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=300, limits=limits)

    async def call(self, number: int, steps: int) -> int:
        answer = await self._client.post("/Bench/chain", json={"number": number, "steps": steps})
        answer.raise_for_status()
        return answer.json()

    async def send(self, number: int, steps: int) -> str:
        answer = await self._client.post("/Bench/chain/send", json={"number": number, "steps": steps})
        answer.raise_for_status()
        return answer.json()["invocationId"]

    async def result(self, invocation: str) -> int:
        answer = await self._client.get(f"/restate/invocation/{invocation}/attach")
        answer.raise_for_status()
        return answer.json()


async def launches(ingress: Ingress, callers: int, count: int) -> dict:
    left = iter(range(count))
    sent = []

    async def caller() -> None:
        for number in left:
            sent.append(await ingress.send(number, 1))

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    took = time.perf_counter() - began
    for invocation in sent:
        await ingress.result(invocation)
    return {"launches": {"launches_per_s": round(count / took, 1), "launches": count, "callers": callers}}


async def steps(ingress: Ingress, runs: int, per_run: int) -> float:
    began = time.perf_counter()
    await asyncio.gather(*(ingress.call(number, per_run) for number in range(runs)))
    took = time.perf_counter() - began
    return runs * per_run / took


async def latency(ingress: Ingress, samples: int) -> dict:
    taken = []
    for number in range(samples):
        began = time.perf_counter()
        await ingress.call(number, 1)
        taken.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.02)
    taken.sort()
    figures = {"p50": taken[len(taken) // 2], "p99": taken[int(len(taken) * 0.99)]}
    return {"latency": {**{name: round(value, 2) for name, value in figures.items()}, "samples": samples}}


async def measure(ports: dict, shapes: dict) -> dict:
    await registered(ports)
    ingress = Ingress(ports["ingress"])
    await steps(ingress, 20, 10)
    found = await latency(ingress, shapes["latency_samples"])
    rounds = sorted([await steps(ingress, shapes["runs"], shapes["steps_per_run"]) for _ in range(shapes["rounds"])])
    found["steps"] = {
        "steps_per_s": round(rounds[len(rounds) // 2], 1),
        "steps_per_s_rounds": [round(figure, 1) for figure in rounds],
    }
    found |= await launches(ingress, shapes["callers"], shapes["peer_launches"])
    return found


async def registered(ports: dict) -> None:
    """The service is known to the server, once both answer."""
    async with httpx.AsyncClient(timeout=10) as client:
        for _ in range(150):
            try:
                uri = f"http://127.0.0.1:{ports['service']}"
                answer = await client.post(f"http://127.0.0.1:{ports['admin']}/deployments", json={"uri": uri})
                if answer.status_code < 300:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.2)
    raise SystemExit("the server did not take the service within 30 s")


def free_ports(names: list) -> dict:
    probes = {name: socket.socket() for name in names}
    for probe in probes.values():
        probe.bind(("127.0.0.1", 0))
    found = {name: probe.getsockname()[1] for name, probe in probes.items()}
    for probe in probes.values():
        probe.close()
    return found


def main() -> None:
    folder, shapes, binary = Path(sys.argv[1]).absolute(), json.loads(sys.argv[2]), Path(sys.argv[3]).absolute()
    ports = free_ports(["node", "ingress", "admin", "service"])
    environ = {
        **os.environ,
        "RESTATE_BIND_IP": "127.0.0.1",
        "RESTATE_BIND_PORT": str(ports["node"]),
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_INGRESS__BIND_PORT": str(ports["ingress"]),
        "RESTATE_ADMIN__BIND_PORT": str(ports["admin"]),
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_LOG_FILTER": "error",
    }
    python = Path(sys.executable)
    serve = [python.parent / "hypercorn", "--bind", f"127.0.0.1:{ports['service']}", "restate_side:app"]
    with (folder / "restate.log").open("wb") as log:
        server = subprocess.Popen([binary, "--no-logo", "--base-dir", folder / "data"], stdout=log, stderr=log, env=environ)
        service = subprocess.Popen(serve, stdout=log, stderr=log, cwd=Path(__file__).parent)
    try:
        print(json.dumps(asyncio.run(measure(ports, shapes))))
    finally:
        for process in (service, server):
            process.terminate()
            process.wait(70)


if __name__ == "__main__":
    main()
