"""A real PostgreSQL with the tables of a point; each test has a database of its own."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from libs.fence.store import SCHEMA_SQL
from libs.pg import Database
from libs.testkit.databases import with_database
from tests.store.fence.harness import PROTECTED, Point


@pytest.fixture
async def point(postgres_server: tuple[str, Path]) -> AsyncIterator[Point]:
    admin_url, name = postgres_server[0], f"point_{uuid4().hex[:16]}"
    keeper = await asyncpg.connect(admin_url)
    await keeper.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    url = with_database(admin_url, name)
    hand = await asyncpg.connect(url)
    await hand.execute(SCHEMA_SQL + ";" + PROTECTED)
    db = Database(url, name="point", size=16)
    await db.open()
    made = Point(db, hand, url)
    yield made
    await made.end()
    await db.close()
    await hand.close()
    await keeper.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await keeper.close()
