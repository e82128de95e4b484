"""The sweep takes what nothing names, and nothing else, whoever stores or names at the same moment."""

import asyncio
import hashlib

import pytest

from libs.kernel.refusal import Reason, Refusal
from services.checkpoint.app.commit_checkpoints import commit_checkpoints, seal
from services.checkpoint.app.store_chunks import missing_chunks, put_chunks
from services.checkpoint.app.sweep_chunks import ABANDONED_MS, sweep_chunks
from services.checkpoint.domain.values import Committed
from tests.store.checkpoint.conftest import GRACE_MS, Room


def name(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


async def there(room: Room, data: bytes) -> bool:
    return not await room.chunks.missing("acme", [name(data)])


@pytest.mark.requirement("cp.exact")
async def test_what_nothing_names_goes_after_the_grace_period_and_what_is_named_stays(room: Room) -> None:
    await room.gate()
    await put_chunks(room.ports, "acme", [b"named", b"forgotten"])
    await commit_checkpoints(room.ports, [await seal(room.ports, room.ask(b"named"))])
    room.clock.advance(GRACE_MS - 1)
    assert await sweep_chunks(room.ports) == 0
    room.clock.advance(2)
    await put_chunks(room.ports, "acme", [b"young"])
    assert await sweep_chunks(room.ports) == 1
    assert [await there(room, data) for data in (b"named", b"forgotten", b"young")] == [True, False, True]
    assert await room.count("chunk") == 2
    room.clock.advance(10 * GRACE_MS)
    assert await sweep_chunks(room.ports) == 1
    assert await there(room, b"named")


async def test_who_was_told_that_a_chunk_is_there_has_the_grace_period(room: Room) -> None:
    await room.gate()
    await put_chunks(room.ports, "acme", [b"old"])
    room.clock.advance(GRACE_MS - 1)
    assert await missing_chunks(room.ports, "acme", [name(b"old")]) == []
    room.clock.advance(GRACE_MS - 1)
    assert await sweep_chunks(room.ports) == 0
    [done] = await commit_checkpoints(room.ports, [await seal(room.ports, room.ask(b"old"))])
    assert isinstance(done, Committed)


@pytest.mark.requirement("cp.exact")
async def test_a_chunk_that_a_sweep_has_taken_is_missing_and_not_stored_until_it_is_gone(room: Room) -> None:
    await room.gate()
    await put_chunks(room.ports, "acme", [b"old"])
    sealed = await seal(room.ports, room.ask(b"old"))
    room.clock.advance(GRACE_MS + 1)
    taken, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        taken.set()
        await go_on.wait()

    room.chunks.before_delete = hold
    sweeping = asyncio.ensure_future(sweep_chunks(room.ports))
    await taken.wait()
    [no] = await commit_checkpoints(room.ports, [sealed])
    assert isinstance(no, Refusal)
    assert no.reason is Reason.CONTENT_MISSING, "its bytes are about to go"
    assert await missing_chunks(room.ports, "acme", [name(b"old")]) == [name(b"old")]
    with pytest.raises(Refusal) as later:
        await put_chunks(room.ports, "acme", [b"old"])
    assert later.value.reason is Reason.AUTHORITY_UNREACHABLE
    go_on.set()
    assert await sweeping == 1
    await put_chunks(room.ports, "acme", [b"old"])
    [done] = await commit_checkpoints(room.ports, [sealed])
    assert isinstance(done, Committed)
    assert await there(room, b"old")


async def test_a_commit_and_a_sweep_at_the_same_moment_never_lose_bytes(room: Room) -> None:
    await room.gate()
    for number in range(25):
        data = f"data {number}".encode()
        await put_chunks(room.ports, "acme", [data])
        sealed = await seal(room.ports, room.ask(data, holder=room.holder(f"step {number}")))
        room.clock.advance(GRACE_MS + 1)
        [done], _ = await asyncio.gather(commit_checkpoints(room.ports, [sealed]), sweep_chunks(room.ports))
        assert isinstance(done, Committed) == await there(room, data)


async def test_a_sweep_that_was_given_up_is_taken_over(room: Room) -> None:
    await put_chunks(room.ports, "acme", [b"old"])
    room.clock.advance(GRACE_MS + 1)
    stuck, never = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        stuck.set()
        await never.wait()

    room.chunks.before_delete = hang
    sweeping = asyncio.ensure_future(sweep_chunks(room.ports))
    await stuck.wait()
    sweeping.cancel()
    await asyncio.gather(sweeping, return_exceptions=True)
    room.chunks.before_delete = None
    assert await sweep_chunks(room.ports) == 0
    room.clock.advance(ABANDONED_MS + 1)
    assert await sweep_chunks(room.ports) == 1
    assert not await there(room, b"old")


async def test_a_sweep_that_was_paused_stops_before_another_may_take_over(room: Room) -> None:
    for number in range(60):
        await put_chunks(room.ports, "acme", [f"{number}".encode()])
    room.clock.advance(GRACE_MS + 1)

    async def pause() -> None:
        room.clock.advance(ABANDONED_MS)

    room.chunks.before_delete = pause
    assert await sweep_chunks(room.ports) == 50
    assert await room.count("chunk") == 10
