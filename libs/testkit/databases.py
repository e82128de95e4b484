"""Databases of tests: one migrated template for each set of services, cloned for each test in some 30 ms.

Authoritative for isolation between tests. Can go wrong: somebody is still connected to a template (cloning fails); nothing
here keeps a connection to one.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg

from libs.migrate import migrate, provision
from libs.migrate.provision import service_urls
from libs.pg import Queries, Statement
from libs.testkit.servers import exclusive

_sql = Queries.load(Path(__file__).parent / "sql" / "databases.sql")


def with_database(url: str, database: str) -> str:
    """The same server, another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


class TemplatedDatabases:
    """Makes databases on one server for one test process."""

    def __init__(self, admin_url: str, folder: Path) -> None:
        self._admin_url = admin_url
        self._folder = folder
        self._templates: set[str] = set()

    async def create(self, packages: dict[str, str]) -> tuple[str, dict[str, str]]:
        """A fresh database with the services' schemas, by service the package of its migrations: (name, address by service)."""
        template = await self._template(packages)
        name = f"test_{uuid4().hex[:16]}"
        await self._administer(_sql.create_database, name, template)
        return name, service_urls(with_database(self._admin_url, name), list(packages))

    async def drop(self, names: Iterable[str]) -> None:
        """Ends connections to the databases and drops them."""
        for name in names:
            await self._administer(_sql.drop_database, name)

    async def _template(self, packages: dict[str, str]) -> str:
        key = ",".join(f"{service}={package}" for service, package in sorted(packages.items()))
        name = "template_" + hashlib.sha256(key.encode()).hexdigest()[:16]
        if name in self._templates:
            return name
        async with exclusive(self._folder, "template"):
            if not await self._administer(_sql.database_exists, name):
                await self._make_template(name, packages)
        self._templates.add(name)
        return name

    async def _make_template(self, name: str, packages: dict[str, str]) -> None:
        draft = f"{name}_draft"  # renamed when whole, so that a failed migration is not taken for a template
        await self._administer(_sql.drop_database, draft)
        await self._administer(_sql.create_database, draft, "template0")
        urls = await provision(with_database(self._admin_url, draft), list(packages))
        for service, package in packages.items():
            await migrate(urls[service], package)
        await self._administer(_sql.rename_database, draft, name)

    async def _administer(self, question: Statement, *names: str) -> list[asyncpg.Record]:
        """Runs what a query answers: databases are made outside transactions and their names cannot be arguments."""
        connection = await asyncpg.connect(self._admin_url)
        try:
            rows = await connection.fetch(question.sql, *names)
            for row in rows:
                if "sql" in row:
                    await connection.execute(row["sql"])
            return rows
        finally:
            await connection.close()


async def prepare_all(url: str, files: Sequence[Queries]) -> None:
    """Has the database prepare every statement of the files: a misspelt column fails here, not in production."""
    connection = await asyncpg.connect(url)
    try:
        for queries in files:
            for statement in queries:
                try:
                    await connection.prepare(statement.sql)
                except asyncpg.PostgresError as problem:
                    raise AssertionError(f"{queries!r}: {statement.name}: {problem}") from problem
    finally:
        await connection.close()
