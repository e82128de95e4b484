"""A world of schedulers for each test."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from tests.rpc.scheduler.harness import Replica, World


@pytest.fixture
async def world(database: Callable[[str], Awaitable[str]], etcd_server: list[str], etcd_prefix: str) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        made = World(await database("scheduler"), etcd_server, etcd_prefix, stack)
        await made.open()
        yield made


@pytest.fixture
async def replica(world: World) -> Replica:
    return await world.replica()
