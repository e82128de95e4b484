"""etcd that answers with something else than that it is away: an alarm, and no reason to give up what is led."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from libs.authority import Board, EtcdClient
from libs.authority.state import value_of
from libs.testkit.waiting import wait_until
from tests.store.authority.test_shard_elections import ALL, Field, LoopClock, field_

__all__ = ["field_"]
WORDS = "etcd answers what nobody foresaw"


def odd() -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.RESOURCE_EXHAUSTED, nothing, nothing, details="mvcc: database space exceeded")


def refusing(call: Callable[..., Any], times: int, on: Callable[..., bool]) -> tuple[Callable[..., Any], list[int]]:
    """The call, which refuses so often where it is one of these."""
    refused: list[int] = []

    async def asked(*arguments: Any, **named: Any) -> Any:
        if len(refused) < times and on(*arguments):
            refused.append(1)
            raise odd()
        return await call(*arguments, **named)

    return asked, refused


@pytest.mark.requirement("sched.authority")
async def test_a_list_that_is_refused_after_a_broken_watch_is_asked_for_again(
    etcd_server: list[str], etcd_prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = EtcdClient(etcd_server, LoopClock())
    board, seen = Board(client, etcd_prefix), list[int]()
    watch = client.watch

    async def breaks(*arguments: Any, **named: Any) -> AsyncIterator[Any]:
        async for events in watch(*arguments, **named):
            yield events
            return

    asked, refused = refusing(client.prefix, 3, lambda _: board.synced)
    monkeypatch.setattr(client, "watch", breaks)
    monkeypatch.setattr(client, "prefix", asked)
    running = asyncio.create_task(board.run())
    try:
        await wait_until(lambda: board.synced, what="a board")
        for shard in range(2):
            await client.put(board.shard_key(shard), value_of("one", "one:1"))
            await wait_until(lambda: len(board.leaders) > len(seen), what="a board that goes on")
            seen.append(shard)
        await client.put(board.member_key("one"), value_of("one", "one:1"))
        assert {name: member.address for name, member in (await board.named()).items()} == {"one": "one:1"}
        assert (running.done(), sum(refused), caplog.text.count(WORDS)) == (False, 3, 3)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await client.close()


@pytest.mark.requirement("sched.authority")
async def test_a_shard_that_etcd_refuses_to_one_that_leads_costs_it_none_of_the_others(
    field_: Field, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = field_.join("one")
    await wait_until(lambda: one.shards == ALL)
    client, key = one.client, one.elections.board.shard_key(7)
    asked, refused = refusing(client.txn, 2, lambda compare, *_: compare[0].key == key)
    monkeypatch.setattr(client, "txn", asked)
    await client.delete(key)
    await wait_until(lambda: len(refused) == 2 and one.shards == ALL, what="all shards again")
    assert one.lost == [([7], "its key was taken or deleted")]
    assert WORDS in caplog.text
