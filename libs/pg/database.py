"""Authoritative for transactions: the only place that begins and commits one.

Can go wrong, and how it is told: no connection in time, or the server away: `AUTHORITY_UNREACHABLE`, nothing was decided. The
answer of a commit lost, or a commit that came with a warning (a cancelled wait for the standby looks like success): the same
reason with detail `commit = unknown`. What the server undid because of a neighbour (a deadlock, a serialisation failure) is
done again by `run`, which says for whom that is safe. An older incarnation that answers after a newer one was seen (a former
primary) is refused. What such an unknown commit wrote can be read at once, although no standby may have it, and to read is not
to confirm: so after one, and on every new connection, the first thing done is a commit of our own that is confirmed, since WAL
reaches a standby in order. Until one is, the database is no authority.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar, cast

import asyncpg

from libs.kernel.refusal import Refusal
from libs.pg.driver import arrays_are_lists, plain
from libs.pg.errors import RETRYABLE, away, is_unknown, translated, unknown
from libs.pg.queries import Statement, together
from libs.pg.session import (
    Connection,
    Doubts,
    bound_transactions,
    doubts_of,
    driver_url,
    keep_nothing,
    read_incarnation,
    restore_counter,
    server_settings,
    session_queries,
)

_log = logging.getLogger("runway.pg")
T = TypeVar("T")

arrays_are_lists()
_UNLIMITED = 2**62
_ANSWER_MARGIN_S = 2.0
"""How much longer we wait for an answer than the server lets a statement run."""
_TRIES = 3
"""Of a transaction that the server undoes because of its neighbours."""
_TRANSACTION_MARGIN_MS = 3_000
"""How much longer than a statement a transaction may take."""


class Tx:
    """A READ COMMITTED transaction that is open. Short, and no RPC inside."""

    __slots__ = ("_connection", "_later", "_name", "incarnation")

    incarnation: int
    """Incarnation of the database that will commit this."""

    def __init__(self, connection: Connection, name: str, incarnation: int) -> None:
        self._connection = connection
        self._name = name
        self._later: list[tuple[Statement, tuple[Any, ...]]] = []
        self.incarnation = incarnation

    async def fetch(self, statement: Statement, *args: Any) -> list[asyncpg.Record]:
        """Runs one statement, after what was left for later."""
        if self._later:
            await self.finish()
        return await self._run(statement, args)

    async def prove(self) -> None:
        """Makes the commit confirm what was read, although nothing was written: for a caller who is told that something stands.

        A neighbour's cancelled wait for the standby shows its rows to others before it tells its own caller.
        """
        await self.fetch(session_queries.prove)

    async def _run(self, statement: Statement, args: Iterable[Any]) -> list[asyncpg.Record]:
        with translated(self._name, committing=False):
            return await self._connection.fetch(statement.sql, *plain(args))

    def later(self, statement: Statement, *args: Any) -> None:
        """Runs a write whose answer nobody needs before the next statement or the commit, together with the others left until
        then: one journey for all.

        Such writes see one snapshot: none may look for what another of them writes.
        """
        self._later.append((statement, args))

    async def finish(self) -> None:
        """What was left for the end."""
        waiting, self._later = self._later, []
        while waiting:
            taken = _companions(waiting)
            waiting = [item for item in waiting if all(item is not other for other in taken)]
            if len(taken) == 1:
                await self._run(*taken[0])
                continue
            whole = together(tuple(statement for statement, _ in taken), tuple(len(args) for _, args in taken))
            await self._run(whole, (argument for _, args in taken for argument in args))


def _companions(waiting: list[tuple[Statement, tuple[Any, ...]]]) -> list[tuple[Statement, tuple[Any, ...]]]:
    """Writes that can go in one statement: any number, but one with parts of its own; the same statement twice, apart."""
    taken: list[tuple[Statement, tuple[Any, ...]]] = []
    for item in waiting:
        others = [other for other, _ in taken]
        if item[0] not in others and not (item[0].parted and any(other.parted for other in others)):
            taken.append(item)
    return taken


class Database:
    """A pool of connections to one service's database."""

    def __init__(
        self,
        url: str,
        *,
        name: str,
        size: int,
        hot: bool = True,
        statement_timeout_ms: int = 5_000,
        idle_in_transaction_ms: int = 1_000,
        transaction_timeout_ms: int | None = None,
        acquire_timeout_ms: int = 5_000,
        counter: int | None = None,
        observer: bool = False,
    ) -> None:
        """`hot=False` for cold paths and tools: the planner decides. `counter` defaults to `RUNWAY_RESTORE_COUNTER`.
        `transaction_timeout_ms`: a transaction's longest time; by default that of a statement and three seconds more.

        `observer`: for tools that look and promise nothing; they also see what no standby has confirmed.
        """
        self.name = name
        self._url = driver_url(url)
        self._size = size
        self._settings = server_settings(
            name, hot=hot, statement_timeout_ms=statement_timeout_ms, idle_in_transaction_ms=idle_in_transaction_ms
        )
        longest_ms = int(self._settings["statement_timeout"])
        default_ms = longest_ms + _TRANSACTION_MARGIN_MS if longest_ms else 0
        self._transaction_ms = default_ms if transaction_timeout_ms is None else transaction_timeout_ms
        self._answer_timeout_s = statement_timeout_ms / 1000 + _ANSWER_MARGIN_S
        self._acquire_timeout_s = acquire_timeout_ms / 1000
        self._counter = restore_counter() if counter is None else counter
        self._pool: asyncpg.Pool | None = None
        self._incarnation = 0
        self._listeners: list[Callable[[int], None]] = []
        self._expiry: asyncio.Task[None] | None = None
        self._doubts = Doubts() if observer else doubts_of(self._url)
        self._observer = observer

    @property
    def incarnation(self) -> int:
        """Newest incarnation seen by a connection; 0 before the first."""
        return self._incarnation

    def on_incarnation_changed(self, listener: Callable[[int], None]) -> None:
        """Calls `listener(new)` on the event loop whenever a connection meets a newer incarnation; not for the first."""
        self._listeners.append(listener)

    async def open(self) -> None:
        """Opens the pool and its first connection."""
        if self._pool is not None:
            return
        pool = asyncpg.create_pool(
            self._url,
            min_size=0,  # or the driver would log a trace for each reconnection that fails
            max_size=self._size,
            timeout=self._acquire_timeout_s,
            command_timeout=self._answer_timeout_s,
            max_queries=_UNLIMITED,
            max_inactive_connection_lifetime=0,
            max_cached_statement_lifetime=0,
            statement_cache_size=512,
            connection_class=Connection,
            server_settings=self._settings,
            init=self._welcome,
            reset=keep_nothing,
        )
        await pool
        self._pool = pool
        try:
            await self.fetch(session_queries.ping)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Waits for transactions under way, then closes the connections."""
        pool, self._pool = self._pool, None
        if self._expiry is not None:
            await self._expiry
        if pool is None:
            return
        try:
            await asyncio.wait_for(pool.close(), self._answer_timeout_s)
        except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            pool.terminate()

    @asynccontextmanager
    async def tx(self) -> AsyncIterator[Tx]:
        """A READ COMMITTED transaction: committed when the block ends, undone when it raises.

        Undone by the server because of a neighbour's locks, it is AUTHORITY_UNREACHABLE: the same call may be repeated.
        """
        try:
            async with self._transaction() as tx:
                yield tx
        except RETRYABLE as problem:
            raise away(self.name) from problem

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Tx]:
        async with self._connection() as connection:
            incarnation = connection.incarnation  # while the connection is certainly ours
            transaction = connection.transaction()
            with translated(self.name, committing=False):
                await transaction.start()
            tx = Tx(connection, self.name, incarnation)
            try:
                yield tx
                await tx.finish()
            except BaseException:
                await self._undo(connection, transaction)
                raise
            with translated(self.name, committing=False):
                if connection.is_closed():
                    raise away(self.name)
            with self._confirmed(connection):
                await transaction.commit()

    async def fetch(self, statement: Statement, *args: Any) -> list[asyncpg.Record]:
        """Runs one statement that commits by itself; once more when a neighbour's locks made the server undo it."""
        for last in (False, True):
            try:
                return await self._fetch_once(statement, args)
            except RETRYABLE as problem:
                if last:
                    raise away(self.name) from problem
        raise AssertionError("unreachable")

    async def _fetch_once(self, statement: Statement, args: tuple[Any, ...]) -> list[asyncpg.Record]:
        async with self._connection() as connection:
            return await self._fetch_confirmed(connection, statement, args)

    async def _fetch_confirmed(
        self, connection: Connection, statement: Statement, args: tuple[Any, ...]
    ) -> list[asyncpg.Record]:
        with self._confirmed(connection):
            return await connection.fetch(statement.sql, *plain(args))

    async def run(self, work: Callable[[Tx], Awaitable[T]]) -> T:
        """Runs `work` in a transaction; again, from its start and in a new one, where the server undid it for a neighbour's
        sake.

        Safe, because such an undoing is certain: the server said so, and nothing of it was or will be stored. Everything else
        is told and never repeated here: of a commit whose answer was lost nobody knows whether it stands (`unknown`), and a
        second might do it twice; only the verb's own key, or a read, can tell. So `work` reads in the transaction all that it
        decides by, and changes nothing outside but by what it returns. Few tries: who was undone waits behind whoever was not,
        and is through at the next; if not, locks are taken in two orders, and hiding that would not help.
        """
        for left in reversed(range(_TRIES)):
            try:
                async with self._transaction() as tx:
                    return await work(tx)
            except RETRYABLE as problem:
                if not left:
                    raise away(self.name) from problem
                _log.warning("%s: undone by the server (%s), tried again", self.name, type(problem).__name__)
        raise AssertionError("unreachable")

    async def answers(self, within_s: float = 0.8) -> bool:
        """Whether the database is known to answer: it confirmed something so lately, or does when it is asked now."""
        if asyncio.get_running_loop().time() - self._doubts.confirmed_at <= within_s:
            return True
        return await self.ping()

    async def ping(self) -> bool:
        """Whether the database answers and is the authority."""
        try:
            await self.fetch(session_queries.ping)
        except Refusal:
            return False
        return True

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        """A connection of the pool that is whole. Its errors are translated by whoever uses it."""
        pool = self._pool
        if pool is None:
            raise away(self.name)
        with translated(self.name, committing=False):
            proxy = await pool.acquire(timeout=self._acquire_timeout_s)
        connection = cast(Connection, proxy)
        try:
            with translated(self.name, committing=False):
                if connection.is_closed():  # lost on its way to us: the driver has taken it back already
                    raise away(self.name)
            while self._doubts.open and not self._observer:
                raised = self._doubts.raised
                await self._fetch_confirmed(connection, session_queries.prove, ())
                self._doubts.settle(raised)
            yield connection
        finally:
            await self._release(pool, proxy)

    async def _release(self, pool: asyncpg.Pool, proxy: Any) -> None:
        gone = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
        with contextlib.suppress(*gone):  # the driver took it back already, perhaps while we gave it back
            if proxy.is_in_transaction():
                proxy.terminate()  # an interrupted begin or commit: its state is not ours to guess
            await pool.release(proxy)

    async def _undo(self, connection: Connection, transaction: Any) -> None:
        try:
            await transaction.rollback()
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
            with contextlib.suppress(asyncpg.InterfaceError):  # the last: a statement was interrupted and is still under way
                connection.terminate()  # the server undoes it when the connection is gone

    @contextmanager
    def _confirmed(self, connection: Connection) -> Iterator[None]:
        """Around what commits: unknown when its answer is lost, or comes with a warning."""
        warnings = connection.warnings  # while the connection is certainly ours
        warnings.clear()
        try:
            with translated(self.name, committing=True):
                yield
            self._doubts.confirmed_at = asyncio.get_running_loop().time()
            if warnings:
                _log.error("%s: a commit came with a warning: %s", self.name, "; ".join(warnings))
                raise unknown(self.name)
        except Refusal as refusal:
            if is_unknown(refusal):
                self._doubts.raised += 1
            raise

    async def _welcome(self, connection: asyncpg.Connection) -> None:
        """Called by the pool for each new connection: reads its incarnation, refuses a former primary."""
        ours = cast(Connection, connection)
        self._doubts.raised += 1  # a server that was restarted shows what nobody waited for
        await bound_transactions(connection, self._transaction_ms)
        ours.incarnation = await read_incarnation(connection, self._counter)
        if ours.incarnation < self._incarnation:
            raise asyncpg.CannotConnectNowError(f"incarnation {ours.incarnation} answers after {self._incarnation} was seen")
        if ours.incarnation > self._incarnation:
            first, self._incarnation = self._incarnation == 0, ours.incarnation
            if not first:
                _log.warning("%s: the database is in incarnation %d now", self.name, ours.incarnation)
                self._announce()

    def _announce(self) -> None:
        """No connection of the older incarnation is used again; whoever keeps what it said is told."""
        if self._pool is not None:
            self._expiry = asyncio.ensure_future(self._pool.expire_connections())
        for listener in self._listeners:
            listener(self._incarnation)
