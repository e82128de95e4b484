"""Waiting for a condition, for a bounded time: the only way a test waits for something it is not told about."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05


@overload
async def wait_until(predicate: Callable[[], Awaitable[T]], timeout_s: float = 15.0, *, what: str = "") -> T: ...
@overload
async def wait_until(predicate: Callable[[], T], timeout_s: float = 15.0, *, what: str = "") -> T: ...


async def wait_until(predicate: Callable[[], Any], timeout_s: float = 15.0, *, what: str = "") -> Any:
    """The first true answer of `predicate` (plain or async), or an AssertionError when time is up."""
    end, pause_s = time.monotonic() + timeout_s, _FIRST_PAUSE_S
    while True:
        answer = predicate()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"{what or inspect.getsource(predicate).strip()} did not come true in {timeout_s} s")
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
