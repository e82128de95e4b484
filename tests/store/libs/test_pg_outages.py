"""A PostgreSQL that goes away at the worst moment: what is refused, what is unknown, and that the pool stays whole."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from libs.embedded import EmbeddedPostgres
from libs.kernel.refusal import Reason, Refusal
from libs.pg import Database, Statement
from libs.pg.pool import Pool
from libs.pg.session import Connection
from libs.testkit import FaultProxy, SeededIds, wait_until
from tests.store.libs.pg_statements import COUNT, CUT, INSERT, SLEEP, WHO, count, through

LOCK = Statement("lock", "SELECT item_id FROM item WHERE item_id = $1 FOR NO KEY UPDATE")


async def test_a_database_that_is_away_is_unreachable_and_comes_back(url: str) -> None:
    async with FaultProxy(urlsplit(url).port or 0) as proxy:
        db = Database(through(url, proxy.port), name="alpha", size=2, acquire_timeout_ms=2_000)
        await db.open()
        assert await db.ping()
        proxy.refuse()
        assert not await db.ping()
        assert await db.answers(within_s=60), "what it confirmed lately is taken for an answer"
        assert not await db.answers(within_s=0)
        with pytest.raises(Refusal) as refused:
            async with db.tx():
                pytest.fail("a transaction began on a database that is away")
        assert refused.value.reason is Reason.AUTHORITY_UNREACHABLE
        assert "commit" not in refused.value.detail, "nothing was sent, so nothing is unknown"
        proxy.heal()
        await wait_until(db.ping)
        assert await count(db) == 0
        await db.close()
        with pytest.raises(Refusal):
            await db.fetch(COUNT)


async def test_opening_a_database_that_is_away_is_refused(url: str) -> None:
    async with FaultProxy(urlsplit(url).port or 0) as proxy:
        proxy.refuse()
        db = Database(through(url, proxy.port), name="alpha", size=2, acquire_timeout_ms=2_000)
        with pytest.raises(Refusal) as refused:
            await db.open()
        assert refused.value.reason is Reason.AUTHORITY_UNREACHABLE
        proxy.heal()
        await db.open()
        assert await db.ping()
        await db.close()


async def test_a_commit_whose_answer_is_lost_is_unknown_and_did_happen(url: str, db: Database, ids: SeededIds) -> None:
    async with FaultProxy(urlsplit(url).port or 0) as proxy:
        cut = Database(through(url, proxy.port), name="alpha", size=1)
        await cut.open()
        with pytest.raises(Refusal) as refused:
            async with cut.tx() as tx:
                await tx.fetch(INSERT, ids.uuid7(), 1)
                proxy.lose_the_answer_to(b"COMMIT")
        await proxy.triggered.wait()
        assert refused.value.reason is Reason.AUTHORITY_UNREACHABLE
        assert refused.value.detail == {"commit": "unknown"}
        assert await count(db) == 1
        await cut.close()


async def test_an_autocommitted_statement_whose_answer_is_lost_is_unknown(url: str, db: Database, ids: SeededIds) -> None:
    async with FaultProxy(urlsplit(url).port or 0) as proxy:
        cut = Database(through(url, proxy.port), name="alpha", size=1)
        await cut.open()
        await cut.fetch(INSERT, ids.uuid7(), 1)  # prepared now: the next chunk is the execution alone
        marked = ids.uuid7()
        proxy.lose_the_answer_to(marked.bytes)
        with pytest.raises(Refusal) as refused:
            await cut.fetch(INSERT, marked, 1)
        await proxy.triggered.wait()
        assert refused.value.detail == {"commit": "unknown"}
        assert await count(db) == 2
        await cut.close()


async def test_a_connection_lost_inside_a_transaction_decides_nothing(url: str, db: Database, ids: SeededIds) -> None:
    with pytest.raises(Refusal) as refused:
        async with db.tx() as tx:
            await tx.fetch(INSERT, ids.uuid7(), 1)
            pid = (await tx.fetch(WHO))[0]["pid"]
            await db.fetch(CUT, pid)
            await tx.fetch(COUNT)
    assert refused.value.reason is Reason.AUTHORITY_UNREACHABLE
    assert refused.value.detail == {}
    assert await count(db) == 0


async def test_no_free_connection_in_time_is_unreachable(url: str) -> None:
    db = Database(url, name="alpha", size=1, acquire_timeout_ms=50)
    await db.open()
    async with db.tx():
        with pytest.raises(Refusal) as refused:
            await db.fetch(COUNT)
    assert refused.value.reason is Reason.AUTHORITY_UNREACHABLE
    await db.close()


async def test_a_statement_that_takes_too_long_is_unreachable_and_leaves_the_pool_whole(url: str) -> None:
    db = Database(url, name="alpha", size=1, statement_timeout_ms=50)
    await db.open()
    with pytest.raises(Refusal) as refused:
        await db.fetch(SLEEP)
    assert refused.value.detail == {}, "the server undid it: nothing is unknown"
    assert await count(db) == 0
    await db.close()


async def test_a_transaction_that_idles_is_ended_by_the_server(url: str, ids: SeededIds) -> None:
    db = Database(url, name="alpha", size=2, idle_in_transaction_ms=50)
    await db.open()
    with pytest.raises(Refusal) as refused:
        async with db.tx() as tx:
            await tx.fetch(INSERT, ids.uuid7(), 1)
            pid = (await tx.fetch(WHO))[0]["pid"]
            gone = Statement("gone", "SELECT 1 FROM pg_stat_activity WHERE pid = $1")

            async def ended() -> bool:
                return not await db.fetch(gone, pid)

            await wait_until(ended)
    assert refused.value.reason is Reason.AUTHORITY_UNREACHABLE
    assert await count(db) == 0
    await db.close()


async def test_a_client_that_stops_in_the_middle_of_a_command_does_not_keep_its_locks(url: str, ids: SeededIds) -> None:
    """A process that is stopped between the parsing of a statement and its execution: the server waits for it in the middle of a
    command, where neither the bound of statements nor that of idling holds."""
    stopped = Database(
        url, name="alpha", size=1, statement_timeout_ms=200, idle_in_transaction_ms=50, transaction_timeout_ms=600
    )
    other = Database(url, name="other", size=1)
    await stopped.open()
    await other.open()
    item = ids.uuid7()
    await other.fetch(INSERT, item, 1)
    with pytest.raises(Refusal) as refused:
        async with stopped.tx() as tx:
            await tx.fetch(LOCK, item)
            await tx._connection.prepare("SELECT 42 AS answer")  # parsed and flushed, never executed
            assert len(await other.fetch(LOCK, item)) == 1, "within its own bound of five seconds"
            await tx.fetch(COUNT)
    assert refused.value.reason is Reason.AUTHORITY_UNREACHABLE
    await stopped.close()
    by_default = Database(url, name="alpha", size=1)
    await by_default.open()
    assert (await by_default.fetch(Statement("bound", "SELECT current_setting('transaction_timeout') AS ms")))[0]["ms"] == "8s"
    await by_default.close()
    await other.close()


async def test_a_caller_that_gives_up_leaves_no_open_transaction(url: str, ids: SeededIds) -> None:
    db = Database(url, name="alpha", size=1)
    await db.open()
    inside = asyncio.Event()

    async def work() -> None:
        async with db.tx() as tx:
            await tx.fetch(INSERT, ids.uuid7(), 1)
            inside.set()
            await tx.fetch(SLEEP)

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await count(db) == 0
    await db.close()


async def test_a_commit_whose_standby_did_not_confirm_is_unknown(short_folder: Path, ids: SeededIds) -> None:
    """The server reports success with a warning when the wait for the standby is cancelled. What that wrote can be read by
    others, and nobody is told of it as if it stood."""
    async with EmbeddedPostgres(short_folder / "pg", settings={"fsync": "off"}) as server:
        db = Database(server.url(), name="alpha", size=2, hot=False)
        sibling = Database(server.url(), name="alpha-leaf", size=2, hot=False)
        other = Database(server.socket_url(), name="alpha", size=2, hot=False)  # as a process of its own has its own doubts
        await db.open()
        await db.fetch(Statement("create", "CREATE TABLE item (item_id uuid PRIMARY KEY, amount bigint)"))
        await sibling.open()
        await other.open()
        assert await count(other) == 0
        admin = await asyncpg.connect(server.url())
        probe = await asyncpg.connect(server.url())
        await probe.execute("CREATE TABLE probe (n int)")
        cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        server.configure("synchronous_standby_names", "ghost")

        async def in_force() -> bool:
            """Each backend, and who tells them whether to wait, reads the setting when it comes to it."""
            writing = asyncio.ensure_future(probe.execute("INSERT INTO probe VALUES (1)"))
            await asyncio.wait({writing}, timeout=0.5)
            waits = not writing.done()
            if waits:
                await wait_until(lambda: admin.fetch(cancel))
            await writing
            return waits

        await wait_until(in_force)
        await probe.close()

        async def insert_in_transaction() -> None:
            async with db.tx() as tx:
                await tx.fetch(INSERT, ids.uuid7(), 1)

        async def read_and_prove() -> None:
            async with other.tx() as tx:
                assert len(await tx.fetch(COUNT)) == 1
                await tx.prove()

        async def is_unknown(work: Awaitable[object]) -> None:
            task = asyncio.ensure_future(work)
            await wait_until(lambda: admin.fetch(cancel))
            with pytest.raises(Refusal) as refused:
                await task
            assert refused.value.detail == {"commit": "unknown"}

        await is_unknown(insert_in_transaction())
        await is_unknown(db.fetch(COUNT))  # read by the pool that doubts
        await is_unknown(sibling.fetch(COUNT))  # and by its siblings
        assert await count(other) == 1, "a pool that knows of nothing reads it"
        await is_unknown(read_and_prove())  # unless it must tell somebody that it stands
        await is_unknown(db.fetch(INSERT, ids.uuid7(), 1))
        server.configure("synchronous_standby_names", "")
        await wait_until(db.ping)
        assert await count(db) == 1, "a write is not begun while there is a doubt"
        async with db.tx() as tx:
            await tx.prove()
        await admin.close()
        await db.close()
        await sibling.close()
        await other.close()


async def test_a_promotion_changes_the_incarnation_and_the_former_primary_is_refused(short_folder: Path) -> None:
    async with EmbeddedPostgres(short_folder / "pg", settings={"fsync": "off"}) as server, FaultProxy(server.port) as proxy:
        db = Database(through(server.url(), proxy.port), name="alpha", size=2)
        seen: list[int] = []
        db.on_incarnation_changed(seen.append)
        await db.open()
        assert (db.incarnation, seen) == (256, [])
        await server.stop()
        (server.folder / "data" / "standby.signal").touch()
        server._chosen_port = server.port
        await server.start()
        assert not await db.ping(), "a standby is no authority"
        admin = await asyncpg.connect(server.url())
        await admin.execute("SELECT pg_promote(true, 30)")
        await admin.close()
        await wait_until(db.ping)
        assert (db.incarnation, seen) == (2 * 256, [2 * 256])
        async with db.tx() as tx:
            assert tx.incarnation == 2 * 256
        db._counter = -1  # as if what answers now came from before
        proxy.cut()
        assert not await db.ping()
        assert db.incarnation == 2 * 256
        await db.close()


async def test_a_connection_lost_as_its_transaction_begins_is_a_database_away(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Connection.execute

    async def execute(self: Connection, query: str, **named: object) -> str:
        answer = await said(self, query, **named)
        await lost(self)
        return answer

    monkeypatch.setattr(Connection, "execute", execute)
    with pytest.raises(Refusal) as no:
        async with db.tx() as tx:
            await tx.fetch(COUNT)
    assert no.value.reason is Reason.AUTHORITY_UNREACHABLE
    monkeypatch.undo()
    assert await count(db) == 0


async def test_a_connection_lost_on_its_way_from_the_pool_is_a_database_away(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Pool.take

    async def take(self: Pool) -> Connection:
        connection = await taken(self)
        await lost(connection)
        return connection

    monkeypatch.setattr(Pool, "take_now", lambda self: None)
    monkeypatch.setattr(Pool, "take", take)
    for ask in (lambda: count(db), lambda: db.run(lambda tx: tx.fetch(COUNT))):
        with pytest.raises(Refusal) as no:
            await ask()
        assert no.value.reason is Reason.AUTHORITY_UNREACHABLE
    monkeypatch.undo()
    assert await count(db) == 0


async def test_a_connection_lost_on_its_way_to_the_pool_is_a_database_away(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fetch(self: Connection, *_: object, **__: object) -> object:
        self._transport.abort()  # the driver hears of it in the next turn, when the connection is being given back
        raise asyncpg.AdminShutdownError("terminating connection due to administrator command")

    monkeypatch.setattr(Connection, "fetch", fetch)
    with pytest.raises(Refusal) as no:
        await db.fetch(COUNT)
    assert no.value.reason is Reason.AUTHORITY_UNREACHABLE
    monkeypatch.undo()
    assert await count(db) == 0


async def lost(connection: asyncpg.Connection) -> None:
    """The driver hears of the loss and takes the connection back before whoever has it goes on."""
    connection._transport.abort()
    while not connection.is_closed():
        await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_a_statement_that_is_still_under_way_when_its_transaction_is_undone_costs_a_connection_and_no_more(
    db: Database, ids: SeededIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the driver says after a process that was stopped goes on: the cancel came before the answer that was waiting."""

    async def busy(_: object) -> None:
        raise asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")

    for _ in range(6):  # more than the pool has connections
        with monkeypatch.context() as patch, pytest.raises(asyncio.CancelledError):
            async with db.tx() as tx:
                await tx.fetch(INSERT, ids.uuid7(), 1)
                patch.setattr("asyncpg.transaction.Transaction.rollback", busy)
                raise asyncio.CancelledError
    assert await count(db) == 0
    async with db.tx() as tx:
        await tx.fetch(INSERT, ids.uuid7(), 2)
    assert await count(db) == 1
