"""A database of one table for the tests of `libs.pg`."""

from collections.abc import AsyncIterator

import pytest

from libs.pg import Database
from libs.testkit.fixtures import StackDatabase


@pytest.fixture
async def url(stack_db: StackDatabase) -> str:
    return (await stack_db(packages={"alpha": "tests.sample_services.alpha.migrations"}))["alpha"]


@pytest.fixture
async def db(url: str) -> AsyncIterator[Database]:
    database = Database(url, name="alpha-test", size=4, counter=3)
    await database.open()
    yield database
    await database.close()
