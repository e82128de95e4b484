"""Calls of the same moment in one RPC: what arrives while two are under way forms the next.

Authoritative for nothing. Can go wrong: one item spoils the call for its neighbours (it cannot be parsed, or all together are
too large). A call that was refused as a whole is made again in halves, until the item that is to blame stands alone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from runway_sdk.errors import RunwayError, Unavailable

CALLS = 2


class Sized(Protocol):
    """A message."""

    def ByteSize(self) -> int:
        """Its size on the wire."""
        ...


Q = TypeVar("Q", bound=Sized)
A = TypeVar("A")


class Gather(Generic[Q, A]):
    """Sends items in batches of at most `most` and `most_bytes`; a larger item goes alone."""

    def __init__(
        self, send: Callable[[Sequence[Q]], Awaitable[Sequence[A]]], *, most: int, most_bytes: int = 4 * 1024 * 1024
    ) -> None:
        self._send = send
        self._most = most
        self._most_bytes = most_bytes
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._calls: set[asyncio.Task[None]] = set()

    async def submit(self, item: Q) -> A:
        """The item's answer; raises what its call was refused with."""
        outcome: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, outcome))
        if len(self._calls) < CALLS:
            call = asyncio.create_task(self._work())
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        return await outcome

    async def _work(self) -> None:
        await asyncio.sleep(0)
        while self._waiting:
            await self._ask(self._take())

    def _take(self) -> list[tuple[Q, "asyncio.Future[A]"]]:
        size = count = 0
        for item, _ in self._waiting[: self._most]:
            size += item.ByteSize()
            if count and size > self._most_bytes:
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    async def _ask(self, batch: list[tuple[Q, "asyncio.Future[A]"]]) -> None:
        try:
            answers = await self._send([item for item, _ in batch])
            if len(answers) != len(batch):
                raise RunwayError(f"{len(batch)} items got {len(answers)} answers", reason="INTERNAL")
        except RunwayError as refused:
            if len(batch) > 1 and not isinstance(refused, Unavailable):
                middle = len(batch) // 2
                await self._ask(batch[:middle])
                await self._ask(batch[middle:])
                return
            self._fail(batch, refused)
        except BaseException as error:  # nobody is left waiting, whatever became of the call
            ended = RunwayError(f"the call ended: {type(error).__name__}", reason="INTERNAL")
            self._fail(batch, error if isinstance(error, Exception) else ended)
            if not isinstance(error, Exception):
                raise
        else:
            for (_, outcome), answer in zip(batch, answers, strict=True):
                if not outcome.done():
                    outcome.set_result(answer)

    @staticmethod
    def _fail(batch: list[tuple[Q, "asyncio.Future[A]"]], error: Exception) -> None:
        for _, outcome in batch:
            if not outcome.done():
                outcome.set_exception(error)
