"""What is said twice, in the wrong order, or to nobody; and cancels that race an effect at each of its boundaries.

Can go wrong: a fault that never met anything. Each drill counts what it met and says so in its report.
"""

import asyncio
import os
import secrets
import signal
from contextlib import suppress

from libs.drills.history import Fact
from libs.drills.stage import Drill, Stage
from libs.drills.wires import EventMixer
from libs.runtime.service import SERVICES

BOUNDARIES = {
    "worker.before_intent": "worker",
    "gateway.before_intent": "gateway",
    "gateway.after_intent": "gateway",
    "gateway.after_call": "gateway",
    "gateway.after_receipt": "gateway",
    "worker.before_completion": "worker",
}
_mixers: dict[int, EventMixer] = {}


async def _wire_mixer(stage: Stage) -> None:
    mixer = _mixers[id(stage)] = EventMixer()
    relays = {host.public: await mixer.before(host.public) for name in SERVICES for host in stage.installation.hosts_of(name)}
    stage.installation.wire = lambda _, port, address: relays.get(address, address) if port == "public" else address
    stage.undo.append(mixer.close)


async def mix_events(stage: Stage) -> None:
    """Every batch arrives reversed, again as it was, and followed by an older one."""
    mixer = _mixers.pop(id(stage))
    async with stage.fault("every batch of events reversed, repeated, and followed by an older one"):
        mixer.mixing = True
        since = stage.began
        await stage.finished(20, since, "under repeated and reversed events")
        mixer.mixing = False
    stage.report.facts["events"] = f"{mixer.batches} batches reversed, {mixer.repeated} sent again"
    stage.expect(mixer.repeated > 50, f"only {mixer.repeated} batches were sent again")


async def lose_answers(stage: Stage) -> None:
    """The provider does what it is asked and cuts, or cuts without doing it."""
    async with stage.fault("answers lost, every other one after the effect was applied"):
        stage.provider.lose_answers(20)
        await stage.until(lambda: stage.provider.lost >= 20, "20 answers lost", 60)

    def look(facts: list[Fact]) -> None:
        found = [fact["state"] for fact in facts if fact["who"] == "final" and fact["what"] == "effect"]
        stage.report.facts["effects"] = f"{found.count('observed')} of {len(found)} found by look-up"
        stage.expect(found.count("observed") >= 5, "fewer than five effects were found by look-up")

    stage.afterwards.append(look)


async def _arm_pauses(stage: Stage) -> None:
    charges = stage.folder / "charges"
    charges.mkdir(exist_ok=True)
    faults = ",".join(f"{point}=pause@{charges / point}" for point in BOUNDARIES)
    stage.installation.environ["RUNWAY_FAULTS"] = faults


async def race_cancels(stage: Stage) -> None:
    """At each boundary a process stops, what runs is cancelled, and the process goes on before, while or after that."""
    met = []
    async with stage.fault("cancel raced at every boundary of an effect"):
        for point, kind in BOUNDARIES.items():
            for delay_s in (0.0, 0.05, 2.0):
                if await _race(stage, point, kind, delay_s):
                    met.append(point)
    stage.report.facts["races"] = f"{len(met)} of {3 * len(BOUNDARIES)}: {', '.join(sorted(set(met)))}"
    missed = set(BOUNDARIES) - set(met)
    stage.expect(not missed, f"boundaries that nothing met: {', '.join(sorted(missed))}")


async def _race(stage: Stage, point: str, kind: str, delay_s: float) -> bool:
    charge = stage.folder / "charges" / point
    charge.touch()
    if not await stage.until(lambda: not charge.exists(), f"{point} reached", 30):
        charge.unlink(missing_ok=True)
        return False
    under_way = [run for run in stage.traffic.runs if run.run_id and not run.outcome]
    cancels = [asyncio.create_task(stage.traffic.cancel(run.run_id)) for run in under_way]
    await asyncio.sleep(delay_s)
    for pid in _stopped(stage, kind):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    phases = await asyncio.gather(*cancels)
    stage.history.note("drill", "raced", point=point, delay_s=delay_s, phases=phases)
    await stage.work_on(0.2 + secrets.randbelow(100) / 1000)
    return bool(phases)


def _stopped(stage: Stage, kind: str) -> list[int]:
    if kind == "worker":
        return [worker.process.pid for worker in stage.installation.workers if worker.process.returncode is None]
    return [host.process.pid for host in stage.installation.hosts_of(kind) if host.process is not None]


DRILLS = [
    Drill(
        "events-mixed",
        "outbox batches repeated and reversed on every link",
        mix_events,
        prepare=_wire_mixer,
        during={"finished": 20},
    ),
    Drill(
        "answers-lost",
        "a provider that applied and did not answer, or cut before it applied",
        lose_answers,
        during={"launched": 1},
    ),
    Drill(
        "cancel-raced",
        "a cancel raced at every boundary of an effect",
        race_cancels,
        prepare=_arm_pauses,
        during={"launched": 5},
    ),
]
