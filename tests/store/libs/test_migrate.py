"""Roles, schemas and versions on real PostgreSQL."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from libs.embedded import EmbeddedPostgres
from libs.migrate import migrate, pending, provision
from libs.migrate.__main__ import migrated_services, run
from libs.testkit.databases import with_database
from libs.testkit.fixtures import StackDatabase

PACKAGES = {name: f"tests.sample_services.{name}.migrations" for name in ("alpha", "beta")}


async def ask(url: str, question: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(question)
    finally:
        await connection.close()


async def test_each_service_sees_its_own_schema_and_no_other(stack_db: StackDatabase) -> None:
    urls = await stack_db(packages=PACKAGES)
    assert await ask(urls["alpha"], "SELECT current_schema()") == "alpha"
    assert await ask(urls["alpha"], "SELECT count(*) FROM item") == 0
    for forbidden in ("SELECT count(*) FROM beta.item", "CREATE TABLE beta.mine (a int)", "CREATE TABLE public.mine (a int)"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await ask(urls["alpha"], forbidden)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await ask(urls["alpha"], "SET ROLE runway_beta")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await ask(urls["alpha"], "CREATE ROLE another")


async def test_versions_are_kept_in_the_schema_and_run_once(stack_db: StackDatabase) -> None:
    urls = await stack_db(packages=PACKAGES)
    assert await ask(urls["alpha"], "SELECT version_num FROM alpha.alembic_version") == "0002"
    assert await ask(urls["beta"], "SELECT version_num FROM beta.alembic_version") == "0001"
    with pytest.raises(asyncpg.RaiseError, match="negative"):
        await ask(urls["alpha"], f"INSERT INTO item VALUES ('{uuid4()}', -1)")
    assert await migrate(urls["alpha"], PACKAGES["alpha"]) == "0002"
    assert not await pending(urls["alpha"], PACKAGES["alpha"])


async def test_two_processes_that_migrate_at_once_do_it_once(
    postgres_server: tuple[str, Path], stack_db: StackDatabase
) -> None:
    urls = await stack_db(packages={"alpha": PACKAGES["alpha"]})
    await ask(urls["alpha"], "DROP TABLE item CASCADE")
    await ask(urls["alpha"], "DROP FUNCTION refuse_negative")
    await ask(urls["alpha"], "DROP TABLE alembic_version")
    assert await pending(urls["alpha"], PACKAGES["alpha"])
    assert await asyncio.gather(*(migrate(urls["alpha"], PACKAGES["alpha"]) for _ in range(3))) == ["0002"] * 3


async def test_a_version_that_fails_undoes_the_whole_upgrade(
    stack_db: StackDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = tmp_path / "broken_sample_migrations" / "versions"
    versions.mkdir(parents=True)
    script = (
        "from libs.migrate import run_script\nrevision, down_revision = {0!r}, {1!r}\ndef upgrade():\n    run_script({2!r})\n"
    )
    (versions / "1.py").write_text(script.format("1", None, "CREATE TABLE half (a int)"))
    (versions / "2.py").write_text(script.format("2", "1", "SELECT nonsense"))
    monkeypatch.syspath_prepend(tmp_path)
    urls = await stack_db(packages={"beta": PACKAGES["beta"]})
    await ask(urls["beta"], "DROP TABLE alembic_version")
    with pytest.raises(Exception, match="nonsense"):
        await migrate(urls["beta"], "broken_sample_migrations")
    assert await ask(urls["beta"], "SELECT to_regclass('half')") is None
    assert await ask(urls["beta"], "SELECT to_regclass('alembic_version')") is None


async def test_provisioning_again_gives_the_same_addresses(postgres_server: tuple[str, Path], stack_db: StackDatabase) -> None:
    urls = await stack_db(packages=PACKAGES)
    admin = with_database(postgres_server[0], urls["alpha"].rpartition("/")[2])
    assert await provision(admin, list(PACKAGES)) == urls
    with pytest.raises(ValueError, match="no password"):
        await provision("postgresql://postgres@127.0.0.1/x", ["alpha"])


async def test_an_administrator_who_is_no_superuser_can_provision(short_folder: Path) -> None:
    async with EmbeddedPostgres(short_folder / "pg", settings={"fsync": "off"}) as server:
        await ask(server.url(), "CREATE ROLE keeper LOGIN CREATEROLE PASSWORD 'k'")
        await ask(server.url(), "CREATE DATABASE kept OWNER keeper")
        admin = f"postgresql://keeper:k@127.0.0.1:{server.port}/kept"
        urls = await provision(admin, ["alpha"])
        assert await provision(admin, ["alpha"]) == urls
        assert await migrate(urls["alpha"], PACKAGES["alpha"]) == "0002"


async def test_clones_do_not_see_each_other_and_may_be_separate(stack_db: StackDatabase) -> None:
    first, second = await asyncio.gather(stack_db(packages=PACKAGES), stack_db(packages=PACKAGES, separate=True))
    await ask(first["beta"], f"INSERT INTO item VALUES ('{uuid4()}', 1)")
    assert await ask(first["beta"], "SELECT count(*) FROM item") == 1
    assert await ask(second["beta"], "SELECT count(*) FROM item") == 0
    assert second["alpha"].rpartition("/")[2] != second["beta"].rpartition("/")[2]


async def test_the_command_finds_services_and_says_what_is_missing(
    stack_db: StackDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert migrated_services("tests.sample_services") == ["alpha", "beta", "gamma"]
    monkeypatch.delenv("RUNWAY_DATABASE_ADMIN_URL", raising=False)
    monkeypatch.delenv("RUNWAY_BETA_DATABASE_URL", raising=False)
    with pytest.raises(SystemExit, match="set RUNWAY_BETA_DATABASE_URL or RUNWAY_DATABASE_ADMIN_URL"):
        await asyncio.to_thread(run, ["beta"], "tests.sample_services")
    urls = await stack_db(packages=PACKAGES)
    await ask(urls["beta"], "DROP TABLE item CASCADE")
    await ask(urls["beta"], "DROP FUNCTION refuse_negative")
    await ask(urls["beta"], "DROP TABLE alembic_version")
    monkeypatch.setenv("RUNWAY_BETA_DATABASE_URL", urls["beta"])
    await asyncio.to_thread(run, ["beta"], "tests.sample_services")
    assert await ask(urls["beta"], "SELECT count(*) FROM item") == 0


def test_the_command_refuses_a_service_that_is_not_there() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "libs.migrate", "nobody"], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": "."},
    )  # fmt: skip
    assert done.returncode == 2
    assert "invalid choice" in done.stderr
