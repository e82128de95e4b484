"""An event loop whose time is virtual, and which knows which simulated process each piece of work belongs to.

Time stands still while anything is ready to run or PostgreSQL owes an answer, and then jumps to the next timer. A paused
process gets no turn until it is resumed, and then finds everything that fell due meanwhile; a killed one never gets another
turn, not even to clean up.

Can go wrong: order that depends on addresses (sets of tasks). Tasks and futures hash by number here.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, Protocol

RUNNING, PAUSED, DEAD = "running", "paused", "dead"


class Runaway(Exception):
    """So many turns that somebody must be going round in a circle."""


class Stalled(Exception):
    """Nothing is ready, nothing is due, nothing is owed: the simulation would wait for ever."""


class Process:
    """A simulated operating-system process. A restarted one is a new one."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.state = RUNNING
        self.frozen: list[asyncio.Handle] = []
        self.graveyard: list[object] = []
        """What a killed process leaves behind: kept, or collecting it would run its `finally` blocks."""

    def __repr__(self) -> str:
        return f"{self.name}#{self.number}"


class Backlog(Protocol):
    """Who owes real answers: the gate to PostgreSQL."""

    def owes(self) -> bool:
        """Whether an answer is under way, so that time must not move."""
        ...

    def look(self) -> None:
        """Nothing came for a moment: find out whether it is a lock that is waited for."""
        ...

    def advance(self) -> bool:
        """Starts or hands over what is next; False when there is nothing."""
        ...


class _Handle(asyncio.Handle):
    __slots__ = ("owner",)
    owner: Process | None


class _Timer(asyncio.TimerHandle):
    """Of one moment, the older first: not as the heap happens to lie."""

    __slots__ = ("number", "owner")
    owner: Process | None
    number: int

    def __lt__(self, other: Any) -> bool:
        return bool((self._when, self.number) < (other._when, other.number))  # type: ignore[attr-defined]


class Task(asyncio.Task):  # type: ignore[type-arg]
    """A task of one process."""

    def __new__(cls, *_: Any, loop: "VirtualLoop", **__: Any) -> "Task":
        self: Task = super().__new__(cls)
        self.owner = loop.current
        self.number = loop.next_number()
        return self

    owner: Process | None
    number: int

    def __hash__(self) -> int:
        return self.number


class Future(asyncio.Future):  # type: ignore[type-arg]
    """A future of one process."""

    def __new__(cls, *_: Any, loop: "VirtualLoop", **__: Any) -> "Future":
        self: Future = super().__new__(cls)
        self.owner = loop.current
        self.number = loop.next_number()
        return self

    owner: Process | None
    number: int

    def __hash__(self) -> int:
        return self.number


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module."""

    MOST_TURNS = 3_000_000
    PATIENCE_S = 0.004
    """Real time without an answer before somebody looks for a lock that is waited for."""

    def __init__(self, start_s: float = 1_000.0) -> None:
        self._now_s = start_s
        self.current: Process | None = None
        self.backlog: Backlog | None = None
        self._numbers = itertools.count(1)
        self._world_numbers = itertools.count(1)
        self._timers = itertools.count(1)
        self.turns = 0
        super().__init__()
        self.set_task_factory(self._make_task)

    # -- what the product calls

    def time(self) -> float:
        """Virtual seconds."""
        return self._now_s

    def create_future(self) -> "Future":
        """A future that belongs to whoever makes it."""
        return Future(loop=self)

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        """Queues a turn of the process that the callback belongs to."""
        handle = _Handle(callback, args, self, context)
        handle.owner = self._owner_of(callback, args)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """A timer in virtual time."""
        return self.call_at(self._now_s + max(0.0, delay), callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """A timer in virtual time."""
        timer = _Timer(when, callback, args, self, context)
        timer.owner, timer.number = self._owner_of(callback, args), next(self._timers)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Threads have an order of their own, so there are none."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def next_number(self) -> int:
        """Of a task or future. The world counts for itself: how often it looks at the server depends on real time."""
        return next(self._world_numbers if self.current is None else self._numbers)

    # -- what the simulation calls

    @contextmanager
    def acting_as(self, process: Process | None) -> Iterator[None]:
        """What is made inside belongs to this process."""
        before, self.current = self.current, process
        try:
            yield
        finally:
            self.current = before

    def spawn(self, process: Process | None, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task of a process, in an empty context."""
        with self.acting_as(process):
            return self.create_task(work, context=Context())

    def later(self, delay_s: float, action: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        """A timer that belongs to the world, whoever asks for it."""
        with self.acting_as(None):
            return self.call_later(delay_s, action, *args, context=Context())

    def pause(self, process: Process) -> None:
        """SIGSTOP."""
        if process.state == RUNNING:
            process.state = PAUSED

    def resume(self, process: Process) -> None:
        """SIGCONT: what fell due runs now, in its order."""
        if process.state == PAUSED:
            process.state = RUNNING
            thawed, process.frozen = process.frozen, []
            self._ready.extend(thawed)  # type: ignore[attr-defined]

    def kill(self, process: Process) -> None:
        """SIGKILL."""
        process.state = DEAD
        process.graveyard += process.frozen
        process.graveyard += [task for task in asyncio.all_tasks(self) if getattr(task, "owner", None) is process]
        process.frozen = []

    # -- inside

    def _make_task(self, loop: Any, coro: Any, context: Context | None = None) -> Task:
        return Task(coro, loop=self) if context is None else Task(coro, loop=self, context=context)

    def _owner_of(self, callback: Any, args: tuple[Any, ...]) -> Process | None:
        bound = getattr(callback, "__self__", None)
        if isinstance(bound, Task):
            return bound.owner
        if args and isinstance(args[0], Task | Future):
            return args[0].owner
        return self.current

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """Cancelled timers are dropped when they fall due."""

    def _run_once(self) -> None:
        ready = self._ready  # type: ignore[attr-defined]
        if not ready:
            self._idle()
            return
        if self.turns > self.MOST_TURNS:
            raise Runaway(f"{self.turns} turns")
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            owner: Process | None = getattr(handle, "owner", None)
            if owner is not None and owner.state != RUNNING:
                (owner.frozen if owner.state == PAUSED else owner.graveyard).append(handle)
                continue
            self.current = owner
            self.turns += 1
            handle._run()
        self.current = None

    def _idle(self) -> None:
        """Nothing is ready: real answers first, then the gate's next turn, then the next timer."""
        backlog = self.backlog
        if backlog is not None and backlog.owes():
            if not self._poll(self.PATIENCE_S):
                backlog.look()
            return
        if self._poll(0) or (backlog is not None and backlog.advance()):
            return
        heap = self._scheduled  # type: ignore[attr-defined]
        while heap and heap[0]._cancelled:
            heapq.heappop(heap)._scheduled = False
        if not heap:
            raise Stalled("nothing is ready and nothing is due")
        self._now_s = max(self._now_s, heap[0]._when)
        while heap and heap[0]._when <= self._now_s:
            timer = heapq.heappop(heap)
            timer._scheduled = False
            if not timer._cancelled:
                self._ready.append(timer)  # type: ignore[attr-defined]

    def _poll(self, timeout_s: float) -> bool:
        """Real input and output, whoever it is for: it only fills buffers and futures."""
        events = self._selector.select(timeout_s)  # type: ignore[attr-defined]
        self._process_events(events)  # type: ignore[attr-defined]
        return bool(events)
