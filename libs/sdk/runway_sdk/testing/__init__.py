"""Tests of workflows against the real thing: a whole installation that starts once, and processes that die on request.

    async with Stack.start(folder) as stack:
        async with stack.worker("my_flows:flow"):
            stack.arm("after_call")          # the gateway dies when the provider has answered, before the receipt
            run = await stack.client.launch("flow", {...})

Boundaries: before_intent, after_intent, after_call, after_receipt (the gateway dies there) and before_completion (the worker).
"""

from runway_sdk.testing.stack import BOUNDARIES, Stack, StackError, WorkerProcess

__all__ = ["BOUNDARIES", "Stack", "StackError", "WorkerProcess"]
