"""Services that die while runs spawn, join, end as trees and wait; and clocks that jump beside timers.

Each drill brings its own runs beside the ordinary traffic, and says what they must answer. Can go wrong: a fault that met
nothing. What the drill brought is counted, and every run of it must end as it should.
"""

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import Sequence

from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk.errors import RunwayError

from libs.drills.faults.machines import HOURS_MS, jump, own_clocks
from libs.drills.finals import SQL, ask
from libs.drills.flows import ANSWER
from libs.drills.history import Fact, now_ms
from libs.drills.stage import LOOK_S, Drill, Stage
from libs.drills.traffic import Launched
from libs.embedded import dies_with_the_owner

TREES, CHILDREN = 12, 6
GROWN = (0, 0, 1, 3, 3, 4, 6, 9, 12, 12)
"""Trees are cancelled when so much has come of them: of all that they would have, 12."""
LEAVES = 3
GROWTH_S = 0.2
"""Between two looks while trees grow: a cancel is to meet them at any size."""
WAITING = 10
TIMER = 1
FIRED = 2


async def kill(stage: Stage, service: str, replica: int = 0) -> None:
    """SIGKILL, and its supervisor's new one."""
    gone = stage.installation.pid(service, replica)
    os.kill(gone, signal.SIGKILL)
    await stage.installation.back(service, gone, replica)


def answers(stage: Stage, runs: Sequence[Launched], output: int, what: str = "answered as they must") -> None:
    """Once everything is known: each of these runs succeeded and says this."""

    def look(facts: list[Fact]) -> None:
        finals = {fact["run"]: fact for fact in facts if (fact["who"], fact["what"]) == ("final", "run")}
        said = [(finals.get(run.run_id, {}).get("outcome"), finals.get(run.run_id, {}).get("output")) for run in runs]
        good = said.count(("succeeded", output))
        stage.report.facts[what] = f"{good} of {len(runs)}"
        wrong = sorted({str(one) for one in said if one != ("succeeded", output)})
        stage.expect(not wrong, f"not every run answered {output}: {', '.join(wrong[:3])}")

    stage.afterwards.append(look)


async def _over(stage: Stage, runs: Sequence[Launched], what: str) -> None:
    """Waits until each of these runs has an outcome."""
    await stage.until(lambda: all(run.outcome for run in runs), what, 60)


async def kill_launch_spawning(stage: Stage) -> None:
    """Launch dies twice while parents spawn, and once while they join."""
    trees: list[Launched] = []

    async def plant(number: int) -> None:
        trees.extend(await asyncio.gather(*(stage.traffic.begin("drill-tree", CHILDREN) for _ in range(number))))

    async with stage.fault("SIGKILL of launch, three times, while parents spawn and join"):
        await plant(TREES // 3)
        for _ in range(2):
            planting = asyncio.create_task(plant(TREES // 3))
            await asyncio.sleep(secrets.randbelow(400) / 1000)  # the fault comes at a random moment
            await kill(stage, "launch")
            await planting
        await kill(stage, "launch")
        await _over(stage, trees, "trees that were joined")
    answers(stage, trees, sum(range(CHILDREN)))
    born = await ask(stage.installation.urls["launch"], SQL.descendants, [run.run_id for run in trees])
    stage.report.facts["children"] = len(born)
    stage.expect(len(born) == TREES * CHILDREN, f"{len(born)} children of {TREES * CHILDREN}")


class _Growth:
    """How much has come of each tree: one look for all of them at a time, so that looking is no load."""

    def __init__(self, stage: Stage) -> None:
        self._url = stage.installation.urls["launch"]
        self._of: dict[str, int] = {}

    async def look(self, roots: dict[str, int]) -> None:
        """Looks until it is ended; `roots` may grow meanwhile."""
        while True:
            parents = {str(row["run_id"]): str(row["parent_id"]) for row in await ask(self._url, SQL.descendants, list(roots))}
            found: dict[str, int] = {}
            for parent in parents.values():
                while parent in parents:
                    parent = parents[parent]
                found[parent] = found.get(parent, 0) + 1
            self._of = found
            await asyncio.sleep(GROWTH_S)

    async def reached(self, root: str, most: int) -> None:
        """Waits until so much has come of a tree; not for long, since what would grow may be what was killed."""
        for _ in range(round(20 / LOOK_S)):
            if self._of.get(root, 0) >= most:
                return
            await asyncio.sleep(LOOK_S)


async def cancel_trees(stage: Stage) -> None:
    """Trees are cancelled at any moment of their growth while readiness dies: each descendant confirms, then sends nothing."""
    enforced: dict[str, int] = {}
    took: list[float] = []
    born: list[int] = []
    growth, roots = _Growth(stage), dict[str, int]()

    async def one(place: int) -> None:
        run = await stage.traffic.begin("drill-grove", LEAVES)
        roots[run.run_id] = place
        await growth.reached(run.run_id, GROWN[place])
        began = now_ms()
        while True:
            try:
                answer = await stage.traffic.client.cancel(run.run_id, "a drill")
            except RunwayError:
                await asyncio.sleep(LOOK_S)
                continue
            below = answer.descendants
            stage.expect(below.accepted == below.total, f"{run.run_id} is cancelled, and not all below it: {below}")
            if answer.phase == pb.CANCEL_PHASE_TOO_LATE:
                return
            if answer.phase != pb.CANCEL_PHASE_ACCEPTED and below.enforced == below.total:
                break
            await asyncio.sleep(LOOK_S)
        enforced[run.run_id] = stage.wall_ms()
        took.append(now_ms() - began)
        born.append(below.total)

    looking = asyncio.create_task(growth.look(roots))

    async def ended() -> None:
        looking.cancel()

    stage.undo.append(ended)
    async with stage.fault("trees cancelled at random moments while readiness is killed twice"):
        cancelling = asyncio.gather(*(one(place) for place in range(len(GROWN))))
        for _ in range(2):
            await asyncio.sleep(1.0 + secrets.randbelow(1000) / 1000)  # the fault comes at a random moment
            await kill(stage, "readiness")
        await asyncio.wait_for(cancelling, 90)
    looking.cancel()
    stage.report.facts |= {"trees enforced": len(enforced), "descendants of each": sorted(born)}
    stage.report.times_ms["slowest cancel"] = max(took, default=None)
    stage.expect(len(enforced) >= len(GROWN) // 2, f"only {len(enforced)} of {len(GROWN)} trees were cancelled in time")
    stage.expect(sum(born) >= sum(GROWN) // 3, "the trees had hardly grown when they were cancelled")

    urls = stage.installation.urls
    late = []
    sent = await ask(urls["gateway"], SQL.intents)
    for root, when in enforced.items():
        names = {root} | {str(row["run_id"]) for row in await ask(urls["launch"], SQL.descendants, [root])}
        late += [str(row["run_id"]) for row in sent if str(row["run_id"]) in names and row["requested_ms"] > when]
    stage.expect(not late, f"intended after every descendant's receipt: {late[:3]}")


async def _tellers(stage: Stage, runs: Sequence[Launched]) -> list[asyncio.subprocess.Process]:
    """Two processes, each of which tells of every event twice."""
    asked = [f"{run.run_id}:{event}" for run in runs for event in ("a:1", "b:10", f"answer:{ANSWER}")]
    command = [sys.executable, "-m", "libs.drills.tell", str(stage.installation.folder), *asked]
    return [
        await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, preexec_fn=dies_with_the_owner(signal.SIGKILL)
        )
        for _ in range(2)
    ]


async def kill_readiness_waiting(stage: Stage) -> None:
    """Readiness dies while timers run, events come four times each, and people answer."""
    async with stage.fault("SIGKILL of readiness, three times, beside timers, events told four times and answers"):
        runs = list(await asyncio.gather(*(stage.traffic.begin("drill-waits", 2.5) for _ in range(WAITING))))
        tellers = await _tellers(stage, runs)
        try:
            for _ in range(3):
                await asyncio.sleep(0.3 + secrets.randbelow(900) / 1000)  # the fault comes at a random moment
                await kill(stage, "readiness")
            await _over(stage, runs, "runs that were told everything")
        finally:
            for teller in tellers:
                if teller.returncode is None:
                    teller.kill()
                await teller.wait()
    answers(stage, runs, 11 + ANSWER)


async def jump_beside_timers(stage: Stage) -> None:
    """Clocks of readiness and schedulers jump beside timers: none fires early by its own clock, none is lost or fires twice."""
    runs: list[Launched] = []

    async def asleep(number: int) -> None:
        begun = await asyncio.gather(*(stage.traffic.begin("drill-naps", 2.0) for _ in range(number)))
        runs.extend(begun)
        names = {run.run_id for run in begun}
        end = asyncio.get_running_loop().time() + 20
        while asyncio.get_running_loop().time() < end:
            rows = await ask(stage.installation.urls["readiness"], SQL.waits)
            if names <= {str(row["run_id"]) for row in rows}:
                return
            await asyncio.sleep(LOOK_S)
        stage.expect(False, "not every run waits for its first time")

    async with stage.fault("the clocks of readiness and schedulers two hours ahead, back, behind and right, beside timers"):
        for offset_ms in (HOURS_MS, 0, HOURS_MS, -HOURS_MS, HOURS_MS):  # what was set by a clock ahead comes with it
            await asleep(4)
            for service in ("readiness", "scheduler"):
                jump(stage, service, offset_ms)
        await _over(stage, runs, "runs that slept twice")
        for service in ("readiness", "scheduler"):
            jump(stage, service, 0)
    answers(stage, runs, 1)
    rows = [row for row in await ask(stage.installation.urls["readiness"], SQL.waits) if row["kind"] == TIMER]
    early = [row for row in rows if row["ended_ms"] < row["due_ms"]]
    stage.report.facts["timers"] = len(rows)
    stage.expect(len(rows) == 2 * len(runs), f"{len(rows)} timers of {2 * len(runs)}")
    stage.expect(not early, f"timers that fired early by their own clock: {early[:3]}")
    stage.expect(all(row["state"] == FIRED for row in rows), "timers that did not fire")

    def look(facts: list[Fact]) -> None:
        ends: dict[str, list[str]] = {run.run_id: [] for run in runs}
        for fact in facts:
            if (fact["who"], fact["what"]) == ("final", "attempt") and fact["run"] in ends:
                ends[fact["run"]].append(fact["state"])
        stage.expect(all(found.count("succeeded") == 1 for found in ends.values()), "a run that woke more often than it slept")
        again = [found for found in ends.values() if found.count("yielded") > 2]
        stage.expect(not again, f"a timer fired twice: {again[:3]}")

    stage.afterwards.append(look)


DRILLS = [
    Drill(
        "kill-launch-spawning",
        "SIGKILL of launch while parents spawn and join children",
        kill_launch_spawning,
        during={"launched": TREES},
    ),
    Drill(
        "cancel-tree-raced",
        "trees cancelled at random moments while readiness is killed",
        cancel_trees,
        during={"launched": len(GROWN)},
    ),
    Drill(
        "kill-readiness-waiting",
        "SIGKILL of readiness beside timers, events told twice and answers",
        kill_readiness_waiting,
        during={"launched": WAITING, "finished": WAITING},
    ),
    Drill(
        "clock-jump-waits",
        "clocks of readiness and schedulers jump two hours beside timers",
        jump_beside_timers,
        prepare=own_clocks,
        during={"launched": 10, "finished": 10},
    ),
]
