"""A real PostgreSQL with the tables of a point; each test has a database of its own."""

import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from libs.embedded import EmbeddedPostgres
from libs.fence.store import SCHEMA_SQL
from libs.pg import Database
from tests.store.fence.harness import PROTECTED, Point


@pytest.fixture(scope="session")
async def postgres() -> AsyncIterator[EmbeddedPostgres]:
    folder = Path(tempfile.mkdtemp(prefix="runway-fence-"))
    async with EmbeddedPostgres(folder) as server:
        hand = await asyncpg.connect(server.url())
        await hand.execute("CREATE DATABASE point_template")
        inside = await asyncpg.connect(server.url("point_template"))
        await inside.execute(SCHEMA_SQL + ";" + PROTECTED)
        await inside.close()
        await hand.close()
        yield server
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def point(postgres: EmbeddedPostgres) -> AsyncIterator[Point]:
    keeper = await asyncpg.connect(postgres.url())
    await keeper.execute("CREATE DATABASE point TEMPLATE point_template")
    hand = await asyncpg.connect(postgres.url("point"))
    db = Database(postgres.url("point"), name="point", size=12)
    await db.open()
    made = Point(db, hand)
    yield made
    await made.end()
    await db.close()
    await hand.close()
    await keeper.execute("DROP DATABASE point WITH (FORCE)")
    await keeper.close()
