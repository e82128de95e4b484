"""The gateway's migrated database; each test has one of its own."""

from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from libs.pg import Database
from tests.store.gateway.harness import Ledger


@pytest.fixture
async def ledger(database: Callable[[str], Awaitable[str]]) -> AsyncIterator[Ledger]:
    url = await database("gateway")
    hand = await asyncpg.connect(url)
    db = Database(url, name="gateway", size=18)
    await db.open()
    made = Ledger(db, hand, url)
    yield made
    await made.end()
    await db.close()
    await hand.close()
