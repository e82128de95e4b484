"""Authoritative for workflows whose runs meet a bound: what a bucket holds, what their budget has, what their parent's has free.

They ask a model, which takes from a bucket and costs money: what a run is told of capacity, and what it pays, is in its answer and in
the ledger. Can go wrong: a bound that nobody lifts. Buckets fill, and somebody raises budgets for as long as a run goes on.
"""

import asyncio
from datetime import timedelta
from itertools import product
from typing import Any

from runway_sdk import Child, Context, step, workflow
from runway_sdk.errors import CapacityTimedOut

from tests.simulation.flows import PATIENT, TTL, Plan
from tests.simulation.lives import JOINS, WORKFLOWS
from tests.simulation.lives import expected as expected_of_lives

MODEL = "small"
CALL = f"model:{MODEL}"
MOST_TOKENS = 1_000
"""Money is held for so many; a token is a micro."""
LATE = 1_000
asked: dict[tuple[str, str], tuple[float, int]] = {}
"""(run, slot) → when a step first asked for capacity, in virtual time, and for how many calls."""
told: dict[tuple[str, str], list[tuple[float, str]]] = {}
"""The same → when its attempts came past it, and what each was told."""


async def consult(ctx: Context, slot: str, *, waits: bool = False) -> None:
    """Asks the model, naming the slot."""
    words = {"role": "user", "content": f"{ctx.run_id}/{ctx.step_key}/{slot}"}
    body = {"messages": [words], "max_tokens": MOST_TOKENS}
    await ctx.model(MODEL, body, slot=slot, timeout_s=60, wait_for_budget=waits)


@step(models=[MODEL], retry=PATIENT, lease_ttl=TTL)
async def drink(ctx: Context, run: Plan) -> int:
    """Waits for so many calls, and makes them; goes on without where they do not come in time."""
    now = asyncio.get_running_loop().time
    total = 0
    for number, calls in enumerate(run.draws):
        slot = f"room-{number}"
        asked.setdefault((ctx.run_id, slot), (now(), calls))
        timeout = timedelta(seconds=run.wait_s) if run.wait_s else None
        try:
            await ctx.wait_for_capacity(CALL, calls=calls, timeout=timeout, slot=slot)
        except CapacityTimedOut:
            told.setdefault((ctx.run_id, slot), []).append((now(), "late"))
            total += LATE
            await asyncio.sleep(run.naps_s)
            continue
        told.setdefault((ctx.run_id, slot), []).append((now(), "room"))
        await asyncio.sleep(run.naps_s)
        for call in range(calls):
            await consult(ctx, f"{slot}.{call}")
        total += calls
    return total


thirsty = workflow("thirsty", steps=[drink], input=Plan)


@step(models=[MODEL], retry=PATIENT, lease_ttl=TTL)
async def spend(ctx: Context, run: Plan) -> int:
    """Asks as often as it is told, waiting for money where there is none."""
    for number in range(run.spends):
        await asyncio.sleep(run.naps_s)
        await consult(ctx, f"call-{number}", waits=True)
    return run.spends


spender = workflow("spender", steps=[spend], input=Plan, promises=int)


@step(models=[MODEL], retry=PATIENT, lease_ttl=TTL)
async def dole(ctx: Context, run: Plan) -> int:
    """Spawns more than it can pay at once, and pays calls of its own beside them; every second command is of two children, which are
    made together or not at all."""
    spawned = []
    for place in range(run.children):
        one = Child("spender", Plan(spends=run.spends, naps_s=run.naps_s), budget_micros=run.slice_micros)
        spawned.append(await ctx.spawn_many([one] * (1 + place % 2), slot=f"c{place}", wait_for_budget=True))
    for number in range(run.items):
        await consult(ctx, f"own-{number}", waits=True)
    return (await ctx.join(*spawned, policy=JOINS[run.join], slot="join")).succeeded


frugal = workflow("frugal", steps=[dole], input=Plan)
ALL_WORKFLOWS = (*WORKFLOWS, thirsty, spender, frugal)
MAY = {
    "thirsty": (CALL, "model:*"),
    "spender": (CALL, "model:*"),
    "frugal": (CALL, "model:*"),
    "waiter": (),
}
"""What can be taken from runs of a workflow; of the others: their tool."""


def may(name: str) -> tuple[str, ...]:
    """What can be taken from runs of this workflow."""
    return MAY.get(name, ("tool:http.request", "tool:*"))


def expected(name: str, plan: Plan) -> set[Any]:
    """What a run that succeeds may answer."""
    if name == "thirsty":
        ways = [(calls, LATE) if plan.wait_s else (calls,) for calls in plan.draws]
        return {sum(way) for way in product(*ways)}
    if name == "spender":
        return {plan.spends}
    if name == "frugal":
        children = plan.children + plan.children // 2
        least = {"any": 1, "two": 2, "quorum": 2}.get(plan.join, children)
        return set(range(least, children + 1))
    return expected_of_lives(name, plan)
