"""Transactions against a real PostgreSQL: what is committed, what is refused, what is unknown."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import asyncpg
import pytest

from libs.embedded import EmbeddedPostgres
from libs.kernel.refusal import Reason, Refusal
from libs.pg import Database, Queries, Statement, Tx
from libs.pg.session import Connection
from libs.testkit import FaultProxy, SeededIds, wait_until
from libs.testkit.databases import prepare_all
from libs.testkit.fixtures import StackDatabase

INSERT = Statement("insert", "INSERT INTO item (item_id, amount) VALUES ($1, $2)")
COUNT = Statement("count", "SELECT count(*) AS n FROM item")
ADD = Statement("add", "UPDATE item SET amount = amount + 1 WHERE item_id = $1")
LOCK = Statement("lock", "SELECT 1 FROM item WHERE item_id = $1 FOR UPDATE")
SLEEP = Statement("sleep", "SELECT pg_sleep(30)")
SHOW = Statement("show", "SELECT current_setting($1) AS value")
WHO = Statement("who", "SELECT pg_backend_pid() AS pid")
CUT = Statement("cut", "SELECT pg_terminate_backend($1)")
DEFER = Statement("defer", "SET LOCAL synchronous_commit = on")


def through(url: str, port: int) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{port}"))


@pytest.fixture
async def url(stack_db: StackDatabase) -> str:
    return (await stack_db(packages={"alpha": "tests.sample_services.alpha.migrations"}))["alpha"]


@pytest.fixture
async def db(url: str) -> AsyncIterator[Database]:
    database = Database(url, name="alpha-test", size=4, counter=3)
    await database.open()
    yield database
    await database.close()


async def count(db: Database) -> int:
    return int((await db.fetch(COUNT))[0]["n"])


async def test_a_transaction_commits_whole_or_not_at_all(db: Database, ids: SeededIds) -> None:
    async with db.tx() as tx:
        await tx.fetch(INSERT, ids.uuid7(), 1)
        await tx.fetch(INSERT, ids.uuid7(), 2)
        assert tx.incarnation == db.incarnation
    assert await count(db) == 2
    with pytest.raises(LookupError):
        async with db.tx() as tx:
            await tx.fetch(INSERT, ids.uuid7(), 3)
            raise LookupError
    assert await count(db) == 2


async def test_what_is_left_for_the_end_is_written_once_and_undone_with_the_rest(db: Database, ids: SeededIds) -> None:
    first, second, third = ids.uuid7(), ids.uuid7(), ids.uuid7()
    parted = Statement(
        "parted", "WITH given AS (SELECT $1::uuid AS id) UPDATE item SET amount = amount + $2 FROM given WHERE item_id = id"
    )
    async with db.tx() as tx:
        await tx.fetch(INSERT, first, 1)
        tx.later(INSERT, second, 2)
        tx.later(INSERT, third, 3)
        tx.later(parted, first, 10)
        assert (await tx.fetch(COUNT))[0]["n"] == 3, "whoever reads sees what was left for later"
        tx.later(parted, first, 100)
    amounts = Statement("amounts", "SELECT item_id, amount FROM item")
    found = {row["item_id"]: row["amount"] for row in await db.fetch(amounts)}
    assert found == {first: 111, second: 2, third: 3}
    with pytest.raises(LookupError):
        async with db.tx() as tx:
            tx.later(INSERT, ids.uuid7(), 4)
            raise LookupError
    with pytest.raises(asyncpg.UniqueViolationError):
        async with db.tx() as tx:
            await tx.fetch(INSERT, ids.uuid7(), 5)
            tx.later(INSERT, first, 6)
    assert await count(db) == 3


async def test_hot_settings_hold_for_every_statement_and_survive_release(db: Database, url: str) -> None:
    wanted = {"jit": "off", "plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "enable_hashjoin": "off",
              "enable_mergejoin": "off", "application_name": "alpha-test", "idle_in_transaction_session_timeout": "1s",
              "statement_timeout": "5s"}  # fmt: skip
    for _ in range(2):
        for name, value in wanted.items():
            assert (await db.fetch(SHOW, name))[0]["value"] == value
    cold = Database(url, name="cold", size=1, hot=False)
    await cold.open()
    assert (await cold.fetch(SHOW, "enable_seqscan"))[0]["value"] == "on"
    await cold.close()


async def test_incarnation_is_timeline_and_counter(db: Database, url: str) -> None:
    assert db.incarnation == 1 * 256 + 3
    other = Database(url, name="other", size=1, counter=0)
    assert other.incarnation == 0
    await other.open()
    assert other.incarnation == 256
    await other.close()


def test_a_restore_counter_out_of_range_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("256", "-1", "x"):
        monkeypatch.setenv("RUNWAY_RESTORE_COUNTER", wrong)
        with pytest.raises(ValueError, match="0 to 255"):
            Database("postgresql://x", name="x", size=1)


async def test_a_database_that_is_away_is_unreachable_and_comes_back(url: str) -> None:
    async with FaultProxy(urlsplit(url).port or 0) as proxy:
        db = Database(through(url, proxy.port), name="alpha", size=2, acquire_timeout_ms=2_000)
        await db.open()
        assert await db.ping()
        proxy.refuse()
        assert not await db.ping()
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


async def test_a_deadlock_is_tried_again_once(db: Database, ids: SeededIds) -> None:
    first, second = ids.uuid7(), ids.uuid7()
    for item in (first, second):
        await db.fetch(INSERT, item, 0)
    both_hold = asyncio.Barrier(2)
    tries = 0

    async def cross(one: UUID, other: UUID) -> None:
        waited = False

        async def work(tx: Tx) -> None:
            nonlocal tries, waited
            tries += 1
            await tx.fetch(LOCK, one)
            if not waited:
                waited = True
                await both_hold.wait()
            await tx.fetch(ADD, other)

        await db.run(work)

    await asyncio.gather(cross(first, second), cross(second, first))
    assert tries in (3, 4), "the one that was undone comes again, and may meet the other once more before it is through"


async def test_a_deadlock_of_a_transaction_that_is_not_tried_again_is_unreachable(db: Database, ids: SeededIds) -> None:
    first, second = ids.uuid7(), ids.uuid7()
    for item in (first, second):
        await db.fetch(INSERT, item, 0)
    both_hold = asyncio.Barrier(2)

    async def cross(one: UUID, other: UUID) -> None:
        async with db.tx() as tx:
            await tx.fetch(LOCK, one)
            await both_hold.wait()
            await tx.fetch(ADD, other)

    ends = await asyncio.gather(cross(first, second), cross(second, first), return_exceptions=True)
    (undone,) = [end for end in ends if end is not None]
    assert isinstance(undone, Refusal)
    assert (undone.reason, undone.detail) == (Reason.AUTHORITY_UNREACHABLE, {})


async def test_mistakes_of_ours_are_not_called_an_outage(db: Database, ids: SeededIds) -> None:
    with pytest.raises(asyncpg.UndefinedTableError):
        await db.fetch(Statement("wrong", "SELECT 1 FROM nowhere"))
    with pytest.raises((asyncpg.InterfaceError, asyncpg.DataError)):
        await db.fetch(INSERT, ids.uuid7())
    item = ids.uuid7()
    await db.fetch(INSERT, item, 1)
    with pytest.raises(asyncpg.UniqueViolationError):
        async with db.tx() as tx:
            await tx.fetch(INSERT, item, 1)
    assert await count(db) == 1


async def test_a_commit_whose_standby_did_not_confirm_is_unknown(short_folder: Path, ids: SeededIds) -> None:
    """The server reports success with a warning when the wait for the standby is cancelled."""
    async with EmbeddedPostgres(short_folder / "pg", settings={"fsync": "off"}) as server:
        db = Database(server.url(), name="alpha", size=2, hot=False)
        await db.open()
        await db.fetch(Statement("create", "CREATE TABLE item (item_id uuid PRIMARY KEY, amount bigint)"))
        await db.fetch(Statement("alter", "ALTER SYSTEM SET synchronous_standby_names = 'ghost'"))
        await db.fetch(Statement("reload", "SELECT pg_reload_conf()"))
        required = Statement("required", "SELECT current_setting('synchronous_standby_names') = 'ghost' AS yes")

        async def in_force() -> bool:
            return bool((await db.fetch(required))[0]["yes"])

        await wait_until(in_force)

        async def insert_in_transaction() -> None:
            async with db.tx() as tx:
                await tx.fetch(INSERT, ids.uuid7(), 1)

        cancel = Statement("cancel", "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        for write in (insert_in_transaction(), db.fetch(INSERT, ids.uuid7(), 1)):
            task = asyncio.ensure_future(write)
            await wait_until(lambda: db.fetch(cancel))
            with pytest.raises(Refusal) as refused:
                await task
            assert refused.value.detail == {"commit": "unknown"}
        assert await count(db) == 2
        await db.close()


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


async def test_every_statement_of_a_file_is_prepared(url: str, tmp_path: Path) -> None:
    (tmp_path / "good.sql").write_text("-- name: good\n-- Fine.\nSELECT amount FROM item;\n")
    (tmp_path / "bad.sql").write_text("-- name: bad\n-- Misspelt.\nSELECT amonut FROM item;\n")
    await prepare_all(url, [Queries.load(tmp_path / "good.sql")])
    with pytest.raises(AssertionError, match="bad: column"):
        await prepare_all(url, [Queries.load(tmp_path / "bad.sql")])


async def test_a_connection_lost_as_its_transaction_begins_is_a_database_away(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncpg.transaction.Transaction.start

    async def start(self: asyncpg.transaction.Transaction) -> None:
        await begun(self)
        await lost(self._connection)

    monkeypatch.setattr(asyncpg.transaction.Transaction, "start", start)
    with pytest.raises(Refusal) as no:
        async with db.tx() as tx:
            await tx.fetch(COUNT)
    assert no.value.reason is Reason.AUTHORITY_UNREACHABLE
    monkeypatch.undo()
    assert await count(db) == 0


async def test_a_connection_lost_on_its_way_from_the_pool_is_a_database_away(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquired = asyncpg.Pool._acquire

    async def acquire(self: asyncpg.Pool, timeout: float) -> object:
        proxy = await acquired(self, timeout)
        await lost(proxy._con)
        return proxy

    monkeypatch.setattr(asyncpg.Pool, "_acquire", acquire)
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
