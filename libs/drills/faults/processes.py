"""Processes that die, and processes that stop for a minute and go on as if nothing had been.

Can go wrong: hurting what was not started here. Every process id is that of a child of ours.
"""

import os
import signal

from libs.drills.stage import Drill, Stage
from libs.runtime.service import SERVICES

_GOES_ON = {
    "launch": {"effects": 1},
    "scheduler": {"launched": 1, "finished": 1},
}
"""What works while a service is away for long; readiness, gateway, checkpoint and reconciler hold up no launch."""


def killing(service: str) -> Drill:
    """SIGKILL of a service; its supervisor starts it again."""

    async def run(stage: Stage) -> None:
        gone = stage.installation.pid(service)
        await stage.busy()
        async with stage.fault(f"SIGKILL of {service}"):
            os.kill(gone, signal.SIGKILL)
            await stage.installation.back(service, gone)

    return Drill(f"kill-{service}", f"SIGKILL of {service}, started again by its supervisor", run)


def pausing(service: str) -> Drill:
    """SIGSTOP of a service, SIGCONT later: everything it still believes is a minute old."""

    async def run(stage: Stage) -> None:
        pid = stage.installation.pid(service)
        await stage.busy()
        async with stage.fault(f"SIGSTOP of {service} for {stage.options.pause_s:g} s"):
            os.kill(pid, signal.SIGSTOP)
            try:
                await stage.work_on(stage.options.pause_s)
            finally:
                os.kill(pid, signal.SIGCONT)

    during = _GOES_ON.get(service, {"launched": 1})
    return Drill(f"pause-{service}", f"SIGSTOP of {service} for a minute, then SIGCONT", run, during=during)


async def kill_worker(stage: Stage) -> None:
    """Its leases run out; another worker takes the steps over."""
    await stage.busy(1, stage.installation.workers[0].process.pid)
    async with stage.fault("SIGKILL of a worker"):
        os.kill(stage.installation.workers[0].process.pid, signal.SIGKILL)
        await stage.installation.replace_worker(0)
        await stage.work_on(4)


async def pause_worker(stage: Stage) -> None:
    """It wakes up with leases that others have had since."""
    pid = stage.installation.workers[0].process.pid
    await stage.busy(1, pid)
    async with stage.fault(f"SIGSTOP of a worker for {stage.options.pause_s:g} s"):
        os.kill(pid, signal.SIGSTOP)
        try:
            await stage.work_on(stage.options.pause_s)
        finally:
            os.kill(pid, signal.SIGCONT)


DRILLS = [
    *(killing(service) for service in SERVICES),
    Drill("kill-worker", "SIGKILL of a worker with leases", kill_worker, during={"launched": 1, "finished": 1}),
    *(pausing(service) for service in SERVICES),
    Drill(
        "pause-worker", "SIGSTOP of a worker for a minute, then SIGCONT", pause_worker, during={"launched": 1, "finished": 1}
    ),
]
