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
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import asyncpg

from libs.kernel.refusal import Refusal
from libs.pg.driver import arrays_are_lists, plain
from libs.pg.errors import RETRYABLE, away, cut, is_unknown, translated, translation, unknown
from libs.pg.pool import Pool
from libs.pg.queries import Statement
from libs.pg.session import (
    Connection,
    Doubts,
    bound_transactions,
    doubts_of,
    driver_url,
    read_incarnation,
    restore_counter,
    server_settings,
    session_queries,
)
from libs.pg.tx import Tx

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
        self._pool: Pool | None = None
        self._incarnation = 0
        self._listeners: list[Callable[[int], None]] = []
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
        self._pool = Pool(self._connect, size=self._size, timeout_s=self._acquire_timeout_s)
        try:
            await self.fetch(session_queries.ping)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Waits for transactions under way, then closes the connections."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            await asyncio.wait_for(pool.close(), self._answer_timeout_s)
        except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            pool.terminate()

    def tx(self) -> "_Transaction":
        """A READ COMMITTED transaction, for `async with`: committed when the block ends, undone when it raises.

        Undone by the server because of a neighbour's locks, it is AUTHORITY_UNREACHABLE: the same call may be repeated.
        """
        return _Transaction(self, told=True)

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
        pool, connection = await self._lent()
        try:
            return await self._fetch_confirmed(connection, statement.sql, args)
        finally:
            self._give(pool, connection)

    async def _fetch_confirmed(self, connection: Connection, sql: str, args: tuple[Any, ...]) -> list[asyncpg.Record]:
        connection.warnings.clear()
        try:
            rows: list[asyncpg.Record] = await connection.fetch(sql, *plain(args))
        except Exception as problem:
            if cut(problem):
                connection.terminate()  # the driver may hear of it only after the next taker has it
            self._tell(problem)
        self._confirm(connection)
        return rows

    async def _commit(self, connection: Connection) -> None:
        if connection.is_closed():
            raise away(self.name)
        connection.warnings.clear()
        try:
            said = await connection.execute("COMMIT;")
        except Exception as problem:
            self._tell(problem)
        if said != "COMMIT":
            raise RuntimeError(f"{self.name}: a statement failed, its error was passed over, and the server undid everything")
        self._confirm(connection)

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
                async with _Transaction(self, told=False) as tx:
                    return await work(tx)
            except RETRYABLE as problem:
                if not left:
                    raise away(self.name) from problem
                _log.warning("%s: undone by the server (%s), tried again", self.name, type(problem).__name__)
        raise AssertionError("unreachable")

    async def answers(self, within_s: float = 2.5) -> bool:
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

    async def _lent(self) -> tuple[Pool, Connection]:
        """A connection that is whole, and where to give it back. What breaks it later is translated by whoever uses it."""
        pool = self._pool
        if pool is None:
            raise away(self.name)
        connection = pool.take_now()
        if connection is None:
            with translated(self.name, committing=False):
                connection = await pool.take()
                if connection.is_closed():  # lost on its way to us
                    pool.give(connection)
                    raise away(self.name)
        if self._doubts.open and not self._observer:
            try:
                await self._settle(connection)
            except BaseException:
                self._give(pool, connection)
                raise
        return pool, connection

    async def _settle(self, connection: Connection) -> None:
        while self._doubts.open:
            raised = self._doubts.raised
            await self._fetch_confirmed(connection, session_queries.prove.sql, ())
            self._doubts.settle(raised)

    def _give(self, pool: Pool, connection: Connection) -> None:
        if not connection.is_closed() and connection.is_in_transaction():
            connection.terminate()  # an interrupted begin or commit: its state is not ours to guess
        pool.give(connection)

    async def _undo(self, connection: Connection) -> None:
        try:
            await connection.execute("ROLLBACK;")
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
            with contextlib.suppress(asyncpg.InterfaceError):  # the last: a statement was interrupted and is still under way
                connection.terminate()  # the server undoes it when the connection is gone

    def _tell(self, problem: Exception) -> NoReturn:
        """What an error means of something that commits: nothing was decided, or nobody knows whether it was."""
        refusal = translation(self.name, problem, committing=True)
        if refusal is None:
            raise problem
        if is_unknown(refusal):
            self._doubts.raised += 1
        raise refusal from problem

    def _confirm(self, connection: Connection) -> None:
        """After what committed: unknown, when its answer came with a warning."""
        self._doubts.confirmed_at = asyncio.get_running_loop().time()
        if connection.warnings:
            _log.error("%s: a commit came with a warning: %s", self.name, "; ".join(connection.warnings))
            self._doubts.raised += 1
            raise unknown(self.name)

    async def _connect(self) -> Connection:
        """A new connection that was welcomed."""
        connection: Connection = await asyncpg.connect(
            self._url,
            timeout=self._acquire_timeout_s,
            command_timeout=self._answer_timeout_s,
            max_cached_statement_lifetime=0,
            statement_cache_size=512,
            connection_class=Connection,
            server_settings=self._settings,
        )
        try:
            await self._welcome(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _welcome(self, ours: Connection) -> None:
        """Each new connection: reads its incarnation, refuses a former primary."""
        self._doubts.raised += 1  # a server that was restarted shows what nobody waited for
        await bound_transactions(ours, self._transaction_ms)
        ours.incarnation = await read_incarnation(ours, self._counter)
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
            self._pool.expire()
        for listener in self._listeners:
            listener(self._incarnation)


class _Transaction:
    """From BEGIN to COMMIT or ROLLBACK. `told`: what the server undid for a neighbour's sake is a refusal; else it stays the
    driver's error, for whoever tries again."""

    __slots__ = ("_connection", "_db", "_pool", "_told", "_tx")

    _pool: Pool
    _connection: Connection
    _tx: Tx

    def __init__(self, db: Database, *, told: bool) -> None:
        self._db = db
        self._told = told

    async def __aenter__(self) -> Tx:
        db = self._db
        self._pool, self._connection = await db._lent()
        connection = self._connection
        self._tx = Tx(connection, db.name, connection.incarnation)
        try:
            await connection.execute("BEGIN;")
        except BaseException as problem:
            connection.terminate()  # whether it began is not ours to guess
            db._give(self._pool, connection)
            refusal = translation(db.name, problem, committing=False)
            if refusal is None:
                raise
            raise refusal from problem
        return self._tx

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        db, connection = self._db, self._connection
        try:
            if problem is None:
                try:
                    await self._tx.finish()
                except BaseException:
                    await db._undo(connection)
                    raise
                await db._commit(connection)
            else:
                await db._undo(connection)
        except RETRYABLE as undone:
            if not self._told:
                raise
            raise away(db.name) from undone
        finally:
            db._give(self._pool, connection)
        if self._told and isinstance(problem, RETRYABLE):
            raise away(db.name) from problem
