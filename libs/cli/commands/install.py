"""`runway dev`, `runway drill` and `runway doctor`: an installation on this machine, hurt on purpose; is it well?"""

import os
import sys
from collections import Counter
from pathlib import Path

import typer

from libs.cli.commands.things import worker_state
from libs.cli.operating import stuck_work
from libs.cli.output import EXIT_REFUSED, FORM, Form, run_async, show_rows
from libs.cli.unfit import unfit_work

STATES = {"draining": "draining", "drained": "drained by operators", "silent": "silent"}
"""By the first word of a worker's state."""


def dev(
    data: Path = typer.Option(Path(".runway"), help="folder that keeps everything"),
    fresh: bool = typer.Option(False, "--fresh", help="forget what the folder holds"),
    split: str = typer.Option("", help="services that get a process of their own, with commas; or all"),
    bind: str = typer.Option("", help="public address, for example 127.0.0.1:7400; a free port where not given"),
    output: str = typer.Option("text", help="text or json"),
) -> None:
    """Starts PostgreSQL, etcd and the six services here; Ctrl-C stops all of it."""
    arguments = ["dev", "--data", str(data), "--split", split, "--bind", bind, "--output", output]
    os.execv(sys.executable, [sys.executable, "-m", "libs.runtime", *arguments, *(["--fresh"] if fresh else [])])  # noqa: S606


def drill(
    names: list[str] = typer.Argument(..., metavar="NAME…|list|all", help="which drills"),
    pause_s: float = typer.Option(60.0, "--pause-s", help="how long what is paused stays so"),
    jobs: int = typer.Option(1, "--jobs", help="how many drills at a time, about 2 GB of memory each"),
    reports: Path = typer.Option(Path("build/chaos"), "--reports", help="folder of the reports"),
    allow_skips: bool = typer.Option(False, "--allow-skips", help="exit 0 although a drill was skipped"),
) -> None:
    """Hurts an installation of its own while it works, and checks what it did; exit 1 when a verdict is not green."""
    arguments = [*names, "--pause-s", str(pause_s), "--jobs", str(jobs), "--reports", str(reports)]
    arguments += ["--allow-skips"] if allow_skips else []
    os.execv(sys.executable, [sys.executable, "-m", "libs.drills", *arguments])  # noqa: S606


def doctor(form: Form = FORM) -> None:
    """Asks every service for its health, and for what is stuck; exit 1 when something is wrong."""

    async def work() -> int:
        from grpc_health.v1 import health_pb2, health_pb2_grpc
        from runway_sdk import Client
        from runway_sdk.connection import Connection, find_target
        from runway_sdk.errors import RunwayError

        names = {
            "launch": "runway.launch.v1.LaunchService",
            "readiness": "runway.readiness.v1.ReadinessService",
            "scheduler": "runway.scheduler.v1.WorkerService",
            "gateway": "runway.gateway.v1.GatewayService",
            "checkpoint": "runway.checkpoint.v1.CheckpointService",
            "reconciler": "runway.reconciler.v1.ReconcilerService",
        }
        target = find_target()
        connection = Connection(target)
        rows = []
        for service, name in names.items():
            stub = health_pb2_grpc.HealthStub(connection.public(service))
            try:
                answer = await connection.call(stub.Check, health_pb2.HealthCheckRequest(service=name), timeout_s=5)
                state = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
                rows.append({"check": service, "ok": state == "SERVING", "detail": state})
            except RunwayError as error:
                rows.append({"check": service, "ok": False, "detail": str(error)})
        await connection.close()
        async with Client(target) as client:
            try:
                shards = await client.shards()
                led = sum(bool(shard.leader) for shard in shards)
                rows.append(
                    {"check": "shards", "ok": led == len(shards) > 0, "detail": f"{led} of {len(shards)} have a leader"}
                )
                states = Counter(worker_state(worker).split()[0] for worker in await client.workers())
                told = [
                    f"{states['at']} at work",
                    *(f"{states[name]} {text}" for name, text in STATES.items() if states[name]),
                ]
                rows.append({"check": "workers", "ok": True, "detail": ", ".join(told)})
                rows.append(await unfit_work(client))
                answer = await stuck_work()
                kinds = sorted({item.kind for item in answer.items})
                fine = not answer.items and not answer.unreachable
                rows.append({"check": "stuck work", "ok": fine, "detail": ", ".join(kinds) or "none"})
            except RunwayError as error:
                rows.append({"check": "operation", "ok": False, "detail": str(error)})
        show_rows(rows, ["check", "ok", "detail"], form)
        return 0 if all(row["ok"] for row in rows) else EXIT_REFUSED

    run_async(work)
