"""Runs that are forgotten take along what only they name, whoever names it at the same moment."""

import asyncio
import hashlib
from uuid import UUID

import asyncpg
import pytest

from services.checkpoint.app.commit_checkpoints import commit_checkpoints, seal
from services.checkpoint.app.store_chunks import put_chunks
from services.checkpoint.app.sweep_chunks import sweep_chunks
from services.checkpoint.domain.values import Committed
from tests.store.checkpoint.conftest import GRACE_MS, Room

OLD, OTHER, YOUNG = UUID(int=1), UUID(int=2), UUID(int=9)
BEFORE = UUID(int=5)
TABLES = ("checkpoint", "step_head", "chunk_run", "run_gate")


async def there(room: Room, data: bytes) -> bool:
    return not await room.chunks.missing("acme", [hashlib.sha256(data).digest()])


async def committed(room: Room, run: UUID, *data: bytes) -> None:
    """A run with a checkpoint for each of these, in steps of their own."""
    await room.gate(run=run)
    await put_chunks(room.ports, "acme", data)
    await named(room, run, *data)


async def named(room: Room, run: UUID, *data: bytes) -> None:
    """All in one transaction."""
    asks = [room.ask(item, holder=room.holder(f"step {number}", run=run)) for number, item in enumerate(data)]
    done = await commit_checkpoints(room.ports, [await seal(room.ports, ask) for ask in asks])
    assert all(isinstance(item, Committed) for item in done)


async def close(room: Room, *runs: UUID) -> None:
    await room.hand.execute("UPDATE run_gate SET epoch = epoch + 1, mode = 2 WHERE run_id = ANY ($1)", list(runs))


async def runs_in(room: Room, table: str) -> set[UUID]:
    return {row["run_id"] for row in await room.hand.fetch(f"SELECT run_id FROM {table}")}


@pytest.mark.requirement("cp.exact")
async def test_a_forgotten_run_takes_its_checkpoints_and_the_chunks_that_only_it_names(room: Room) -> None:
    for run, data in ((OLD, (b"own", b"shared")), (OTHER, (b"open",)), (YOUNG, (b"shared", b"young"))):
        await committed(room, run, *data)
    await close(room, OLD, YOUNG)
    room.clock.advance(GRACE_MS + 1)
    assert await room.ports.rows.forget_runs(BEFORE, 500) == 1
    for table in TABLES:
        assert await runs_in(room, table) == {OTHER, YOUNG}, "one is open, one is young"
    assert await sweep_chunks(room.ports) == 0, "who was told that a chunk is there has the grace period"
    room.clock.advance(GRACE_MS + 1)
    assert await sweep_chunks(room.ports) == 1
    kept = [await there(room, data) for data in (b"own", b"shared", b"open", b"young")]
    assert kept == [False, True, True, True]
    assert await room.ports.rows.forget_runs(UUID(int=10), 500) == 1
    room.clock.advance(GRACE_MS + 1)
    assert await sweep_chunks(room.ports) == 2
    assert [await there(room, data) for data in (b"shared", b"open", b"young")] == [False, True, False]
    assert await room.ports.rows.forget_runs(UUID(int=10), 500) == 0


async def test_many_runs_are_forgotten_as_many_as_are_asked_for(room: Room) -> None:
    for number in range(50):
        await room.gate(run=UUID(int=100 + number))
    await close(room, *(UUID(int=100 + number) for number in range(50)))
    assert [await room.ports.rows.forget_runs(UUID(int=1000), most) for most in (45, 500, 500)] == [45, 5, 0]


@pytest.mark.requirement("cp.exact")
async def test_a_run_that_names_a_chunk_while_another_that_names_it_is_forgotten_keeps_it(room: Room) -> None:
    """Who is forgotten waits for the lock of who names: it must judge by what is there once it has it."""
    await committed(room, OLD, b"shared")
    await close(room, OLD)
    await room.gate(run=YOUNG)
    digest = hashlib.sha256(b"shared").digest()
    naming = await asyncpg.connect(room.url)
    try:
        work = naming.transaction()
        await work.start()
        await naming.execute("UPDATE chunk SET named = true WHERE tenant = 'acme' AND digest = $1", digest)
        await naming.execute("INSERT INTO chunk_run (tenant, digest, run_id) VALUES ('acme', $1, $2)", digest, YOUNG)
        forgetting = asyncio.ensure_future(room.ports.rows.forget_runs(BEFORE, 500))
        await waiting_for_a_lock(room)
        await work.commit()
        assert await forgetting == 1
    finally:
        await naming.close()
    room.clock.advance(GRACE_MS + 1)
    assert await sweep_chunks(room.ports) == 0
    assert await there(room, b"shared")


async def test_naming_and_forgetting_at_the_same_moment_never_lose_bytes(room: Room) -> None:
    for number in range(25):
        data, run, other = f"data {number}".encode(), UUID(int=10 + number), UUID(int=1000 + number)
        await committed(room, run, data)
        await close(room, run)
        await room.gate(run=other)
        await asyncio.gather(room.ports.rows.forget_runs(UUID(int=900), 500), named(room, other, data))
        room.clock.advance(GRACE_MS + 1)
        assert await sweep_chunks(room.ports) == 0
        assert await there(room, data)


async def test_chunks_of_before_runs_were_counted_stay(room: Room) -> None:
    await committed(room, OLD, b"before")
    await room.hand.execute("DELETE FROM chunk_run")
    await room.hand.execute("UPDATE chunk SET counted = false")
    await committed(room, OTHER, b"before")
    await close(room, OLD, OTHER)
    assert await room.ports.rows.forget_runs(BEFORE, 500) == 2
    room.clock.advance(GRACE_MS + 1)
    assert await sweep_chunks(room.ports) == 0
    assert await there(room, b"before")


async def waiting_for_a_lock(room: Room) -> None:
    text = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(10):
        while not await room.hand.fetchval(text):
            await asyncio.sleep(0)
