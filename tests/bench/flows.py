"""Workflows of the benchmark: trivial steps, and one that only stays alive."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

from runway_sdk import Child, Context, Step, step, workflow


async def _first(run: int) -> int:
    return run + 1


async def _next() -> int:
    return 1


def _chain(number: int) -> Step:
    """Step `number` of a chain."""
    return step(key=f"s{number}", needs=[f"s{number - 1}"])(_next) if number else step(key="s0")(_first)


one = workflow("bench-one", steps=[_chain(0)])
three = workflow("bench-three", steps=[_chain(number) for number in range(3)])
ten = workflow("bench-ten", steps=[_chain(number) for number in range(10)])
twenty = workflow("bench-twenty", steps=[_chain(number) for number in range(20)])


async def _until(run: int, context: Context) -> int:
    """Waits for a time, milliseconds since the Unix epoch; how late it was woken."""
    await context.sleep_until(datetime.fromtimestamp(run / 1000, UTC))
    return int(time.time() * 1000) - run


async def _stay() -> int:
    """Beats every third of its TTL until it is cancelled."""
    await asyncio.Event().wait()
    return 1


async def _parent(run: int, context: Context) -> dict[str, int]:
    """So many children, joined; how many of them were told."""
    joined = await context.join(await context.spawn_many([Child("bench-one", number) for number in range(run)]))
    return {"succeeded": joined.succeeded, "told": len(joined.children)}


async def _tree(run: list[int], context: Context) -> int:
    """Levels of children by their numbers; those of the last stay at work."""
    many, *below = run
    child = Child("bench-tree", below) if below else Child("bench-held")
    return (await context.join(await context.spawn_many([child] * many))).succeeded


parent = workflow("bench-parent", steps=[step(key="spawn")(_parent)])
tree = workflow("bench-tree", steps=[step(key="spawn")(_tree)])
held = workflow("bench-held", steps=[step(key="stay")(_stay)])
fleet = workflow("bench-fleet", steps=[step(key="stay", lease_ttl=timedelta(seconds=60))(_stay)])
waits = workflow("bench-waits", steps=[step(key="until")(_until)])
hurried = workflow("bench-hurried", steps=[step(key="stay", lease_ttl=timedelta(seconds=6))(_stay)])
