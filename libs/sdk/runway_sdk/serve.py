"""`python -m runway_sdk.serve MODULE:NAME`: a worker process for one or more workflows, until SIGTERM or SIGINT.

The first signal drains (what runs may end), a second one ends at once: the attempts are then lost and tried again elsewhere.
"""

import argparse
import asyncio
import base64
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from runway.scheduler.v1 import worker_service_pb2 as pb

from runway_sdk.connection import find_target, read_profile
from runway_sdk.errors import RunwayError
from runway_sdk.loading import LoadError, load
from runway_sdk.worker import Worker
from runway_sdk.workflow import Workflow


def load_workflow(name: str, *, verbose: bool = False) -> Workflow:
    """The workflow that `module:attribute` names, by default `flow`. `verbose`: an error of the module as it is."""
    try:
        found = load(name, verbose=verbose)
    except LoadError as error:
        raise SystemExit(str(error)) from None
    if not isinstance(found, Workflow):
        raise SystemExit(f"{name} is a {type(found).__name__}, not a workflow; name one as MODULE:NAME")
    return found


def resources_of(said: Sequence[str]) -> dict[str, int]:
    """What `--resource NAME=AMOUNT` says."""
    found: dict[str, int] = {}
    for one in said:
        name, _, amount = one.partition("=")
        if not name or not (amount.isascii() and amount.isdecimal()) or name in found:
            raise SystemExit(f"--resource {one} is not understood; say NAME=AMOUNT once for each name, for example gpu=2")
        found[name] = int(amount)
    return found


def recorder(path: Path) -> "Recorder":
    """Keeps leases in a private file, for drills that replay a dead attempt's token. Only where faults are armed."""
    if os.environ.get("RUNWAY_FAULTS_ARMED") != "development":
        raise SystemExit("--record-leases is for drills: set RUNWAY_FAULTS_ARMED=development")
    path.touch(mode=0o600)
    return Recorder(path)


class Recorder:
    """Appends one line a lease."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, lease: pb.Lease) -> None:
        """Keeps one lease."""
        facts = {
            "run_id": lease.run_id,
            "step_key": lease.step_key,
            "attempt_id": lease.attempt_id.hex(),
            "lease_epoch": lease.lease_epoch,
            "token": base64.b64encode(lease.lease_token).decode(),
        }
        with self._path.open("a") as file:
            file.write(json.dumps(facts) + "\n")


def _run(work: Coroutine[Any, Any, None]) -> None:
    """On uvloop where it is installed: it carries a message for half of what the standard loop takes."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


async def serve(worker: Worker) -> None:
    """Runs a worker until a signal."""
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(worker.run())
    signals = 0

    def end() -> None:
        nonlocal signals
        signals += 1
        worker.drain()
        if signals > 1:
            running.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    try:
        await running
    except asyncio.CancelledError:
        return


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses and serves."""
    parser = argparse.ArgumentParser(prog="python -m runway_sdk.serve", description=__doc__)
    parser.add_argument("workflows", nargs="+", metavar="MODULE:NAME")
    parser.add_argument("--slots", type=int, default=16, help="attempts at a time")
    parser.add_argument(
        "--resource",
        action="append",
        default=[],
        metavar="NAME=AMOUNT",
        help="what steps may take of this worker besides slots, for example gpu=2; again for more",
    )
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="NAME",
        help="a label that steps may require, for example gpu; again for more",
    )
    parser.add_argument("--region", default="", metavar="NAME", help="where it stands, for steps that must run there")
    parser.add_argument("--worker-id", default="", help="name of this process, for people")
    parser.add_argument("--profile", type=Path, help="profile file of an installation")
    parser.add_argument("--verbose", action="store_true", help="errors of the workflow's module with the whole traceback")
    parser.add_argument("--record-leases", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    logging.basicConfig(level=os.environ.get("RUNWAY_LOG_LEVEL", "WARNING"), format="%(asctime)s %(name)s %(message)s")
    workflows = [load_workflow(name, verbose=given.verbose) for name in given.workflows]
    try:
        target = read_profile(given.profile) if given.profile else find_target()
        worker = Worker(
            workflows,
            target=target,
            slots=given.slots,
            capabilities=given.label,
            region=given.region,
            resources=resources_of(given.resource),
            worker_id=given.worker_id,
            on_lease=recorder(given.record_leases) if given.record_leases else None,
        )
        names = ", ".join(workflow.name for workflow in workflows)
        print(f"{worker.worker_id} works on {names} for {target.address}; Ctrl-C drains", file=sys.stderr, flush=True)
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)  # messages and leases die by reference counting; what was imported stays
        _run(serve(worker))
    except RunwayError as error:
        raise SystemExit(f"the worker ended: {error}") from None


if __name__ == "__main__":
    main()
