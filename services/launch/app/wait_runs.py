"""Who waits for changes of runs, and how they learn of them.

A change committed here pokes its waiters at once; what another replica commits is found by one query for all waited runs
every `poll_ms`. Can go wrong: a poke lost between reading and waiting. A waiter registers before it reads.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from libs.kernel.clock import Clock
from services.launch.domain.run import DECIDED, TERMINAL, Run, RunEventFacts
from services.launch.ports import Reads

Seen = tuple[int, int, int]


class Waiter(Protocol):
    """Who is told that a run changed."""

    def set(self) -> None:
        """It did."""
        ...


class Changes:
    """Which of many runs changed since somebody looked."""

    def __init__(self, run_ids: Iterable[UUID]) -> None:
        self.names = set(run_ids)
        self.some = asyncio.Event()

    def take(self) -> set[UUID]:
        """All of them, once."""
        names, self.names = self.names, set()
        self.some.clear()
        return names


@dataclass(frozen=True, slots=True)
class _OneOf:
    """A run among those of a wait for many."""

    changes: Changes
    run_id: UUID

    def set(self) -> None:
        self.changes.names.add(self.run_id)
        self.changes.some.set()


class Versions(Protocol):
    """Where versions of runs are read."""

    async def versions_of(self, run_ids: Sequence[UUID]) -> dict[UUID, Seen]:
        """(version, sequence, state) of runs that exist."""
        ...


class WaitHub:
    """Waiters by run: those of any change (the log grew), and those of states only. Implements `ports.Hub`."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._log: dict[UUID, set[Waiter]] = {}
        self._state: dict[UUID, set[Waiter]] = {}
        self._seen: dict[UUID, Seen] = {}

    def poke(self, run_ids: Iterable[UUID], *, state: bool = True) -> None:
        """Wakes who waits for these runs; `state` False: only their logs grew."""
        for run_id in run_ids:
            for waiter in self._log.get(run_id, ()):
                waiter.set()
            if state:
                for waiter in self._state.get(run_id, ()):
                    waiter.set()

    @contextmanager
    def watching(self, run_id: UUID, *, state_only: bool = False) -> Iterator[asyncio.Event]:
        """An event that is set whenever the run changes, while the block lasts."""
        waiter = asyncio.Event()
        with self._listed(run_id, waiter, self._state if state_only else self._log):
            yield waiter

    @contextmanager
    def watching_many(self, run_ids: Collection[UUID]) -> Iterator[Changes]:
        """The runs whose state changed, while the block lasts; at first all of them."""
        changes = Changes(run_ids)
        with ExitStack() as stack:
            for run_id in run_ids:
                stack.enter_context(self._listed(run_id, _OneOf(changes, run_id), self._state))
            yield changes

    @contextmanager
    def _listed(self, run_id: UUID, waiter: Waiter, waiting: dict[UUID, set[Waiter]]) -> Iterator[None]:
        waiting.setdefault(run_id, set()).add(waiter)
        try:
            yield
        finally:
            waiters = waiting[run_id]
            waiters.discard(waiter)
            if not waiters:
                del waiting[run_id]
            if run_id not in self._log and run_id not in self._state:
                self._seen.pop(run_id, None)

    async def poll(self) -> None:
        """Finds what others changed."""
        waited = self._log.keys() | self._state.keys()
        if not waited:
            return
        now = await self._versions.versions_of(list(waited))
        before, self._seen = self._seen, {run_id: seen for run_id, seen in now.items() if run_id in waited}
        self.poke(waited - now.keys())  # forgotten after its retention: who waits reads, and is told so
        self.poke([run_id for run_id, seen in now.items() if run_id not in before or before[run_id][2] != seen[2]])
        self.poke([run_id for run_id, seen in now.items() if before.get(run_id) != seen], state=False)


async def wait_run(
    hub: WaitHub, read: Callable[[], Awaitable[Run]], run_id: UUID, *, settled: bool, timeout_ms: int, clock: Clock
) -> tuple[Run, bool]:
    """The run when its outcome is decided (or it is terminal), or when the time has passed; and whether that came."""
    wanted = TERMINAL if settled else DECIDED
    end = clock.monotonic_ms() + timeout_ms
    with hub.watching(run_id, state_only=True) as changed:
        while True:
            run = await read()
            left = end - clock.monotonic_ms()
            if run.head.state in wanted or left <= 0:
                return run, run.head.state in wanted
            try:
                await asyncio.wait_for(changed.wait(), left / 1000)
                changed.clear()
            except TimeoutError:
                continue


async def wait_runs(
    hub: WaitHub,
    read: Callable[[Collection[UUID]], Awaitable[Mapping[UUID, Run]]],
    run_ids: Collection[UUID],
    *,
    settled: bool,
    timeout_ms: int,
    clock: Clock,
) -> AsyncIterator[dict[UUID, Run | None]]:
    """Runs whose outcome is decided (or that are terminal), each once, those of a moment together; None: it is not there.

    Ends when each was told, or the time has passed.
    """
    wanted = TERMINAL if settled else DECIDED
    end = clock.monotonic_ms() + timeout_ms
    left = set(run_ids)
    with hub.watching_many(left) as changes:
        while left:
            asked = changes.take() & left
            found = await read(asked) if asked else {}
            there = {run_id: found.get(run_id) for run_id in asked}
            told = {run_id: run for run_id, run in there.items() if run is None or run.head.state in wanted}
            left -= told.keys()
            if told:
                yield told
            wait_ms = end - clock.monotonic_ms()
            if not left or wait_ms <= 0:
                return
            try:
                await asyncio.wait_for(changes.some.wait(), wait_ms / 1000)
            except TimeoutError:
                return


async def watch_run(
    hub: WaitHub, reads: Reads, read: Callable[[], Awaitable[Run]], run_id: UUID, after: int, page: int = 500
) -> AsyncIterator[RunEventFacts | Run]:
    """Log entries after a sequence as they come, then the run itself once it is terminal.

    Where the first entries asked for were trimmed, the run as it is comes first, and its newest sequence is the new cursor.
    """
    cursor = after
    with hub.watching(run_id) as changed:
        while True:
            run = await read()
            entries = await reads.events(run_id, cursor, page)
            if entries and entries[0].sequence != cursor + 1:
                yield run
                cursor = run.sequence
                continue
            for entry in entries:
                yield entry
                cursor = entry.sequence
            if entries:
                continue
            if run.head.state in TERMINAL and cursor >= run.sequence:
                yield run
                return
            await changed.wait()
            changed.clear()
