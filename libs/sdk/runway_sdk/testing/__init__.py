"""Tests of workflows against the real thing: a whole installation that starts once, and processes that die on request.

    card = await crash_matrix("my_flows:flow", {"order": "{run}"})   # something killed at each boundary in turn
    card.check()

or by hand:

    async with Stack.start(folder) as stack:
        async with stack.worker("my_flows:flow"):
            stack.arm("after_call")          # the gateway dies when the provider has answered, before the receipt
            run = await stack.client.launch("flow", {...})

Boundaries are in `CATALOGUE`, with what dies there; BOUNDARIES are the five around one effect.
"""

from runway_sdk.testing.boundaries import BOUNDARIES, CATALOGUE, Boundary
from runway_sdk.testing.crash import CrashError, crash_matrix, crash_test
from runway_sdk.testing.scorecard import Scorecard
from runway_sdk.testing.stack import Stack, StackError, WorkerProcess

__all__ = [
    "BOUNDARIES",
    "CATALOGUE",
    "Boundary",
    "CrashError",
    "Scorecard",
    "Stack",
    "StackError",
    "WorkerProcess",
    "crash_matrix",
    "crash_test",
]
