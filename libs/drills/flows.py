"""The work of a drill: three steps, two effects, two checkpoints. Every call is noted before it is made and after its answer.

Runs in worker processes (`runway_sdk.serve`). Can go wrong: an unnoted call, which the checker would not see.
"""

import asyncio
import os
import secrets
from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from runway_sdk import ApprovalRule, Child, Context, Retry, ToolResult, step, workflow

from libs.drills.history import HISTORY, History

T = TypeVar("T")
QUICK = timedelta(seconds=3)
PATIENT = Retry(max_attempts=50, initial=timedelta(milliseconds=50), longest=timedelta(seconds=1))
PERIOD_S = 0.28
"""Effects of a patient run come no faster: `Stage.patient_run` reckons with four a second."""


class Notes:
    """Opens the history when it is first written to."""

    def __init__(self) -> None:
        self._history: History | None = None

    def __call__(self, what: str, /, **facts: Any) -> None:
        """One fact of this worker."""
        if self._history is None:
            self._history = History(Path(os.environ[HISTORY]))
        self._history.note("worker", what, pid=os.getpid(), **facts)


note = Notes()


async def noted(ctx: Context, call: str, work: Awaitable[T]) -> T:
    """Makes a call between two notes."""
    facts = {"run": ctx.run_id, "step": ctx.step_key, "attempt": ctx.attempt_id.hex, "call": call}
    facts["call_id"] = secrets.token_hex(8)
    note("began", **facts)
    try:
        answer = await work
    except BaseException as error:
        note("refused", error=type(error).__name__, **facts)
        raise
    note("accepted", **facts)
    return answer


async def effect(ctx: Context, place: str, slot: str, replay: str, **money: Any) -> ToolResult:
    """One effect at the provider. `money`: what it holds, and whether it waits for it."""
    arguments = {
        "target": place,
        "method": "POST",
        "path": f"/do/{ctx.run_id}/{ctx.step_key}/{slot}",
        "json": {"attempt": ctx.attempt_number},
    }
    return await noted(ctx, slot, ctx.tool("http.request", arguments, slot=slot, replay=replay, **money))


@step(lease_ttl=QUICK, retry=PATIENT)
async def first(run: int) -> int:
    """Computes."""
    return run + 1


@step(tools=["http.request"], checkpoints=True, lease_ttl=QUICK, retry=PATIENT)
async def act(ctx: Context, first: int) -> int:
    """Two effects with a checkpoint after each."""
    found = await ctx.restore()
    done = dict(found.state) if found else {}
    for place, replay in (("plain", "reconcilable"), ("keyed", "idempotent")):
        if place not in done:
            await effect(ctx, place, place, replay)
            done[place] = ctx.attempt_number
            await noted(ctx, f"checkpoint {place}", ctx.checkpoint(done, boundary=place))
    return first + 1


@step(lease_ttl=QUICK, retry=PATIENT)
async def last(act: int) -> int:
    """Ends."""
    return act + 1


flow = workflow("drill", steps=[first, act, last])


@step(tools=["http.request"], lease_ttl=QUICK, retry=PATIENT)
async def go_on(ctx: Context, run: int) -> int:
    """So many effects, one after another, however fast they are: work that should outlast a fault beside it."""
    clock = asyncio.get_running_loop().time
    for number in range(run):
        began = clock()
        answer = await effect(ctx, "plain", f"plain-{number}", "reconcilable")
        if not answer.replayed:
            await asyncio.sleep(max(0.0, PERIOD_S - (clock() - began)))
    return run


patient = workflow("drill-patient", steps=[go_on])


@step(retry=PATIENT)
async def endure(ctx: Context, run: int) -> int:
    """Holds a lease of the default TTL for so many seconds, whatever happens meanwhile."""
    await noted(ctx, "endure", asyncio.sleep(run))
    return run


enduring = workflow("drill-enduring", steps=[endure])


@step(tools=["http.request"], lease_ttl=QUICK, retry=PATIENT)
async def leaf_act(ctx: Context, run: int) -> int:
    """A child's effect."""
    await effect(ctx, "plain", "plain", "reconcilable")
    return run


leaf = workflow("drill-leaf", steps=[leaf_act], input=int, promises=int)
SLICE_MICROS = 1_000


@step(tools=["http.request"], lease_ttl=QUICK, retry=PATIENT)
async def bring_up(ctx: Context, run: int) -> int:
    """So many children, each with a slice; the sum of what they gave."""
    children = [Child("drill-leaf", number, name=f"c{number}", budget_micros=SLICE_MICROS) for number in range(run)]
    joined = await ctx.join(await ctx.spawn_many(children, slot="spawn"), slot="join")
    return sum(int(output) for output in joined.outputs.values())


tree = workflow("drill-tree", steps=[bring_up], input=int, promises=int)


@step(key="bring_up", tools=["http.request"], lease_ttl=QUICK, retry=PATIENT)
async def bring_up_trees(ctx: Context, run: int) -> int:
    """Three children with so many children each."""
    children = [Child("drill-tree", run, name=f"t{number}", budget_micros=10 * SLICE_MICROS) for number in range(3)]
    joined = await ctx.join(await ctx.spawn_many(children, slot="spawn"), slot="join")
    return sum(int(output) for output in joined.outputs.values())


grove = workflow("drill-grove", steps=[bring_up_trees], input=int, promises=int)
ANSWER = 700


@step(lease_ttl=QUICK, retry=PATIENT)
async def wait_for_all(ctx: Context, run: float) -> int:
    """A time, two events, an answer; adds up what it was told."""
    await ctx.sleep(timedelta(seconds=run), slot="timer")
    total = 0
    for slot in ("first", "second"):
        total += int((await ctx.event("news", slot=slot)).value)
    return total + int((await ctx.input("How much?", {"type": "integer"}, slot="question")).value)


waits = workflow("drill-waits", steps=[wait_for_all])


@step(lease_ttl=QUICK, retry=PATIENT)
async def nap(ctx: Context, run: float) -> int:
    """Waits for a time, twice."""
    for slot in ("once", "twice"):
        await ctx.sleep(timedelta(seconds=run), slot=slot)
    return 1


naps = workflow("drill-naps", steps=[nap])


@step(tools=["http.request"], approvals=[ApprovalRule(["http.request"])], lease_ttl=QUICK, retry=PATIENT)
async def act_approved(ctx: Context, run: int) -> int:
    """Two effects, each of which people must allow each time that it is made."""
    await effect(ctx, "plain", "plain", "reconcilable")
    await effect(ctx, "keyed", "keyed", "idempotent")
    return run


approved = workflow("drill-approved", steps=[act_approved])
WORKFLOWS = (flow, patient, enduring, leaf, tree, grove, waits, naps, approved)
