"""Traps: how a directed day holds one thing (a statement, a message, a request) while another happens.

A trap catches the first thing that fits, keeps it until the day lets go, and lets everything else pass. Can go wrong: a day whose trap
never catches anything proves nothing. `caught` has a limit, and the day then says that it did not happen.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from tests.simulation.history import History
from tests.simulation.loop import VirtualLoop

T = TypeVar("T")
LIMIT_S = 60.0


class DidNotHappen(AssertionError):
    """A directed day could not be brought about."""


class Trap(Generic[T]):
    """Waits for one thing."""

    def __init__(self, loop: VirtualLoop, history: History, what: str, fits: Callable[[T], bool]) -> None:
        self._loop = loop
        self._history = history
        self._what = what
        self._go: Callable[[], None] | None = None
        self._let_go = False
        self.fits = fits
        with loop.acting_as(None):
            self._found: asyncio.Future[T] = loop.create_future()

    @property
    def full(self) -> bool:
        """Whether it waits for nothing any more."""
        return self._found.done() or self._let_go

    def catch(self, thing: T, go: Callable[[], None]) -> None:
        """Keeps a thing; `go` sends it on."""
        self._history.note("trap", f"{self._what} is held")
        self._go = go
        self._found.set_result(thing)

    async def caught(self) -> T:
        """What was caught."""
        done, _ = await asyncio.wait([self._found], timeout=LIMIT_S)
        if not done:
            raise DidNotHappen(f"{self._what}: never")
        return self._found.result()

    def release(self) -> None:
        """Lets go."""
        if not self._let_go:
            self._let_go = True
            if self._go is not None:
                self._history.note("trap", f"{self._what} goes on")
                self._loop.later(0, self._go)


class Traps(Generic[T]):
    """The traps at one place."""

    def __init__(self, loop: VirtualLoop, history: History) -> None:
        self._loop = loop
        self._history = history
        self._set: list[Trap[T]] = []

    def set(self, what: str, fits: Callable[[T], bool]) -> Trap[T]:
        """A new one."""
        made = Trap(self._loop, self._history, what, fits)
        self._set.append(made)
        return made

    def find(self, thing: T) -> Trap[T] | None:
        """The trap that catches this."""
        return next((trap for trap in self._set if not trap.full and trap.fits(thing)), None)

    async def pass_by(self, thing: T) -> None:
        """Goes on at once, or when the trap that caught it lets go."""
        trap = self.find(thing) if self._set else None
        if trap is not None:
            free: asyncio.Future[None] = self._loop.create_future()
            trap.catch(thing, lambda: _free(free))
            await free

    def clear(self) -> None:
        """No traps any more; what they hold goes on."""
        for trap in self._set:
            trap.release()
        self._set.clear()


def _free(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)
