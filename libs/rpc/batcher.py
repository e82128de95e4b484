"""Authoritative for how single calls become batches: what arrives while a batch commits forms the next one.

At most two batches of a verb are in flight. A lonely call goes at once: nothing is in flight and the batch before it did not
gather. Under load (the batch before gathered) starts are spaced, so that batches grow instead of multiplying.

With a `key`, items of one key are never in two batches at once: what would only queue for the same lock waits here instead.

Can go wrong: a handler that raises takes its batch with it, and only that; a bad item is an outcome (a Refusal in its place).
A submitter that goes away is not waited for, and never cancels the batch.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextvars import Context
from typing import Any, Generic, Protocol, TypeVar

from libs.kernel.refusal import Reason, Refusal
from libs.telemetry.catalogue import BATCH_ITEMS, BATCH_SECONDS, BATCH_WAITING
from libs.telemetry.logs import get_logger
from libs.telemetry.traces import span, trace_id_for_error, traceparent, tracing

T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S")
C = TypeVar("C", contravariant=True)
log = get_logger(__name__)


class _Outcome(Protocol[C]):
    """Where an item's outcome goes: a future, or a place among those of its call."""

    def cancelled(self) -> bool: ...

    def done(self) -> bool: ...

    def set_result(self, outcome: C) -> None: ...

    def set_exception(self, refusal: Refusal) -> None: ...


class _Together(Generic[S]):
    """The outcomes of a call's items; told when the last of them is there."""

    __slots__ = ("_left", "_outcomes", "told")

    def __init__(self, count: int, told: "asyncio.Future[list[S | Refusal]]") -> None:
        self.told = told
        self._left = count
        self._outcomes: list[Any] = [None] * count

    def put(self, place: int, outcome: S | Refusal) -> None:
        self._outcomes[place] = outcome
        self._left -= 1
        if not self._left and not self.told.done():
            self.told.set_result(self._outcomes)


class _Place(Generic[S]):
    """One item's place."""

    __slots__ = ("_all", "_place")

    def __init__(self, together: _Together[S], place: int) -> None:
        self._all = together
        self._place = place

    def cancelled(self) -> bool:
        return self._all.told.cancelled()

    def done(self) -> bool:
        return self._all.told.done()

    def set_result(self, outcome: S) -> None:
        self._all.put(self._place, outcome)

    def set_exception(self, refusal: Refusal) -> None:
        self._all.put(self._place, refusal)


class Batcher(Generic[T, R]):
    """Gathers calls of one verb. `handle` gets items in the order they came and answers one outcome for each."""

    def __init__(
        self,
        handle: Callable[[list[T]], Awaitable[Sequence[R | Refusal]]],
        *,
        name: str,
        max_batch: int = 500,
        in_flight: int = 2,
        spacing_ms: int = 5,
        max_waiting: int = 20_000,
        key: Callable[[T], Hashable] | None = None,
    ) -> None:
        self._handle = handle
        self._key = key
        self._busy: set[Hashable] = set()
        self._name = name
        self._max_batch = max_batch
        self._limit = in_flight
        self._spacing_s = spacing_ms / 1000
        self._max_waiting = max_waiting
        self._waiting: deque[tuple[T, _Outcome[R], str]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._wake: asyncio.Handle | None = None
        self._started_at = float("-inf")
        self._gathered = False
        self._items = BATCH_ITEMS.labels(name)
        self._seconds = BATCH_SECONDS.labels(name)
        self._depth = BATCH_WAITING.labels(name)

    async def submit(self, item: T) -> R:
        """The outcome of this item; raises its Refusal."""
        if len(self._waiting) >= self._max_waiting:
            raise self._crowded()
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[R] = loop.create_future()
        self._waiting.append((item, outcome, traceparent() if tracing() else ""))
        if self._wake is None or len(self._waiting) == self._max_batch:
            self._schedule(loop)
        return await outcome

    async def submit_many(self, items: Sequence[T]) -> list[R | Refusal]:
        """The outcomes of the items of one call, in their order. The same as `submit` of each, at the cost of one."""
        if not items:
            return []
        loop = asyncio.get_running_loop()
        together: _Together[R] = _Together(len(items), loop.create_future())
        trace = traceparent() if tracing() else ""
        room = max(0, self._max_waiting - len(self._waiting))
        for place, item in enumerate(items[:room]):
            self._waiting.append((item, _Place(together, place), trace))
        for place in range(room, len(items)):
            together.put(place, self._crowded())
        if self._wake is None or len(self._waiting) >= self._max_batch:
            self._schedule(loop)
        return await together.told

    def _crowded(self) -> Refusal:
        return Refusal(
            Reason.QUOTA_EXCEEDED,
            f"{self._max_waiting} calls already wait for {self._name}",
            remedy="repeat the same call later; nothing was decided",
            retry_after_ms=200,
        )

    async def close(self) -> None:
        """Waits until everything submitted has its outcome."""
        while self._running or self._waiting:
            if self._running:
                await asyncio.wait(set(self._running))
            else:
                await asyncio.sleep(0)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        """Decides when the next batch starts; a tick later at the soonest, so that calls of one moment share it."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if not self._waiting or len(self._running) >= self._limit:
            return
        full = len(self._waiting) >= self._max_batch
        hurried = full or (not self._running and not self._gathered)
        start_at = 0.0 if hurried else self._started_at + self._spacing_s
        if start_at <= loop.time():
            self._wake = loop.call_soon(self._start, loop, context=Context())
        else:
            self._wake = loop.call_at(start_at, self._start, loop, context=Context())

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Runs in an empty context: a batch belongs to nobody's call."""
        self._wake = None
        batch = self._take()
        self._depth.set(len(self._waiting))
        if not batch:
            return  # nobody waits, or only items whose key is in a batch under way: its end looks again
        self._started_at = loop.time()
        self._gathered = len(batch) > 1
        keys = {self._key(item) for item, _, _ in batch} if self._key is not None else set()
        self._busy |= keys
        task = loop.create_task(self._run(batch))
        self._running.add(task)
        task.add_done_callback(lambda done: self._ended(done, keys))
        self._schedule(loop)

    def _take(self) -> "list[tuple[T, _Outcome[R], str]]":
        """The next batch; items whose key is busy keep their place."""
        batch: list[tuple[T, _Outcome[R], str]] = []
        held: list[tuple[T, _Outcome[R], str]] = []
        while self._waiting and len(batch) < self._max_batch:
            entry = self._waiting.popleft()
            if entry[1].cancelled():
                continue
            (held if self._key is not None and self._key(entry[0]) in self._busy else batch).append(entry)
        self._waiting.extendleft(reversed(held))
        return batch

    def _ended(self, task: "asyncio.Task[None]", keys: set[Hashable]) -> None:
        self._running.discard(task)
        self._busy -= keys
        loop = task.get_loop()
        if not loop.is_closed():
            self._schedule(loop)

    async def _run(self, batch: "list[tuple[T, _Outcome[R], str]]") -> None:
        """Handles one batch; whatever happens, each of its items gets an outcome."""
        started = time.perf_counter()
        outcomes: Sequence[R | Refusal]
        try:
            with span(f"batch {self._name}", links=[parent for _, _, parent in batch if parent], items=len(batch)):
                outcomes = await self._handle([item for item, _, _ in batch])
                if len(outcomes) != len(batch):
                    raise ValueError(f"{self._name} answered {len(outcomes)} outcomes for {len(batch)} items")
        except Refusal as refusal:
            outcomes = [_copy(refusal) for _ in batch]
        except asyncio.CancelledError:
            outcomes = [_stopped(self._name) for _ in batch]
        except Exception:
            trace = trace_id_for_error()
            log.exception("a batch failed", batcher=self._name, items=len(batch), trace_id=trace)
            outcomes = [internal(trace) for _ in batch]
        self._items.observe(len(batch))
        self._seconds.observe(time.perf_counter() - started)
        for (_, future, _), outcome in zip(batch, outcomes, strict=True):
            if future.done():
                continue
            if isinstance(outcome, Refusal):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


def _copy(refusal: Refusal) -> Refusal:
    """Each item raises an exception of its own: a shared one would gather every traceback."""
    return Refusal(
        refusal.reason,
        refusal.message,
        field=refusal.field,
        remedy=refusal.remedy,
        retry_after_ms=refusal.retry_after_ms,
        detail=refusal.detail,
        violations=refusal.violations,
    )


def internal(trace_id: str) -> Refusal:
    """INTERNAL: what is known stays in the log, under this trace id."""
    return Refusal(
        Reason.INTERNAL,
        f"an unexpected fault, trace {trace_id}",
        remedy="repeat the call with the same ids; give the trace id to whoever operates the installation",
        detail={"trace_id": trace_id},
    )


def _stopped(name: str) -> Refusal:
    return Refusal(
        Reason.AUTHORITY_UNREACHABLE,
        f"{name} was stopped while it worked",
        remedy="what became of the call is unknown; repeat it with the same ids",
        retry_after_ms=500,
        detail={"commit": "unknown"},
    )
