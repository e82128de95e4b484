"""Authoritative for workflows whose steps ask people: for leave, for a number, and to let a call through; by themselves, or as children,
whose questions stand under the root of their tree.

A step asks one thing after another, each once, and adds up what it was told, so that an answer that counted twice, or not at all, is in
its answer. Can go wrong: an attempt that is told something else than the one before it. What each was told is kept, and compared.
"""

from datetime import timedelta
from itertools import product
from typing import Any
from urllib.parse import quote

from runway_sdk import ALL, ANY, BEST_EFFORT, ApprovalRule, Child, Context, step, workflow

from tests.simulation.bounds import ALL_WORKFLOWS
from tests.simulation.bounds import expected as expected_of_bounds
from tests.simulation.bounds import may as may_of_bounds
from tests.simulation.flows import PATIENT, REPLAY, TTL, Plan
from tests.simulation.lives import ANSWER

LEAVE, SILENCE = 10_000, 50
"""What a leave counts, and a question that nobody answered in time."""
ASKS_ANYBODY = ("plead",)
"""Steps whose questions two people answer at once, each in their own way."""
JOINS = {"all": ALL, "any": ANY, "effort": BEST_EFFORT}
heard: dict[tuple[str, str], set[int]] = {}
"""(run, slot) → what the attempts that came past a question were told."""
tried: dict[tuple[str, str], list[Any]] = {}
"""The same → attempts that came to a call."""
RULE = ApprovalRule(["http.request"], need=2, expires_in=timedelta(seconds=25))


@step(tools=["http.request"], approvals=[RULE], retry=PATIENT, lease_ttl=TTL)
async def plead(ctx: Context, run: Plan) -> int:
    """Asks people, one thing after another."""
    total = 0
    for number, kind in enumerate(run.waits):
        slot = f"{kind}-{number}"
        if kind == "call":
            total += await _call(ctx, run, slot)
            continue
        if kind == "leave":
            await ctx.approval(slot, f"May it do number {number}?", {"number": number}, need=run.need, expires_s=2 * run.wait_s)
            told = LEAVE
        else:
            timeout = timedelta(seconds=run.wait_s) if kind == "brief" else None
            said = await ctx.input(f"{slot}?", {"type": "integer"}, timeout=timeout, slot=slot)
            told = SILENCE if said.timed_out else int(said.value)
        heard.setdefault((ctx.run_id, slot), set()).add(told)
        total += told
    return total


async def _call(ctx: Context, run: Plan, slot: str) -> int:
    """A call that people must allow; where the plan says so, every later attempt makes another one than the first."""
    target = run.calls[0]
    path = quote(f"/{target}/{ctx.run_id}/{ctx.step_key}/{slot}")
    arguments: dict[str, Any] = {"target": target, "method": "POST", "path": path}
    if run.changes:
        attempts = tried.setdefault((ctx.run_id, slot), [])
        if ctx.attempt_id not in attempts:
            attempts.append(ctx.attempt_id)
        arguments["query"] = {"try": str(min(attempts.index(ctx.attempt_id), 1))}
    await ctx.tool("http.request", arguments, slot=slot, replay=REPLAY[target], timeout_s=60)
    return 1


petition = workflow("petition", steps=[plead], input=Plan, promises=int)


@step(tools=["http.request"], retry=PATIENT, lease_ttl=TTL)
async def convene(ctx: Context, run: Plan) -> int:
    """Children that ask people, who find it all under this run."""
    asked = [Child("petition", run, name=f"p{place}") for place in range(run.children)]
    spawned = await ctx.spawn_many(asked, slot="spawn")
    return (await ctx.join(spawned, policy=JOINS[run.join], slot="join")).succeeded


assembly = workflow("assembly", steps=[convene], input=Plan)
WORKFLOWS = (*ALL_WORKFLOWS, petition, assembly)
STEPS = {one.name: tuple(one.steps) for one in WORKFLOWS}


def steps_of(name: str) -> tuple[str, ...]:
    """The steps of a workflow, by key."""
    return STEPS[name]


def may(name: str) -> tuple[str, ...]:
    """What can be taken from runs of this workflow."""
    return may_of_bounds(name)


def expected(name: str, plan: Plan) -> set[Any]:
    """What a run that succeeds may answer."""
    if name == "petition":
        said = {"leave": (LEAVE,), "call": (1,), "input": (ANSWER, ANSWER + 1), "brief": (ANSWER, ANSWER + 1, SILENCE)}
        return {sum(one) for one in product(*(said[kind] for kind in plan.waits))}
    if name == "assembly":
        return set(range({"all": plan.children, "any": 1}.get(plan.join, 0), plan.children + 1))
    return expected_of_bounds(name, plan)
