"""Authoritative for a schema's version: Alembic's order of versions, run in one transaction under one lock.

Can go wrong: the versions fork (Alembic says so and nothing runs), or a statement fails (everything is undone).
"""

import importlib.util
from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from libs.migrate.provision import _sql
from libs.pg.session import driver_url


async def migrate(url: str, package: str) -> str:
    """Brings the schema that `url`'s role works in to the newest version of `package` (`services.launch.migrations`)."""
    script = _script(package)
    head = script.get_current_head()
    if head is None:
        raise ValueError(f"{package} has no versions")
    engine = _engine(url)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(_upgrade, script)
    finally:
        await engine.dispose()
    return head


async def pending(url: str, package: str) -> bool:
    """Whether the schema is behind the package's newest version."""
    engine = _engine(url)
    try:
        async with engine.connect() as connection:
            current = await connection.run_sync(lambda sync: MigrationContext.configure(sync).get_current_revision())
    finally:
        await engine.dispose()
    return bool(current != _script(package).get_current_head())


def _engine(url: str) -> Any:
    return create_async_engine(driver_url(url).replace("postgresql://", "postgresql+asyncpg://", 1), poolclass=NullPool)


def _script(package: str) -> ScriptDirectory:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"{package} is not a package of migrations")
    folder = Path(next(iter(spec.submodule_search_locations)))
    return ScriptDirectory(str(folder), version_locations=[str(folder / "versions")])


def _upgrade(connection: Connection, script: ScriptDirectory) -> None:
    connection.exec_driver_sql(_sql.lock_migrations.sql)  # first, so that whoever waits then reads the version that won

    def steps(revision: Any, context: Any) -> Any:
        return script._upgrade_revs("head", revision)

    with EnvironmentContext(Config(), script, fn=steps, destination_rev="head") as environment:
        environment.configure(connection=connection, target_metadata=None)
        environment.run_migrations()
