"""A host as a process: the readiness line, the port file, SIGTERM."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

PROGRAM = """
import sys
from pathlib import Path
from libs.runtime.process import run
from libs.runtime.service import Composed

async def healthy():
    return True

async def stop():
    Path(sys.argv[2]).write_text("stopped")

def compose_of(name):
    async def compose(host):
        return Composed(name=name, healthy=healthy, stop=stop)
    return compose

run(["launch", "gateway"], port_file=Path(sys.argv[1]), compose_of=compose_of)
"""


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, sys.path))
    return {**os.environ, "PYTHONPATH": path, "RUNWAY_METRICS_PORT": "0", "RUNWAY_LOG_FORM": "json"}


async def test_a_process_announces_itself_serves_and_drains(tmp_path: Path) -> None:
    port_file, stopped = tmp_path / "ports", tmp_path / "stopped"
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        str(port_file),
        str(stopped),
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    try:
        async with asyncio.timeout(30):
            line = json.loads(await child.stdout.readline())
            assert line["ready"]
            assert line["services"] == ["launch", "gateway"]
            assert json.loads(port_file.read_text()) == line
            for port in ("public", "control", "leaf"):
                async with grpc.aio.insecure_channel(line[port]) as channel:
                    stub = health_pb2_grpc.HealthStub(channel)
                    answer = await stub.Check(health_pb2.HealthCheckRequest(service="gateway"))
                    assert answer.status == health_pb2.HealthCheckResponse.SERVING
            child.send_signal(signal.SIGTERM)
            out, err = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert child.returncode == 0, err.decode()
    assert out == b""
    assert stopped.read_text() == "stopped"
    events = [json.loads(text)["event"] for text in err.decode().splitlines()]
    assert "draining" in events


async def test_an_unknown_service_is_a_usage_error() -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "libs.runtime",
        "host",
        "--services",
        "lunch",
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(30):
        _, err = await child.communicate()
    assert child.returncode == 2
    assert b"services are launch" in err
