"""Fixtures of the relay's tests."""

from collections.abc import AsyncIterator

import pytest

from libs.pg import Database
from libs.testkit import ManualClock, SeededIds
from libs.testkit.fixtures import StackDatabase
from tests.store.outbox.stand import Stand


@pytest.fixture
async def url(stack_db: StackDatabase) -> str:
    return (await stack_db(packages={"gamma": "tests.sample_services.gamma.migrations"}))["gamma"]


@pytest.fixture
async def stand(url: str, clock: ManualClock, ids: SeededIds) -> AsyncIterator[Stand]:
    db = Database(url, name="gamma", size=4)
    await db.open()
    yield Stand(db, clock, ids)
    await db.close()
