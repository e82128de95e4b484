"""Transactions against a real PostgreSQL: what is committed, what is undone, what is tried again."""

import asyncio
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest

from libs.kernel.refusal import Reason, Refusal
from libs.pg import Database, Queries, Statement, Tx
from libs.testkit import SeededIds
from libs.testkit.databases import prepare_all
from tests.store.libs.pg_statements import ADD, COUNT, INSERT, LOCK, SHOW, count


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


async def test_a_deadlock_is_tried_again_once(db: Database, ids: SeededIds) -> None:
    first, second = ids.uuid7(), ids.uuid7()
    for item in (first, second):
        await db.fetch(INSERT, item, 0)
    both_hold, one_is_through = asyncio.Barrier(2), asyncio.Event()
    tries = 0

    async def cross(one: UUID, other: UUID) -> None:
        waited = False

        async def work(tx: Tx) -> None:
            nonlocal tries, waited
            tries += 1
            if waited:
                await one_is_through.wait()  # or its second try might take the lock before whoever waits for it wakes
            await tx.fetch(LOCK, one)
            if not waited:
                waited = True
                await both_hold.wait()
            await tx.fetch(ADD, other)

        await db.run(work)
        one_is_through.set()

    await asyncio.gather(cross(first, second), cross(second, first))
    assert tries == 3


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


async def test_every_statement_of_a_file_is_prepared(url: str, tmp_path: Path) -> None:
    (tmp_path / "good.sql").write_text("-- name: good\n-- Fine.\nSELECT amount FROM item;\n")
    (tmp_path / "bad.sql").write_text("-- name: bad\n-- Misspelt.\nSELECT amonut FROM item;\n")
    await prepare_all(url, [Queries.load(tmp_path / "good.sql")])
    with pytest.raises(AssertionError, match="bad: column"):
        await prepare_all(url, [Queries.load(tmp_path / "bad.sql")])
