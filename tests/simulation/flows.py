"""Authoritative for what one run of the simulated world does: its plan, and the workflows of steps, effects and checkpoints.

Every effect's path names its run, step and slot, so that the provider's log can be held against the ledger.
"""

import asyncio
from datetime import timedelta
from urllib.parse import quote

from pydantic import BaseModel
from runway_sdk import ApprovalRule, Context, Retry, StepFailed, step, workflow

REPLAY = {"plain": "", "known": "reconcilable", "keyed": "idempotent"}


class Plan(BaseModel):
    """What one run does; each step does it in its own way."""

    calls: list[str] = []
    naps_s: float = 0.0
    fails: int = 0
    boundaries: int = 0
    hold_micros: int = 0
    children: int = 0
    grand: int = 0
    """Children of each child."""
    join: str = "all"
    losers: int = 0
    """Of children or instances, those that fail for good."""
    slice_micros: int = 0
    waits: list[str] = []
    wait_s: float = 0.0
    topic: str = ""
    items: int = 0
    draws: list[int] = []
    """Calls that are waited for together, again and again."""
    spends: int = 0
    budget_micros: int = 0
    """At the launch; nothing: what an installation gives."""
    need: int = 1
    """People who must allow what is asked."""
    changes: bool = False
    """Later attempts make another call than the first."""


async def effects(ctx: Context, plan: Plan) -> int:
    for number, target in enumerate(plan.calls):
        await asyncio.sleep(plan.naps_s)
        slot = f"{target}-{number}"
        path = quote(f"/{target}/{ctx.run_id}/{ctx.step_key}/{slot}")
        await ctx.tool(
            "http.request",
            {"target": target, "method": "POST", "path": path},
            slot=slot,
            replay=REPLAY[target],
            hold_micros=plan.hold_micros,
            timeout_s=60,
        )
    return len(plan.calls)


PATIENT = Retry(max_attempts=30, initial=timedelta(milliseconds=200), longest=timedelta(seconds=3))
TTL = timedelta(seconds=4)


@step(retry=PATIENT, lease_ttl=TTL)
async def first(ctx: Context, run: Plan) -> int:
    await asyncio.sleep(run.naps_s)
    if ctx.attempt_number <= run.fails:
        raise StepFailed("not yet", "transient")
    return 1


@step(tools=["http.request"], retry=PATIENT, lease_ttl=TTL)
async def second(ctx: Context, run: Plan, first: int) -> int:
    return first + await effects(ctx, run)


@step(tools=["http.request"], checkpoints=True, retry=PATIENT, lease_ttl=TTL)
async def third(ctx: Context, run: Plan, second: int) -> int:
    found = await ctx.restore()
    done = int(found.state["done"]) if found else 0
    if found is not None and found.sequence < done:
        raise StepFailed(f"boundary {found.sequence} says {done}", "policy")
    for number in range(done, run.boundaries):
        await asyncio.sleep(run.naps_s)
        await ctx.tool(
            "http.request",
            {"target": "keyed", "method": "POST", "path": f"/keyed/{ctx.run_id}/{ctx.step_key}/b{number}"},
            slot=f"b{number}",
            replay="idempotent",
            timeout_s=60,
        )
        await ctx.checkpoint({"done": number + 1}, boundary=f"b{number}")
    return second + run.boundaries


chain = workflow("chain", steps=[first, second, third], input=Plan)


@step(tools=["http.request"], retry=PATIENT, lease_ttl=TTL)
async def left(ctx: Context, run: Plan, first: int) -> int:
    return first + await effects(ctx, run)


@step(tools=["http.request"], retry=PATIENT, lease_ttl=TTL)
async def right(ctx: Context, run: Plan, first: int) -> int:
    return first + await effects(ctx, run)


@step(retry=PATIENT, lease_ttl=TTL)
async def middle(ctx: Context, run: Plan, first: int) -> int:
    await asyncio.sleep(run.naps_s)
    return first


@step(retry=PATIENT, lease_ttl=TTL)
async def join(ctx: Context, run: Plan, left: int, middle: int, right: int) -> int:
    return left + middle + right


fan = workflow("fan", steps=[first, left, middle, right, join], input=Plan)


@step(tools=["http.request"], approvals=[ApprovalRule(["http.request"])], retry=PATIENT, lease_ttl=TTL)
async def guarded(ctx: Context, run: Plan, first: int) -> int:
    return first + await effects(ctx, run)


reviewed = workflow("reviewed", steps=[first, guarded], input=Plan)
