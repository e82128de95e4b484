"""The way to PostgreSQL: every statement asks for its turn, and the seed decides when it has it.

One statement runs at a time; one that waits for a lock is set aside (the server says so: `pg_blocking_pids`) and the others go
on, until the lock is free. Each statement takes virtual time before and after it. Limits of time (statement, idle transaction)
are the simulation's, in virtual time; those of the server are off, and so is its search for deadlocks: a circle is found here.

Faults: a connection that is lost before its commit, or after it; a database that takes no connections.
Can go wrong: a statement taken for blocked that is only slow. The server is asked, never the clock.
"""

import asyncio
import os
import random
import signal
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import asyncpg.pool

from libs.pg import Queries
from tests.simulation.history import History
from tests.simulation.loop import Process, Task, VirtualLoop
from tests.simulation.operation import Asked, Operation, statement_names
from tests.simulation.traps import Traps

if TYPE_CHECKING:
    from tests.simulation.pool import SimConnection

SQL = Queries.load(Path(__file__).parent / "sql" / "server.sql")
STATEMENT_LIMIT_S = 5.0
IDLE_LIMIT_S = 1.0
NEVER = 1e9
_UNDONE = "undone"


class Gate:
    """Turns at PostgreSQL."""

    def __init__(self, loop: VirtualLoop, chance: random.Random, history: History) -> None:
        self._loop = loop
        self._chance = chance
        self._history = history
        self._names = statement_names()
        self._queue: deque[Operation] = deque()
        self._running: list[Operation] = []
        self._blocked: list[Operation] = []
        self._finished: list[Operation] = []
        self._made = 0
        self._dirty = False
        self._looking: asyncio.Task[None] | None = None
        self._observer: asyncpg.Connection | None = None
        self._observing = asyncio.Lock()
        self.connections: list[SimConnection] = []
        self.lost_commits = 0.0
        self.slow = 0.0
        self.refusing: set[str] = set()
        """Databases (by pool name) that take no connections now."""
        self.traps: Traps[Asked] = Traps(loop, history)
        """Statements that a directed day waits for."""
        self.waits = 0
        self.deadlocks = 0
        self.cut = 0

    async def open(self, admin_url: str, script: str) -> None:
        """Connects the observer, which runs a script."""

        async def work() -> None:
            self._observer = await asyncpg.connect(admin_url, timeout=NEVER)
            await self._observer.execute(script)

        await self._turn("the world opens", None, work, quiet=True)

    # -- for connections

    def inside(self) -> bool:
        """Whether the world itself is asking: what it does is part of an operation that has its turn."""
        task = asyncio.current_task()
        return not isinstance(task, Task) or task.owner is None

    async def statement(
        self, connection: "SimConnection", query: str, work: Callable[[], Awaitable[Any]], args: tuple[Any, ...] = ()
    ) -> Any:
        """One statement of a process, in its turn, with the faults of the seed."""
        label = self._names.get(query) or query.split(";")[0].split("(")[0][:40]
        decides = label == "COMMIT" or (not connection.is_in_transaction() and not query.startswith("BEGIN"))
        fate = ""
        if self.lost_commits and decides and self._chance.random() < self.lost_commits:
            fate = self._chance.choice(("before", "after"))
        await asyncio.sleep(self._delay())
        if fate == "before":
            return self._lose(connection, label, "before")
        before, connection.last = connection.last, label
        await self.traps.pass_by(Asked(connection.owner, label, before, args))
        answer = await self._turn(f"{connection.owner} {label}", connection, work)
        if fate == "after":
            return self._lose(connection, label, "after")
        return answer

    async def connect(self, db: Any, original: Callable[[Any], Awaitable[Any]]) -> Any:
        """Opens a connection of a pool."""
        owner = self._loop.current
        name = db.name
        made: Any = None
        await asyncio.sleep(self._delay())
        if name.partition("-")[0] in self.refusing:
            raise ConnectionRefusedError(f"{name} takes no connections")

        async def work() -> None:
            nonlocal made
            made = await original(db)
            made.owner, made.pid = owner, made.get_server_pid()
            self.connections.append(made)

        await self._turn(f"{owner} connect {name}", None, work)
        if made.is_closed():  # before its owner got it: the driver cannot meet that, since it gets it at once
            raise ConnectionResetError("cut as it was opened")
        return made

    def forget(self, connection: "SimConnection") -> None:
        """A connection was cut: the server lets go of what it held before anything else happens."""
        if connection in self.connections:
            self.connections.remove(connection)
            pid = connection.pid
            self._enqueue(f"end {connection.owner}", lambda: self._end(pid), first=True)

    # -- for the world

    def crash(self, process: Process) -> None:
        """Every connection of a killed process is gone, and what it was still going to ask."""
        self._queue = deque(op for op in self._queue if op.connection is None or op.connection.owner is not process)
        for connection in [one for one in self.connections if one.owner is process]:
            connection.terminate()

    def cut_all(self, name: str) -> None:
        """The database of a service ends every session, as in a fast restart."""
        for connection in [one for one in self.connections if self._pool_of(one).partition("-")[0] == name]:
            self._cut(connection)

    def idle_too_long(self, process: Process) -> None:
        """What the server does to a client that falls silent inside a transaction."""
        for connection in [one for one in self.connections if one.owner is process and one.is_in_transaction()]:
            if not any(op.connection is connection for op in self._running + self._blocked):
                self._history.note("idle", f"{process} loses a transaction")
                self._cut(connection)

    async def ask(self, query: str, *args: Any) -> list[asyncpg.Record]:
        """A question of the world, as the administrator, in a turn of its own and without a fault."""

        async def work() -> Any:
            return await self._observe(query, *args)

        rows: list[asyncpg.Record] = await self._turn("the world asks", None, work, quiet=True)
        return rows

    # -- for the loop

    def owes(self) -> bool:
        """See `loop.Backlog`."""
        return bool(self._running) or self._looking is not None

    def look(self) -> None:
        """See `loop.Backlog`."""
        if self._looking is None:
            self._looking = self._loop.spawn(None, self._look())

    def advance(self) -> bool:
        """See `loop.Backlog`."""
        if self._dirty and self._blocked:
            self._dirty = False
            self.look()
            return True
        self._dirty = False
        if self._finished:
            for op in sorted(self._finished, key=lambda op: op.number):
                self._loop.later(self._delay(), self._hand_over, op)
            self._finished.clear()
            return True
        if not self._queue:
            return False
        op = self._queue.popleft()
        self._running.append(op)
        op.task = self._loop.spawn(None, self._work(op))
        return True

    # -- inside

    def _delay(self) -> float:
        """Half of what a statement takes."""
        if self.slow and self._chance.random() < self.slow:
            return self._chance.uniform(0.02, 0.8)
        return self._chance.uniform(0.0001, 0.002)

    @staticmethod
    def _pool_of(connection: "SimConnection") -> str:
        return str(connection._params.server_settings["application_name"])

    def _lose(self, connection: "SimConnection", label: str, when: str) -> Any:
        self._history.note("lost", f"{connection.owner} {label}: connection lost {when} it")
        self._cut(connection)
        raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

    def _cut(self, connection: "SimConnection") -> None:
        """The other side is gone: the driver notices, and nobody has tidied up."""
        self.cut += 1
        with self._loop.acting_as(None):
            connection._transport.abort()
        self.forget(connection)

    def _enqueue(
        self, label: str, work: Callable[[], Awaitable[Any]], connection: "SimConnection | None" = None, *, first: bool = False
    ) -> Operation:
        self._made += 1
        op = Operation(self._loop, self._made, label, connection, work)
        (self._queue.appendleft if first else self._queue.append)(op)
        return op

    async def _turn(
        self, label: str, connection: "SimConnection | None", work: Callable[[], Awaitable[Any]], *, quiet: bool = False
    ) -> Any:
        op = self._enqueue(label, work, connection)
        try:
            answer = await asyncio.shield(op.answer)
        except asyncio.CancelledError:
            await self._abandon(op)
            raise
        except Exception as error:
            self._history.note("sql", f"{label}: {type(error).__name__}")
            raise
        if not quiet:
            self._history.note("sql", f"{label} {len(answer) if isinstance(answer, list) else ''}")
        return answer

    async def _abandon(self, op: Operation) -> None:
        """Its asker gave up: what has not begun never will, what waits for a lock is cancelled at the server."""
        if op in self._queue:
            self._queue.remove(op)
            return
        if op in self._blocked:
            self._cancel(op)
        if not op.over.done():
            await asyncio.shield(op.over)

    async def _work(self, op: Operation) -> None:
        error: BaseException | None = None
        answer: Any = None
        try:
            answer = await op.work()
        except (Exception, asyncio.CancelledError) as problem:
            error = problem if isinstance(problem, Exception) else ConnectionResetError("cut")
        if op.as_deadlock and isinstance(error, asyncpg.QueryCanceledError):
            error = asyncpg.DeadlockDetectedError("deadlock detected")
        for place in (self._running, self._blocked):
            if op in place:
                place.remove(op)
        if op.limit is not None:
            op.limit.cancel()
        op.work = lambda: _result(answer, error)
        self._dirty = True
        self._finished.append(op)

    def _hand_over(self, op: Operation) -> None:
        self._loop.spawn(None, self._settle(op))

    async def _settle(self, op: Operation) -> None:
        try:
            answer = await op.work()
        except Exception as error:
            if not op.answer.done():
                op.answer.set_exception(error)
        else:
            if not op.answer.done():
                op.answer.set_result(answer)
        op.over.set_result(None)

    async def _look(self) -> None:
        """Asks the server which of the statements under way wait for a lock, and for whom."""
        try:
            asked = {
                op.connection.pid: op for op in self._running + self._blocked if op.connection is not None and op.connection.pid
            }
            if not asked:
                return
            rows = await self._observe(SQL.blocked.sql, list(asked))
            waits: dict[int, list[int]] = {row["pid"]: [pid for pid in row["blockers"] if pid] for row in rows}
            for pid, op in asked.items():
                if waits.get(pid) and op in self._running:
                    self._set_aside(op)
            free = [op for pid, op in asked.items() if not waits.get(pid) and op in self._blocked]
            if free and not self._running:
                self._go_on(min(free, key=lambda op: op.number))
            self._break_circles(asked, waits)
        finally:
            self._looking = None

    def _set_aside(self, op: Operation) -> None:
        """It waits for a lock. Its server process is stopped, so that of several that get their locks by one commit the older goes
        on first, and not whichever the machine wakes."""
        assert op.connection is not None
        self._running.remove(op)
        self._blocked.append(op)
        os.kill(op.connection.pid, signal.SIGSTOP)
        self._dirty = True
        if not op.waited:  # that it waits again for the one before it is seen by chance only
            op.waited = True
            self.waits += 1
            self._history.note("wait", op.label)
            op.limit = self._loop.later(op.connection.limit_s, self._cancel, op)

    def _go_on(self, op: Operation) -> None:
        assert op.connection is not None
        self._blocked.remove(op)
        self._running.append(op)
        os.kill(op.connection.pid, signal.SIGCONT)
        self._dirty = True

    def _break_circles(self, asked: dict[int, Operation], waits: dict[int, list[int]]) -> None:
        for pid, op in asked.items():
            seen: set[int] = set()
            pending = list(waits.get(pid, ()))
            while pending:
                other = pending.pop()
                if other not in seen:
                    seen.add(other)
                    pending += waits.get(other, ())
            circle = [asked[one] for one in seen if one in asked] if pid in seen else []
            if circle and op is max(circle, key=lambda one: one.number) and not op.as_deadlock:
                self.deadlocks += 1
                self._history.note("deadlock", op.label)
                op.as_deadlock = True
                self._cancel(op)
                return

    def _cancel(self, op: Operation) -> None:
        """Has the server cancel a statement that waits."""
        if op in self._blocked and op.connection is not None:
            pid = op.connection.pid
            self._go_on(op)
            self._history.note("cancel", op.label)
            self._enqueue_now(lambda: self._cancel_backend(pid))

    def _enqueue_now(self, work: Callable[[], Awaitable[Any]]) -> None:
        op = Operation(self._loop, 0, "cancel", None, work)
        self._running.append(op)
        op.task = self._loop.spawn(None, self._work(op))

    async def _cancel_backend(self, pid: int) -> None:
        await self._observe(SQL.cancel.sql, pid)

    async def _end(self, pid: int) -> None:
        """Ends a session and waits until its locks are gone."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        await self._observe(SQL.terminate.sql, pid)
        while await self._observe(SQL.alive.sql, pid):
            continue

    async def _observe(self, query: str, *args: Any) -> list[asyncpg.Record]:
        assert self._observer is not None
        async with self._observing:
            return await self._observer.fetch(query, *args, timeout=NEVER)


async def _result(answer: Any, error: BaseException | None) -> Any:
    if error is not None:
        raise error
    return answer
