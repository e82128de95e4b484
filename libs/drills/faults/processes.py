"""Processes that die, and processes that stop for a minute and go on as if nothing had been.

Can go wrong: hurting what was not started here. Every process id is that of a child of ours.
"""

import os
import signal

from libs.drills.faults.schedulers import watched
from libs.drills.stage import NOTICED, Drill, Stage
from libs.runtime.service import SERVICES

_LETS_RUN = ("launch", "readiness", "checkpoint", "reconciler")
"""Services without which an attempt that runs goes on with its effects."""
SESSION_PAUSE_S = 8.0
"""Longer than a session at etcd lives, shorter than what peers need to leave a replica that stopped."""


def killing(service: str) -> Drill:
    """SIGKILL of a service; its supervisor starts it again."""

    async def run(stage: Stage) -> None:
        gone = stage.installation.pid(service)
        await stage.busy()
        async with stage.fault(f"SIGKILL of {service}"):
            os.kill(gone, signal.SIGKILL)
            await stage.installation.back(service, gone)

    return Drill(f"kill-{service}", f"SIGKILL of {service}, started again by its supervisor", run, promises=NOTICED)


def pausing(service: str) -> Drill:
    """SIGSTOP of a service, SIGCONT later: everything it still believes is a minute old."""

    async def run(stage: Stage) -> None:
        pid = stage.installation.pid(service)
        run_id = await stage.patient_run(stage.options.pause_s) if service in _LETS_RUN else ""
        await stage.busy()
        async with stage.fault(f"SIGSTOP of {service} for {stage.options.pause_s:g} s"):
            await _stopped(stage, pid)
        if service == "scheduler" and stage.options.pause_s >= 40:  # the other replica leads, and callers have found it
            late = sum(
                1 for run in stage.traffic.runs if run.outcome == "succeeded" and 30_000 < run.ended - stage.began < 60_000
            )
            stage.expect(late > 0, "the other replica finished nothing in the second half of the pause")
        if run_id:
            late = stage.applied(run_id, stage.began + (stage.ended - stage.began) * 0.7)
            stage.expect(late > 0, "what ran did not go on until the end of the pause")

    during = {"effects": 5} if service == "launch" else {"launched": 1}
    return Drill(f"pause-{service}", f"SIGSTOP of {service} for a minute, then SIGCONT", run, during=during, promises=NOTICED)


async def _stopped(stage: Stage, pid: int) -> None:
    """Stops a process for a while. Callers hold back meanwhile, so that afterwards no backlog hides the recovery."""
    usual, stage.traffic.per_s = stage.traffic.per_s, 1.0
    os.kill(pid, signal.SIGSTOP)
    try:
        await stage.work_on(stage.options.pause_s)
    finally:
        os.kill(pid, signal.SIGCONT)
        stage.traffic.per_s = usual


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
        await _stopped(stage, pid)


async def _arm_raised(stage: Stage) -> None:
    stage.installation.environ["RUNWAY_FAULTS"] = f"scheduler.gate_raised=pause@{stage.folder / 'raised'}"


async def pause_raised(stage: Stage) -> None:
    """Stops a leader the moment it hears of a raise, for longer than its session: it wakes for shards that it lost."""
    charge = stage.folder / "raised"
    charge.touch()
    if not await stage.until(lambda: not charge.exists(), "a raise at a scheduler that leads the run", 30):
        return
    async with stage.fault(f"SIGSTOP of a scheduler that just heard of a raise, for {SESSION_PAUSE_S:g} s"):
        await stage.work_on(SESSION_PAUSE_S)
        for place in range(stage.installation.recipe.of("scheduler")):
            os.kill(stage.installation.pid("scheduler", place), signal.SIGCONT)
    await stage.until(lambda: not _not_serving(stage, "scheduler#"), "both schedulers serving after the pause", 20)


def _not_serving(stage: Stage, hosts: str) -> list[str]:
    """Hosts that did not serve when they were last looked at."""
    looks = [fact for fact in stage.history.facts() if fact["what"] == "health" and fact["host"].startswith(hosts)]
    return [host for host, serves in {fact["host"]: fact["serving"] for fact in looks}.items() if not serves]


DRILLS = [
    *(watched(killing(service), lambda _: 10) if service == "scheduler" else killing(service) for service in SERVICES),
    Drill("kill-worker", "SIGKILL of a worker with leases", kill_worker, during={"launched": 1, "finished": 1}),
    *(
        watched(pausing(service), lambda stage: stage.options.pause_s) if service == "scheduler" else pausing(service)
        for service in SERVICES
    ),
    Drill(
        "pause-raised",
        "SIGSTOP of a scheduler as it hears of a raise, for longer than its session",
        pause_raised,
        prepare=_arm_raised,
        during={"launched": 1},
    ),
    Drill(
        "pause-worker", "SIGSTOP of a worker for a minute, then SIGCONT", pause_worker, during={"launched": 1, "finished": 1}
    ),
]
