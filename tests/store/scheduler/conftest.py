"""A scheduler's database for each test."""

from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from libs.testkit.clocks import ManualClock
from libs.testkit.ids import SeededIds
from tests.store.scheduler.harness import Field, Leader


@pytest.fixture
async def field_(database: Callable[[str], Awaitable[str]], clock: ManualClock, ids: SeededIds) -> AsyncIterator[Field]:
    url = await database("scheduler")
    hand = await asyncpg.connect(url)
    made = Field(url, hand, clock, ids)
    yield made
    await made.end()
    await hand.close()


@pytest.fixture
async def one(field_: Field) -> Leader:
    """A leader of every shard."""
    leader = await field_.leader()
    assert len(await leader.lead(5)) == 64
    return leader
