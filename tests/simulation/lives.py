"""Authoritative for workflows whose runs have children, wait, or spread: what they do, and what a run that succeeds must answer.

Children write effects of their own, paid from slices; waits add up what they were told, so that an event that counted twice, or
not at all, is in the answer; instances, and the step behind a decided join, write effects whose order the provider's log tells.
"""

import asyncio
from datetime import timedelta
from typing import Any

from runway_sdk import ALL, ANY, FAIL_FAST, Child, Context, Edge, StepFailed, k_of_n, quorum, step, workflow

from tests.simulation.flows import PATIENT, TTL, Plan, chain, effects, fan, reviewed

JOINS = {"all": ALL, "fail_fast": FAIL_FAST, "any": ANY, "two": k_of_n(2), "quorum": quorum(2)}
ANSWER = 700
"""What people answer."""
MOST_ITEMS = 20
began: dict[tuple[str, str], float] = {}
"""(run, slot) → when a step first asked for a timer, in virtual time."""
passed: dict[tuple[str, str], float] = {}
"""The same, when one first came past it."""


@step(tools=["http.request"], retry=PATIENT, lease_ttl=TTL)
async def bring_up(ctx: Context, run: Plan) -> int:
    """Children, joined, then effects of its own."""
    kind = "family" if run.grand else "leaf"
    asked = [Child(kind, _below(run, place), name=f"c{place}", budget_micros=run.slice_micros) for place in range(run.children)]
    spawned = await ctx.spawn_many(asked, slot="spawn")
    joined = await ctx.join(spawned, policy=JOINS[run.join], slot="join")
    await effects(ctx, run)
    return joined.succeeded


def _below(run: Plan, place: int) -> Plan:
    """What a child does."""
    failing = 1 if place < run.losers else 0
    if run.grand:
        return run.model_copy(update={"children": run.grand, "grand": 0, "join": "all", "losers": 0, "slice_micros": 0})
    calls = run.calls[place % 2 :]
    return Plan(calls=calls, naps_s=run.naps_s, losers=failing, hold_micros=run.hold_micros if run.slice_micros else 0)


family = workflow("family", steps=[bring_up], input=Plan, promises=int)


@step(tools=["http.request"], retry=PATIENT, lease_ttl=TTL)
async def toil(ctx: Context, run: Plan) -> int:
    """A child's effects."""
    await asyncio.sleep(run.naps_s)
    done = await effects(ctx, run)
    if run.losers:
        raise StepFailed("it cannot be done", "policy")
    return done


leaf = workflow("leaf", steps=[toil], input=Plan, promises=int)


@step(retry=PATIENT, lease_ttl=TTL)
async def listen(ctx: Context, run: Plan) -> int:
    """Waits, one after another, and adds up what it was told."""
    total = 0
    for number, kind in enumerate(run.waits):
        slot = f"{kind}-{number}"
        if kind == "timer":
            now = asyncio.get_running_loop().time
            began.setdefault((ctx.run_id, slot), now())
            await ctx.sleep(timedelta(seconds=run.wait_s), slot=slot)
            passed.setdefault((ctx.run_id, slot), now())
        elif kind == "event":
            total += int((await ctx.event("news", correlation=run.topic, slot=slot)).value)
        else:
            total += int((await ctx.input(f"{run.topic}: {slot}?", {"type": "integer"}, slot=slot)).value)
    return total


waiter = workflow("waiter", steps=[listen], input=Plan)


@step(retry=PATIENT, lease_ttl=TTL)
async def count(run: Plan) -> list[int]:
    """What there is to do."""
    return list(range(run.items))


@step(for_each="steps.count", needs=["count"], max_instances=MOST_ITEMS, tools=["http.request"], retry=PATIENT, lease_ttl=TTL)
async def piece(ctx: Context, run: Plan, item: int) -> int:
    """An instance: an effect, or a failure for good."""
    await asyncio.sleep(run.naps_s * (item % 3))
    if item < run.losers:
        raise StepFailed("this one cannot be done", "policy")
    await effects(ctx, run)
    return item


@step(expands="page", max_instances=MOST_ITEMS, retry=PATIENT, lease_ttl=TTL)
async def split(ctx: Context, run: Plan, count: list[int]) -> None:
    """Asks for instances, each attempt for others: what was asked first stands."""
    await ctx.expand("pages", [ctx.attempt_id.hex] * len(count))
    await asyncio.sleep(run.naps_s)
    if ctx.attempt_number <= run.fails:
        raise StepFailed("not yet", "transient")


@step(needs=["split"], retry=PATIENT, lease_ttl=TTL)
async def page(item: str) -> str:
    """An instance of those."""
    return item


@step(join="best_effort", retry=PATIENT, lease_ttl=TTL)
async def collect(piece: list[int | None], page: list[str | None]) -> int:
    """How many gave something."""
    if len(set(page)) > 1:
        raise StepFailed("instances of two attempts", "policy")
    return sum(one is not None for one in piece) + len(page)


@step(when="run.losers > 0", needs=["count"], retry=PATIENT, lease_ttl=TTL)
async def aside(run: Plan) -> int:
    """Skipped, where there is nothing to tell."""
    return run.losers


@step(needs={"aside": Edge("always")}, retry=PATIENT, lease_ttl=TTL)
async def end(collect: int) -> int:
    """The answer."""
    return collect


wide = workflow("wide", steps=[count, piece, split, page, collect, aside, end], output=end, input=Plan)


@step(retry=PATIENT, lease_ttl=TTL)
async def off(run: Plan) -> int:
    """The start of a race."""
    return run.fails


@step(tools=["http.request"], retry=PATIENT, lease_ttl=TTL)
async def quick(ctx: Context, run: Plan, off: int) -> int:
    """One of three."""
    return await effects(ctx, run.model_copy(update={"calls": run.calls[:1]}))


@step(tools=["http.request"], retry=PATIENT, lease_ttl=TTL)
async def slow(ctx: Context, run: Plan, off: int) -> int:
    """One of three."""
    return await effects(ctx, run)


@step(tools=["http.request"], retry=PATIENT, lease_ttl=TTL)
async def slower(ctx: Context, run: Plan, off: int) -> int:
    """One of three."""
    return await effects(ctx, run.model_copy(update={"calls": run.calls * 2}))


@step(join="any", tools=["http.request"], retry=PATIENT, lease_ttl=TTL)
async def winner(ctx: Context, run: Plan, quick: int | None = None, slow: int | None = None, slower: int | None = None) -> int:
    """Behind the first of them: what it does comes after whatever the others did."""
    await effects(ctx, run)
    return int(any(one is not None for one in (quick, slow, slower)))


race = workflow("race", steps=[off, quick, slow, slower, winner], output=winner, input=Plan)
RACERS = ("quick", "slow", "slower")
WORKFLOWS = (chain, fan, reviewed, family, leaf, waiter, wide, race)


def telling(plan: Plan) -> list[int]:
    """What the events of a waiting run say, one each."""
    return [10**place for place in range(plan.waits.count("event"))]


def expected(name: str, plan: Plan) -> set[Any]:
    """What a run that succeeds may answer."""
    calls = len(plan.calls)
    answers = {
        "chain": 1 + calls + plan.boundaries,
        "fan": 3 + 2 * calls,
        "reviewed": 1 + calls,
        "waiter": sum(telling(plan)) + ANSWER * plan.waits.count("input"),
        "race": 1,
    }
    if name == "family":
        least = {"any": 1, "two": 2, "quorum": 2}.get(plan.join, plan.children)
        return set(range(least, plan.children - plan.losers + 1))
    if name == "wide":  # a piece may fail for the provider's reasons
        return set(range(plan.items, 2 * plan.items - plan.losers + 1))
    return {answers.get(name, calls)}
