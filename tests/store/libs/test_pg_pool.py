"""Who has which connection, against a real PostgreSQL: turns, cancelled turns, broken ones, and the end of all."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from libs.kernel.refusal import Reason, Refusal
from libs.pg import Database, Statement
from libs.pg.pool import Pool
from libs.pg.session import Connection
from libs.testkit import SeededIds
from tests.store.libs.pg_statements import COUNT, INSERT, count


@pytest.fixture
async def pool(url: str) -> AsyncIterator[Pool]:
    async def connect() -> Connection:
        made: Connection = await asyncpg.connect(url, connection_class=Connection)
        return made

    made = Pool(connect, size=2, timeout_s=5)
    yield made
    made.terminate()


async def turns(count: int = 3) -> None:
    """What was made ready goes on."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_one_used_last_is_taken_first_and_no_more_are_opened_than_are_wanted(pool: Pool) -> None:
    assert pool.take_now() is None
    one, two = await pool.take(), await pool.take()
    pool.give(one)
    pool.give(two)
    assert (pool.take_now(), await pool.take()) == (two, one)
    assert pool.take_now() is None


async def test_who_came_first_is_handed_what_is_given_back_and_who_gave_up_is_passed_over(pool: Pool) -> None:
    one, _ = await pool.take(), await pool.take()
    places = [asyncio.create_task(pool.take()) for _ in range(3)]
    await turns()
    places[0].cancel()
    await turns()
    pool.give(one)
    assert pool.take_now() is None, "it is on its way to whoever waited"
    assert await places[1] is one
    pool.give(one)
    assert await places[2] is one


async def test_who_is_cancelled_as_it_is_handed_one_hands_it_on(pool: Pool) -> None:
    one, _ = await pool.take(), await pool.take()
    places = [asyncio.create_task(pool.take()) for _ in range(2)]
    await turns()
    pool.give(one)
    places[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await places[0]
    async with asyncio.timeout(5):
        assert await places[1] is one


async def test_what_broke_is_never_handed_out_and_makes_room(pool: Pool) -> None:
    one, two = await pool.take(), await pool.take()
    pool.give(one)
    one.terminate()
    three = await pool.take()
    assert three not in (one, two)
    place = asyncio.create_task(pool.take())
    await turns()
    two.terminate()
    pool.give(two)
    assert (await place).is_closed() is False


async def test_a_taker_waits_no_longer_than_it_may_and_leaves_its_place(url: str) -> None:
    async def connect() -> Connection:
        made: Connection = await asyncpg.connect(url, connection_class=Connection)
        return made

    pool = Pool(connect, size=1, timeout_s=0.05)
    one = await pool.take()
    with pytest.raises(TimeoutError):
        await pool.take()
    pool.give(one)
    assert pool.take_now() is one
    pool.give(one)
    await pool.close()


async def test_a_connection_that_cannot_be_opened_takes_no_room(url: str) -> None:
    refuses = [True, True]

    async def connect() -> Connection:
        if refuses:
            refuses.pop()
            raise ConnectionRefusedError
        made: Connection = await asyncpg.connect(url, connection_class=Connection)
        return made

    pool = Pool(connect, size=1, timeout_s=5)
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            await pool.take()
    pool.give(await pool.take())
    await pool.close()


async def test_none_of_an_older_generation_is_used_again(pool: Pool) -> None:
    one, two = await pool.take(), await pool.take()
    pool.give(one)
    pool.expire()
    assert one.is_closed()
    assert not two.is_closed(), "its user goes on to its end"
    pool.give(two)
    assert two.is_closed()
    three = await pool.take()
    pool.give(three)
    assert pool.take_now() is three


async def test_the_end_waits_for_those_that_are_lent_and_tells_those_that_wait(pool: Pool) -> None:
    one, two = await pool.take(), await pool.take()
    place = asyncio.create_task(pool.take())
    await turns()
    ending = asyncio.create_task(pool.close())
    with pytest.raises(asyncpg.InterfaceError):
        await place
    pool.give(one)
    await turns()
    assert not ending.done()
    pool.give(two)
    async with asyncio.timeout(5):
        await ending
    assert one.is_closed()
    assert two.is_closed()


async def test_many_who_are_cancelled_at_any_moment_lose_no_connection(url: str, ids: SeededIds) -> None:
    db = Database(url, name="alpha", size=2)
    await db.open()
    doze = Statement("doze", "SELECT pg_sleep(0.003)")

    async def work() -> None:
        async with db.tx() as tx:
            await tx.fetch(doze)

    for place in range(60):
        tasks = [asyncio.create_task(work() if number % 2 else db.fetch(doze)) for number in range(6)]  # type: ignore[arg-type]
        for number, task in enumerate(tasks):
            await turns(place % 7 + number)
            if number % 3 == place % 3:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    async with db.tx() as first, db.tx() as second:
        await first.fetch(COUNT)
        await second.fetch(COUNT)
    await db.fetch(INSERT, ids.uuid7(), 1)
    assert await count(db) == 1
    await db.close()


async def test_an_error_that_was_passed_over_is_no_commit(db: Database, ids: SeededIds) -> None:
    same = ids.uuid7()

    async def careless() -> None:
        async with db.tx() as tx:
            await tx.fetch(INSERT, same, 1)
            try:
                await tx.fetch(INSERT, same, 2)
            except asyncpg.UniqueViolationError:
                return

    with pytest.raises(RuntimeError, match="the server undid everything"):
        await careless()
    assert await count(db) == 0


async def test_a_closed_database_is_away(db: Database) -> None:
    await db.close()
    with pytest.raises(Refusal) as refused:
        async with db.tx():
            pass
    assert refused.value.reason is Reason.AUTHORITY_UNREACHABLE
