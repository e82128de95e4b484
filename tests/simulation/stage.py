"""Where seeds run: a PostgreSQL of their own, a template, and a child process for each seed.

Each child is forked from a parent that has imported everything and opened nothing, so a seed costs no start, and whatever it
replaces ends with it. Can go wrong: a child that hangs. It has a limit of real time, and is then ended by its process id.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import asyncpg

from libs.embedded import EmbeddedPostgres
from libs.migrate.provision import service_urls
from libs.runtime.service import SERVICES
from libs.telemetry.logs import configure_logs
from libs.testkit.databases import TemplatedDatabases, with_database
from tests.simulation import mutants
from tests.simulation.gate import SQL
from tests.simulation.run import Size, Verdict, simulate

SERVER = {
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "deadlock_timeout": "1h",
    "max_connections": "200",
    "log_min_messages": "fatal",
}
PACKAGES = {service: f"services.{service}.migrations" for service in SERVICES}
SEED_LIMIT_S = 300.0


class Stage:
    """Runs seeds, one after the other."""

    def __init__(self, admin_url: str, folder: Path) -> None:
        self._admin_url = admin_url
        self._folder = folder
        self._databases = TemplatedDatabases(admin_url, folder)

    def run(
        self,
        seed: int,
        size: Size,
        *,
        mutant: str = "",
        day: str = "",
        echo: bool = False,
        limit_s: float = SEED_LIMIT_S,
    ) -> Verdict:
        """One seed, or a directed day of it, in a child process."""
        name, _ = asyncio.run(self._databases.create(PACKAGES))
        answer = self._folder / f"verdict-{name}.json"
        try:
            child = os.fork()
            if child == 0:
                self._child(seed, name, answer, size, mutant, day, echo)
            status = _wait(child, limit_s)
            if status != 0 or not answer.exists():
                return Verdict(seed, [f"the simulation ended with status {status}"])
            return Verdict(**json.loads(answer.read_text()))
        finally:
            answer.unlink(missing_ok=True)
            asyncio.run(self._clear(name))

    async def _clear(self, database: str) -> None:
        """Drops a database; server processes that a simulation left stopped go on first."""
        connection = await asyncpg.connect(self._admin_url)
        try:
            for row in await connection.fetch(SQL.sessions.sql, database):
                with suppress(ProcessLookupError):
                    os.kill(row["pid"], signal.SIGCONT)
        finally:
            await connection.close()
        await self._databases.drop([database])

    def _child(self, seed: int, database: str, answer: Path, size: Size, mutant: str, day: str, echo: bool) -> None:
        status = 1
        try:
            configure_logs(level="INFO" if os.environ.get("SIMULATION_LOGS") else "CRITICAL", form="console")
            url = with_database(self._admin_url, database)
            mutants.apply(mutant)
            verdict = simulate(seed, url, service_urls(url, list(SERVICES)), size, day, echo)
            answer.write_text(json.dumps(verdict.plain()))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


def _wait(child: int, limit_s: float) -> int:
    """The child's exit status; ended when it takes too long."""
    end = time.monotonic() + limit_s
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -1
        time.sleep(0.01)


@contextmanager
def stage() -> Iterator[Stage]:
    """A server of its own while the block lasts."""
    folder = Path(tempfile.mkdtemp(prefix="runway-sim-"))
    folder.chmod(0o711)
    server = EmbeddedPostgres(folder / "server", settings=SERVER)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server and the folder end with us
    try:
        server.start_sync()
        yield Stage(server.url(), folder)
    finally:
        server.stop_sync()
        shutil.rmtree(folder, ignore_errors=True)


def fixed_hashing() -> None:
    """Starts this program again with hashes that do not depend on the process, where it was started without."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
