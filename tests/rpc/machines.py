"""How machines of random calls are played: the same ones each time in the tests, others with each seed of `make fuzz`.

Can go wrong: a failure that nobody can repeat. With `RUNWAY_TEST_SEED` and `RUNWAY_TEST_GARBAGE_ROUNDS` as they were printed, it is.
"""

import asyncio
import os

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

ROUNDS = int(os.environ.get("RUNWAY_TEST_GARBAGE_ROUNDS", "14"))
SEED = os.environ.get("RUNWAY_TEST_SEED", "")


async def play(machine: type[RuleBasedStateMachine], examples: int, steps: int, *, shorten: bool = False) -> None:
    """So many lives of so many calls each, in a thread of their own. To shorten a failure takes minutes: it is told as it was met."""
    bounds = settings(
        max_examples=examples,
        stateful_step_count=steps,
        phases=[Phase.generate, Phase.shrink] if shorten else [Phase.generate],
        deadline=None,
        database=None,
        derandomize=not SEED,
        suppress_health_check=list(HealthCheck),
    )
    seeded = seed(int(SEED))(machine) if SEED else machine
    await asyncio.to_thread(run_state_machine_as_test, seeded, settings=bounds)
