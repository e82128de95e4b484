"""Capabilities taken from runs and trees in the middle of their effects, while the gateway and launch die or stop in turn: by
the provider's own log nothing is sent once the answer said ENFORCED but what was dispatched before.

Can go wrong: a revocation that met nobody. Each run makes effects when it is asked for, and each must end with fewer than it
would have made.
"""

import asyncio
import os
import secrets
import signal
from dataclasses import dataclass, field

from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk.errors import RunwayError

from libs.drills.bounded import GROUP
from libs.drills.faults.lives import kill
from libs.drills.finals import SQL, ask
from libs.drills.history import Fact, now_ms
from libs.drills.installation import Recipe
from libs.drills.stage import LOOK_S, Drill, Stage
from libs.drills.traffic import ASK_AGAIN_S, Launched

TAKEN = "tool:http.request"
ALONE, TREES, LEFT = 4, 2, 2
EFFECTS = 80
"""Of a run that may go on: more than it makes before it may no more."""
WHOLE = 40
"""Of a run from which nothing is taken."""
TURNS = (
    ("gateway", "stopped", 2),
    ("launch", "killed", 1),
    ("gateway", "killed", 1),
    ("gateway", "stopped", 2),
    ("launch", "killed", 0),
)
"""Whom it hits, and from how many runs the tool is taken meanwhile."""
DEAD_MS = 400
"""A revocation is asked for so soon after a kill, at most: who was killed cannot confirm it yet."""
STOPPED_S = 3.0
"""Longer than launch waits for a point before it answers: who was stopped then finds calls from before the revocation."""


@dataclass(slots=True)
class _Taken:
    """When a run's revocation was answered as enforced, by the history's clock and by that of rows; and what was under way."""

    at: float
    wall_ms: int
    took_ms: float
    in_flight: set[tuple[str, str]] = field(default_factory=set)


async def _revoke(stage: Stage, run_id: str) -> _Taken:
    """Asks under one request id until every point of every run has confirmed it."""
    request_id, began = secrets.token_hex(12), now_ms()
    while True:
        try:
            answer = await stage.traffic.client.trees.revoke(run_id, [TAKEN], "a drill", request_id=request_id)
        except RunwayError as refused:
            stage.history.note("client", "refused", call="revoke", reason=refused.reason, run=run_id)
            await asyncio.sleep(ASK_AGAIN_S)
            continue
        if answer.phase == pb.REVOCATION_PHASE_ENFORCED:
            below = answer.below
            stage.expect(below.enforced == below.total, f"{run_id} is told as enforced, and not all below it: {below}")
            found = {(effect.step_key, effect.slot) for effect in answer.effects_in_flight}
            taken = _Taken(now_ms(), stage.wall_ms(), now_ms() - began, found)
            stage.history.note("drill", "revoked", run=run_id, in_flight=sorted(found), below=below.total)
            return taken
        await asyncio.sleep(LOOK_S)


async def revoke_raced(stage: Stage) -> None:
    """Runs and trees lose their tool one after another while the gateway and launch are killed or stopped in turn."""
    begin = stage.traffic.begin
    alone = list(await asyncio.gather(*(begin("drill-eager", EFFECTS) for _ in range(ALONE))))
    trees = list(await asyncio.gather(*(begin("drill-eager-tree", EFFECTS) for _ in range(TREES))))
    left = list(await asyncio.gather(*(begin("drill-eager", WHOLE) for _ in range(LEFT))))
    launch = stage.installation.urls["launch"]
    below = await _grown(stage, trees)
    await stage.until(
        lambda: all(stage.applied(name) >= 2 for name in (*(run.run_id for run in alone), *below)),
        "two effects of each run that is to lose its tool",
        60,
    )
    taken: dict[str, _Taken] = {}

    async def take(run: Launched) -> None:
        await asyncio.sleep(secrets.randbelow(DEAD_MS) / 1000)  # the fault comes at a random moment
        taken[run.run_id] = await _revoke(stage, run.run_id)

    async with stage.fault("a tool taken from runs and trees while the gateway and launch are killed or stopped in turn"):
        left_over, waiting = [*alone, *trees], []
        for service, how, number in TURNS:
            if how == "stopped":
                os.kill(stage.installation.pid(service), signal.SIGSTOP)
            waiting += [asyncio.ensure_future(take(left_over.pop(0))) for _ in range(number)]
            if how == "stopped":
                await stage.work_on(STOPPED_S)
                os.kill(stage.installation.pid(service), signal.SIGCONT)
            else:
                await kill(stage, service)
            await asyncio.sleep(secrets.randbelow(1_000) / 1000)  # the fault comes at a random moment
        await asyncio.wait_for(asyncio.gather(*waiting), 120)
        runs = (*alone, *trees, *left)
        await stage.until(lambda: all(run.outcome for run in runs), "the end of runs that lost their tool, and of others", 90)
    stage.report.times_ms["slowest revocation"] = max(one.took_ms for one in taken.values())
    rows = await ask(stage.installation.urls["gateway"], SQL.intents)
    root_of = {run.run_id: run.run_id for run in (*alone, *trees)}
    for run in trees:
        root_of |= {str(row["run_id"]): run.run_id for row in await ask(launch, SQL.descendants, [run.run_id])}
    late = [
        row for row in rows if (found := taken.get(root_of.get(str(row["run_id"]), ""))) and row["requested_ms"] > found.wall_ms
    ]
    stage.expect(not late, f"intended after ENFORCED was answered: {late[:3]}")
    intended = {(str(row["run_id"]), row["step_key"], row["slot"]) for row in rows}
    _judge(stage, taken, root_of, intended, [run.run_id for run in (*alone, *trees)], [run.run_id for run in left])


async def _grown(stage: Stage, trees: list[Launched]) -> set[str]:
    """The trees' children, once all are there."""
    found: set[str] = set()
    for _ in range(round(30 / LOOK_S)):
        rows = await ask(stage.installation.urls["launch"], SQL.descendants, [run.run_id for run in trees])
        found = {str(row["run_id"]) for row in rows}
        if len(found) == TREES * GROUP:
            break
        await asyncio.sleep(LOOK_S)
    stage.expect(len(found) == TREES * GROUP, f"{len(found)} children of {TREES * GROUP}")
    return found


def _judge(
    stage: Stage,
    taken: dict[str, _Taken],
    root_of: dict[str, str],
    intended: set[tuple[str, str, str]],
    lost: list[str],
    left: list[str],
) -> None:
    def look(facts: list[Fact]) -> None:
        finals = {fact["run"]: fact for fact in facts if (fact["who"], fact["what"]) == ("final", "run")}
        before, late = 0, list[str]()
        for fact in facts:
            if (fact["who"], fact["what"]) != ("provider", "applied") or fact["run"] not in root_of:
                continue
            found = taken[root_of[fact["run"]]]
            effect = fact["run"], fact["step"], fact["slot"]
            before += fact["t"] <= found.at
            if fact["t"] <= found.at:
                continue
            named = fact["run"] not in taken or (fact["step"], fact["slot"]) in found.in_flight
            if not named or effect not in intended:
                late.append(f"{'/'.join(effect)} {fact['t'] - found.at:.0f} ms after it")
        stage.expect(not late, f"{len(late)} effects were sent after ENFORCED: {', '.join(late[:3])}")
        most = {run: EFFECTS * (GROUP if run in set(root_of.values()) - set(lost[:ALONE]) else 1) for run in lost}
        fewer = [run for run in lost if finals[run]["outcome"] == "succeeded" and finals[run]["output"] < most[run]]
        whole = [run for run in left if (finals[run]["outcome"], finals[run]["output"]) == ("succeeded", WHOLE)]
        stage.report.facts |= {
            "runs that lost their tool": f"{len(fewer)} of {len(lost)}",
            "runs with it": f"{len(whole)} of {len(left)}",
            "effects before": before,
        }
        stage.expect(len(fewer) == len(lost), "not every run that lost its tool went on without")
        stage.expect(len(whole) == len(left), "a run from which nothing was taken did not end as it should")
        stage.expect(before >= 2 * len(root_of) - 2 * TREES, f"only {before} effects before the tool was taken")

    stage.afterwards.append(look)


DRILLS = [
    Drill(
        "revoke-raced",
        "a tool taken from runs and trees while the gateway and launch are killed or stopped in turn",
        revoke_raced,
        recipe=Recipe(workers=3),  # beside ordinary traffic: each run that goes on holds a slot
        during={"launched": 5, "finished": ALONE + TREES},
    )
]
