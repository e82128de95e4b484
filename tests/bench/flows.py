"""Workflows of the benchmark: trivial steps, and one that only stays alive."""

import asyncio
from datetime import timedelta

from runway_sdk import Step, step, workflow


async def _first(run: int) -> int:
    return run + 1


async def _next() -> int:
    return 1


def _chain(number: int) -> Step:
    """Step `number` of a chain."""
    return step(key=f"s{number}", needs=[f"s{number - 1}"])(_next) if number else step(key="s0")(_first)


one = workflow("bench-one", steps=[_chain(0)])
ten = workflow("bench-ten", steps=[_chain(number) for number in range(10)])


@step(lease_ttl=timedelta(seconds=60))
async def stay() -> int:
    """Beats every 20 s until it is cancelled."""
    await asyncio.Event().wait()
    return 1


fleet = workflow("bench-fleet", steps=[stay])
