"""pytest fixtures, loaded by `tests/conftest.py`. One PostgreSQL and one etcd for all workers of a run.

Authoritative for what a test may ask for. Servers start when first used; `RUNWAY_TEST_DATABASE_ADMIN_URL` and
`RUNWAY_ETCD_ENDPOINTS` replace them. Durability is off in the shared server (`fsync`), since no test pulls its plug: a test of
crashes starts its own.
"""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import pytest

from libs.embedded import EmbeddedEtcd, EmbeddedPostgres
from libs.testkit.clocks import ManualClock
from libs.testkit.databases import TemplatedDatabases
from libs.testkit.ids import SeededIds
from libs.testkit.servers import run_folder, shared_server

ADMIN_SETTING = "RUNWAY_TEST_DATABASE_ADMIN_URL"
ETCD_SETTING = "RUNWAY_ETCD_ENDPOINTS"


class StackDatabase(Protocol):
    """`await stack_db(["launch", "scheduler"])`: addresses by service of a fresh database, dropped after the test."""

    async def __call__(
        self, services: Sequence[str] = (), *, packages: Mapping[str, str] | None = None, separate: bool = False
    ) -> dict[str, str]:
        """`packages` names migrations elsewhere than `services.<service>.migrations`; `separate`: a database each."""
        ...


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[tuple[str, Path]]:
    """The administrator's address of the run's PostgreSQL, and the folder that its users share."""
    external = os.environ.get(ADMIN_SETTING)
    if external:
        with run_folder("pg") as folder:
            yield external, folder
        return

    def start(folder: Path) -> tuple[str, Callable[[], None]]:
        settings = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "on", "max_connections": "300"}
        server = EmbeddedPostgres(folder / "server", settings=settings)
        server.start_sync()
        return server.url(), server.stop_sync

    with shared_server("pg", start) as (address, folder):
        yield address, folder


@pytest.fixture(scope="session")
def etcd_server() -> Iterator[list[str]]:
    """Endpoints of the run's etcd. Take `etcd_prefix` too: keys of tests must not meet."""
    external = os.environ.get(ETCD_SETTING)
    if external:
        yield external.split(",")
        return

    def start(folder: Path) -> tuple[str, Callable[[], None]]:
        server = EmbeddedEtcd(folder / "server", fsync=False)
        server.start_sync()
        return ",".join(server.endpoints), server.stop_sync

    with shared_server("etcd", start) as (address, _):
        yield address.split(",")


@pytest.fixture
def etcd_prefix() -> str:
    """A key prefix of this test alone."""
    return f"/test/{uuid4().hex}/"


@pytest.fixture(scope="session")
def templated_databases(postgres_server: tuple[str, Path]) -> TemplatedDatabases:
    """Makes databases on the run's PostgreSQL."""
    return TemplatedDatabases(*postgres_server)


@pytest.fixture
async def stack_db(templated_databases: TemplatedDatabases) -> AsyncIterator[StackDatabase]:
    """Makes migrated databases for this test."""
    made: list[str] = []

    async def make(
        services: Sequence[str] = (), *, packages: Mapping[str, str] | None = None, separate: bool = False
    ) -> dict[str, str]:
        wanted = {service: f"services.{service}.migrations" for service in services} | dict(packages or {})
        groups = [{service: package} for service, package in wanted.items()] if separate else [wanted]
        urls: dict[str, str] = {}
        for group in groups:
            name, addresses = await templated_databases.create(group)
            made.append(name)
            urls |= addresses
        return urls

    yield make
    await templated_databases.drop(made)


@pytest.fixture
def database(stack_db: StackDatabase) -> Callable[[str], Awaitable[str]]:
    """`await database("launch")`: the address of one migrated service."""

    async def make(service: str) -> str:
        return (await stack_db([service]))[service]

    return make


@pytest.fixture
def clock() -> ManualClock:
    """A clock that the test moves."""
    return ManualClock()


@pytest.fixture
def ids(clock: ManualClock) -> SeededIds:
    """Ids that are the same in every run."""
    return SeededIds(clock=clock)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder for a server of this test alone: a short path (sockets), open to ordinary accounts (PostgreSQL is not root)."""
    path = Path(tempfile.mkdtemp(prefix="runway-test-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)
