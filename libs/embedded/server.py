"""Authoritative for the life of an embedded server: own its folder, prepare, start, be ready, stop. The same for all of them.

Can go wrong: a free port is taken by somebody else before the server binds it; another is tried, three times in all.
"""

import asyncio
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from libs.embedded.process import (
    Child,
    EmbeddedError,
    FolderLock,
    free_port,
    stop_child,
    stop_child_sync,
    wait_for,
    wait_for_sync,
)

_PORT_TRIES = 3
_STOP_PATIENCE_S = 20.0


class EmbeddedServer(ABC):
    """A server in a folder that belongs to this process. Each verb exists for coroutines and for synchronous code."""

    def __init__(self, name: str, folder: Path, log: str, stop_signal: signal.Signals, port: int, timeout_s: float) -> None:
        self.folder = folder.resolve()
        self.port = port
        self._chosen_port = port
        self._timeout_s = timeout_s
        self._lock = FolderLock(self.folder / "owner.lock")
        self._child = Child(name, self.folder / log, stop_signal)

    @abstractmethod
    def _prepare(self) -> None:
        """What is needed before the process; the folder exists and is ours."""

    @abstractmethod
    def _spawn(self) -> None:
        """Starts the process on `self.port`."""

    @abstractmethod
    def _ready(self) -> bool:
        """Whether the running process takes work."""

    @property
    def running(self) -> bool:
        """Whether the server process has not ended."""
        return self._child.running

    @property
    def pid(self) -> int | None:
        """The server process, while it runs."""
        return self._child.pid

    async def start(self) -> None:
        """Makes the folder if need be, starts the server, returns once it takes work."""
        await asyncio.to_thread(self._own_and_prepare)
        try:
            for _ in self._tries():  # on this thread: the death signal belongs to it
                if await wait_for(self._ready_or_dead, self._timeout_s) and self._settled():
                    return
            self._give_up()
        except BaseException:
            await self.stop()
            raise

    def start_sync(self) -> None:
        """`start` for synchronous code."""
        self._own_and_prepare()
        try:
            for _ in self._tries():
                if wait_for_sync(self._ready_or_dead, self._timeout_s) and self._settled():
                    return
            self._give_up()
        except BaseException:
            self.stop_sync()
            raise

    async def stop(self) -> None:
        """Ends the server; what it confirmed is kept. Harmless when it does not run."""
        await stop_child(self._child, _STOP_PATIENCE_S)
        self._ended()

    def stop_sync(self) -> None:
        """`stop` for synchronous code."""
        stop_child_sync(self._child, _STOP_PATIENCE_S)
        self._ended()

    def kill(self) -> None:
        """A crash, for tests and drills: nothing is shut down. `start` recovers."""
        self._child.kill()
        self._ended()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _own_and_prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock.take()
        try:
            self._prepare()
        except BaseException:
            self._lock.drop()
            raise

    def _ended(self) -> None:
        self._clean_up()
        self._lock.drop()

    def _clean_up(self) -> None:  # noqa: B027  most servers leave nothing outside their folder
        """Removes what the server left outside its folder."""

    def _tries(self) -> Iterator[int]:
        """Spawns the process, on another free port each time."""
        for number in range(1 if self._chosen_port else _PORT_TRIES):
            self.port = self._chosen_port or free_port()
            self._spawn()
            yield number

    def _ready_or_dead(self) -> bool:
        return not self._child.running or self._ready()

    def _settled(self) -> bool:
        """Whether it runs; False when its port was taken, so that another may be tried."""
        if self._child.running:
            return True
        if "address already in use" in self._child.said().lower():
            return False
        raise EmbeddedError(f"{self._child.name} ended while starting; it said:\n{self._child.said()}")

    def _give_up(self) -> None:
        port = f" on port {self._chosen_port}" if self._chosen_port else ""
        raise EmbeddedError(f"{self._child.name} was not ready{port} in {self._timeout_s} s; it said:\n{self._child.said()}")
