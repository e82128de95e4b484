"""Runs that wait at their cap, and raises that race the death of launch and of the gateway: nothing is spent before it was
granted, each raise counts once however often it is asked for, and each spawn that waited for money makes its child once.

Can go wrong: runs that never came to their cap. Each has money for its first call or child only, and what it may do is counted
by what the provider applied.
"""

import asyncio
import secrets
from contextlib import suppress

from runway_sdk.errors import RunwayError

from libs.drills.bounded import DEAR
from libs.drills.faults.lives import answers, kill
from libs.drills.finals import SQL, ask
from libs.drills.history import Fact, now_ms
from libs.drills.stage import LOOK_S, Drill, Stage
from libs.drills.traffic import ASK_AGAIN_S, Launched
from libs.kernel.refusal import Refusal

RUNS, TREES = 5, 4
DEAR_CALLS = 5
"""Of each run, and children of each tree: money for the first one is there from the beginning."""
ASKED = 3
"""How often each raise is asked for, at once."""
KILLED = ("launch", "gateway", "launch", "gateway")


class _Purse:
    """What each run was granted, and since when it may have it."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.since: dict[str, list[float]] = {}
        """By run: when each of its raises was asked for first."""

    async def raise_once(self, run_id: str) -> None:
        """One raise by one request id, asked for several times at once until each was answered."""
        request_id = secrets.token_hex(12)
        self.since.setdefault(run_id, []).append(now_ms())

        async def asks() -> None:
            while True:
                try:
                    await self._stage.traffic.client.trees.raise_budget(run_id, DEAR, reason="a drill", request_id=request_id)
                    return
                except RunwayError as refused:
                    self._stage.history.note("client", "refused", call="raise", reason=refused.reason, run=run_id)
                    await asyncio.sleep(ASK_AGAIN_S)

        await asyncio.gather(*(asks() for _ in range(ASKED)))


async def budget_raced(stage: Stage) -> None:
    """Every run comes to its cap four times, and is raised each time, while launch and the gateway are killed twice each."""
    purse = _Purse(stage)
    begin = stage.traffic.begin
    launch = stage.installation.urls["launch"]
    below: dict[str, set[str]] = {}

    def spent(run_id: str) -> int:
        """Dear calls of it, or of what came of it."""
        return sum(stage.applied(name) for name in {run_id, *below.get(run_id, ())})

    async def feed(run: Launched, *, tree: bool) -> None:
        for number in range(1, DEAR_CALLS):
            end = asyncio.get_running_loop().time() + 90
            while spent(run.run_id) < number and asyncio.get_running_loop().time() < end:
                if tree:
                    with suppress(Refusal):  # a busy machine: it is asked again
                        rows = await ask(launch, SQL.descendants, [run.run_id])
                        below[run.run_id] = {str(row["run_id"]) for row in rows}
                await asyncio.sleep(4 * LOOK_S)  # between two looks at a provider and at rows that nobody signals
            stage.expect(
                spent(run.run_id) == number, f"{run.run_id} made {spent(run.run_id)} dear calls with money for {number}"
            )
            await asyncio.sleep(secrets.randbelow(800) / 1000)  # it comes to its cap, or nearly
            await purse.raise_once(run.run_id)

    async with stage.fault("runs and spawns at their cap, raised while launch and the gateway are killed in turn"):
        runs = list(await asyncio.gather(*(begin("drill-capped", DEAR_CALLS, DEAR) for _ in range(RUNS))))
        trees = list(await asyncio.gather(*(begin("drill-capped-tree", DEAR_CALLS, DEAR) for _ in range(TREES))))
        feeding = asyncio.gather(*(feed(run, tree=False) for run in runs), *(feed(run, tree=True) for run in trees))
        for service in KILLED:
            await asyncio.sleep(0.5 + secrets.randbelow(1_500) / 1000)  # the fault comes at a random moment
            await kill(stage, service)
        await asyncio.wait_for(feeding, 240)
        await stage.until(lambda: all(run.outcome for run in (*runs, *trees)), "runs whose budgets were raised", 90)
    answers(stage, runs, DEAR_CALLS, "runs that answered as they must")
    answers(stage, trees, sum(range(DEAR_CALLS)), "trees that answered as they must")
    await _count(stage, purse, runs, trees)


async def _count(stage: Stage, purse: _Purse, runs: list[Launched], trees: list[Launched]) -> None:
    """What launch has of it: each raise once, each child once, and nothing that waits."""
    launch = stage.installation.urls["launch"]
    rows = {str(row["run_id"]): row for row in await ask(launch, SQL.raises)}
    odd = [
        run.run_id
        for run in (*runs, *trees)
        if (rows[run.run_id]["raises"], rows[run.run_id]["micros"]) != (DEAR_CALLS - 1, (DEAR_CALLS - 1) * DEAR)
    ]
    stage.expect(not odd, f"runs whose raises do not count once each: {odd[:3]}")
    born = await ask(launch, SQL.descendants, [run.run_id for run in trees])
    stage.expect(len(born) == TREES * DEAR_CALLS, f"{len(born)} children of {TREES * DEAR_CALLS}")
    held = (await ask(launch, SQL.held))[0]
    stage.expect(held["waiting"] == 0, f"{held['waiting']} spawns still wait")
    stage.expect(held["held"] >= TREES, f"only {held['held']} spawns waited for money")
    stage.report.facts |= {
        "raises": f"{len(purse.since)} runs, {DEAR_CALLS - 1} each, each asked {ASKED} times",
        "children": len(born),
        "spawns that waited": held["held"],
    }

    def look(facts: list[Fact]) -> None:
        times: dict[str, list[float]] = {}
        for fact in facts:
            if (fact["who"], fact["what"]) == ("provider", "applied") and str(fact["slot"]).startswith("dear-"):
                times.setdefault(fact["run"], []).append(fact["t"])
        for run in runs:
            made = sorted(times.get(run.run_id, []))
            stage.expect(len(made) == DEAR_CALLS, f"{run.run_id} made {len(made)} dear calls of {DEAR_CALLS}")
            early = [n for n, since in enumerate(purse.since[run.run_id], 1) if len(made) > n and made[n] < since]
            stage.expect(not early, f"{run.run_id} spent before it was raised: calls {early}")

    stage.afterwards.append(look)


DRILLS = [
    Drill(
        "budget-raced",
        "raises that race the death of launch and the gateway, beside runs and spawns at their cap",
        budget_raced,
        during={"launched": RUNS + TREES, "finished": RUNS + TREES},
    )
]
