"""The work of drills about what a run may do: by its capabilities, by its budget, by what a provider allows. Every call is
noted, as in flows.py, and runs in worker processes.

Can go wrong: a run that ends for another reason than the one that it is about. Each says in its output how far it came.
"""

import asyncio
from datetime import timedelta

from runway_sdk import CapabilityDenied, Child, Context, step, workflow

from libs.drills.flows import PATIENT, PERIOD_S, QUICK, SLICE_MICROS, effect
from libs.drills.provider import SCARCE

GROUP = 3
"""Children of a tree."""
DEAR = SLICE_MICROS
"""What a dear call holds and costs: all of a child's slice."""


@step(tools=["http.request"], lease_ttl=QUICK, retry=PATIENT)
async def go_while_allowed(ctx: Context, run: int) -> int:
    """So many effects, until it may make no more; how many it made."""
    clock = asyncio.get_running_loop().time
    for number in range(run):
        began = clock()
        try:
            answer = await effect(ctx, "plain", f"plain-{number}", "reconcilable")
        except CapabilityDenied:
            return number
        if not answer.replayed:
            await asyncio.sleep(max(0.0, PERIOD_S - (clock() - began)))
    return run


eager = workflow("drill-eager", steps=[go_while_allowed], input=int, promises=int)


@step(tools=["http.request"], lease_ttl=QUICK, retry=PATIENT)
async def bring_up_eager(ctx: Context, run: int) -> int:
    """Children that go on while they may; how many effects they made."""
    children = [Child("drill-eager", run, name=f"e{number}", budget_micros=SLICE_MICROS) for number in range(GROUP)]
    joined = await ctx.join(await ctx.spawn_many(children, slot="spawn"), slot="join")
    return sum(int(output) for output in joined.outputs.values())


eager_tree = workflow("drill-eager-tree", steps=[bring_up_eager], input=int, promises=int)


@step(tools=["http.request"], lease_ttl=QUICK, retry=PATIENT)
async def spend(ctx: Context, run: int) -> int:
    """So many dear effects, each of which waits for the money."""
    for number in range(run):
        await effect(ctx, "plain", f"dear-{number}", "reconcilable", hold_micros=DEAR, wait_for_budget=True)
    return run


capped = workflow("drill-capped", steps=[spend], input=int, promises=int)


@step(tools=["http.request"], lease_ttl=QUICK, retry=PATIENT)
async def spend_once(ctx: Context, run: int) -> int:
    """A child's dear effect: nothing of its slice comes back."""
    await effect(ctx, "plain", "dear", "reconcilable", hold_micros=DEAR)
    return run


dear = workflow("drill-dear", steps=[spend_once], input=int, promises=int)


@step(tools=["http.request"], lease_ttl=QUICK, retry=PATIENT)
async def bring_up_dear(ctx: Context, run: int) -> int:
    """So many children, each of which takes a slice that the run has not got yet; the sum of what they gave."""
    spawned = [
        await ctx.spawn(
            "drill-dear", number, name=f"d{number}", budget_micros=DEAR, slot=f"spawn-{number}", wait_for_budget=True
        )
        for number in range(run)
    ]
    joined = await ctx.join(*spawned, slot="join")
    return sum(int(output) for output in joined.outputs.values())


capped_tree = workflow("drill-capped-tree", steps=[bring_up_dear], input=int, promises=int)


@step(tools=["http.request"], lease_ttl=QUICK, retry=PATIENT)
async def act_scarcely(ctx: Context, run: int) -> int:
    """Waits until a provider has so many calls for it, then makes them."""
    await ctx.wait_for_capacity(f"provider:{SCARCE}", calls=run, timeout=timedelta(minutes=5), slot="room")
    for number in range(run):
        await effect(ctx, SCARCE, f"scarce-{number}", "reconcilable")
    return run


scarce = workflow("drill-scarce", steps=[act_scarcely], input=int, promises=int)
WORKFLOWS = (eager, eager_tree, capped, dear, capped_tree, scarce)
