"""Authoritative for one PostgreSQL server in one folder: made once, kept across runs, ended with its owner.

It listens on loopback and a socket in its folder, asks for a password (scram), and runs with the settings that durability
needs. Can go wrong: the last owner was killed and its postmaster still shuts down (waited for, then told again), or left a
`postmaster.pid` whose number another program has by now (removed). Crash recovery is PostgreSQL's own.
"""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from libs.embedded.account import Account, choose_account
from libs.embedded.binaries import postgres_binaries
from libs.embedded.process import EmbeddedError, wait_for_sync
from libs.embedded.server import EmbeddedServer

SETTINGS: Mapping[str, str] = {
    "fsync": "on",
    "synchronous_commit": "on",
    "wal_level": "replica",
    "max_connections": "300",
    "listen_addresses": "127.0.0.1",
    "logging_collector": "off",
    "timezone": "UTC",
}
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
_LONGEST_SOCKET_PATH = 107 - len("/.s.PGSQL.65535")
"""What is left of the kernel's limit for the folder, in bytes."""


PASSWORD_FILE = "superuser.pw"  # noqa: S105 - the name of a file


def running_url(folder: Path) -> str:
    """The superuser's address of a server that some process runs in this folder, for whoever looks on: benchmarks, tests."""
    port = (folder / "data" / "postmaster.pid").read_text().splitlines()[3].strip()
    return f"postgresql://postgres:{(folder / PASSWORD_FILE).read_text().strip()}@127.0.0.1:{port}/postgres"


class EmbeddedPostgres(EmbeddedServer):
    """A PostgreSQL server that belongs to this process. `port=0` takes a free one.

    `standby_of`: a running server that it is copied from and follows until it is promoted, over `upstream_port` where that is
    not the server's own (a proxy).
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int = 0,
        settings: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        standby_of: "EmbeddedPostgres | None" = None,
        upstream_port: int = 0,
    ) -> None:
        super().__init__("PostgreSQL", folder, "postgres.log", signal.SIGINT, port, timeout_s)
        self._settings = {**SETTINGS, **(settings or {})}
        self._data = self.folder / "data"
        self._password_file = self.folder / PASSWORD_FILE
        self._bin = Path()
        self._account = Account(0, 0)
        self._socket_folder = self.folder / "sock"
        self._primary = standby_of
        self._upstream_port = upstream_port

    @property
    def socket_folder(self) -> Path:
        """Where the Unix socket is."""
        return self._socket_folder

    def url(self, database: str = "postgres") -> str:
        """The superuser's address of a database, over loopback."""
        return f"postgresql://postgres:{self._password()}@127.0.0.1:{self.port}/{quote(database)}"

    def socket_url(self, database: str = "postgres") -> str:
        """The superuser's address of a database, over the socket."""
        host = quote(str(self._socket_folder), safe="")
        return f"postgresql://postgres:{self._password()}@/{quote(database)}?host={host}&port={self.port}"

    def _password(self) -> str:
        return self._password_file.read_text().strip()

    def _prepare(self) -> None:
        """Everything before the server: account, cluster, leftovers of the last owner."""
        if os.geteuid() == 0:
            self.folder.chmod(0o711)  # the account that we drop to passes through, and sees nothing
        self._bin = postgres_binaries()
        self._account = choose_account(self._bin / "postgres", self.folder)
        self._make_socket_folder()
        self._make_cluster()
        self._clear_leftovers()

    def _make_socket_folder(self) -> None:
        if len(os.fsencode(self.folder / "sock")) > _LONGEST_SOCKET_PATH:
            given = tempfile.gettempdir()
            base = given if len(os.fsencode(given)) + len("/runway-sock-12345678") <= _LONGEST_SOCKET_PATH else "/tmp"  # noqa: S108
            self._socket_folder = Path(tempfile.mkdtemp(prefix="runway-sock-", dir=base))
        self._socket_folder.mkdir(exist_ok=True)
        self._socket_folder.chmod(0o700)
        self._account.own(self._socket_folder)

    def _clean_up(self) -> None:
        if self._socket_folder.parent != self.folder:
            shutil.rmtree(self._socket_folder, ignore_errors=True)

    def _make_cluster(self) -> None:
        """Runs `initdb` beside its final place, so that one that was interrupted is never taken for a cluster."""
        if self._data.exists():
            self._check_major()
            self._account.own(self._data)
            return
        fresh = self.folder / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        self._password_file.write_text(self._primary._password() if self._primary else secrets.token_urlsafe(24))
        self._password_file.chmod(0o600)
        for path in (fresh, self._password_file):
            self._account.own(path)
        if self._primary is not None:
            self._copy(self._primary, fresh)
            return
        command = [
            *self._account.prefix, str(self._bin / "initdb"), "-D", str(fresh), "-U", "postgres", "--auth=scram-sha-256",
            f"--pwfile={self._password_file}", "-E", "UTF8", "--locale=C", "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
        ]  # fmt: skip
        if self._settings["fsync"] == "off":
            command.append("--no-sync")
        self._run(command)
        fresh.rename(self._data)

    def _copy(self, primary: "EmbeddedPostgres", fresh: Path) -> None:
        """A base backup that goes on following the primary, streamed."""
        self._run(
            [
                *self._account.prefix, str(self._bin / "pg_basebackup"), "-h", "127.0.0.1", "-p", str(primary.port),
                "-U", "postgres", "-D", str(fresh), "-X", "stream", "-c", "fast", "-R",
            ],
            {"PGPASSWORD": self._password()},
        )  # fmt: skip
        upstream = f"host=127.0.0.1 port={self._upstream_port or primary.port} user=postgres password={self._password()}"
        with (fresh / "postgresql.auto.conf").open("a") as file:
            file.write(f"\nprimary_conninfo = '{upstream} application_name=standby'\n")
        fresh.rename(self._data)

    def _run(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """One of PostgreSQL's programs, to its end."""
        done = subprocess.run(
            list(command), capture_output=True, text=True, cwd="/", env={**_ENVIRONMENT, **(environment or {})},
            check=False, **self._account.arguments,
        )  # fmt: skip
        if done.returncode != 0:
            program = Path(command[len(self._account.prefix)]).name
            raise EmbeddedError(f"{program} failed; it said:\n{done.stdout}{done.stderr}")

    def promote(self) -> None:
        """A standby becomes a primary, on a timeline of its own."""
        self._run([*self._account.prefix, str(self._bin / "pg_ctl"), "promote", "-D", str(self._data), "-w", "-t", "60"])

    def configure(self, name: str, value: str) -> None:
        """Sets one parameter of the running server."""
        with (self._data / "postgresql.auto.conf").open("a") as file:
            file.write(f"{name} = '{value}'\n")
        self._child.send(signal.SIGHUP)

    def _check_major(self) -> None:
        ours = subprocess.run([str(self._bin / "postgres"), "--version"], capture_output=True, text=True, check=True).stdout
        major = ours.split()[-1].split(".")[0]
        theirs = (self._data / "PG_VERSION").read_text().strip()
        if major != theirs:
            raise EmbeddedError(f"{self._data} was made by PostgreSQL {theirs}, the binaries are {major}: dump and load it")

    def _clear_leftovers(self) -> None:
        """We hold the folder's lock, so whatever still runs in it is an orphan and about to end."""
        pid = self._recorded_pid()
        if pid is None:
            return
        for number in (None, signal.SIGINT, signal.SIGQUIT):
            if number is not None and pid in self._processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if wait_for_sync(lambda: not self._processes(), 10):
                break
        else:
            raise EmbeddedError(f"the PostgreSQL of an earlier run ({self._processes()}) does not end: end it by hand")
        if _alive(pid):  # the number belongs to another program by now, which PostgreSQL would take for a postmaster
            (self._data / "postmaster.pid").unlink(missing_ok=True)

    def _recorded_pid(self) -> int | None:
        try:
            return int((self._data / "postmaster.pid").read_text().splitlines()[0])
        except (OSError, ValueError, IndexError):
            return None

    def _processes(self) -> list[int]:
        """Processes that work in the data folder: a postmaster and its children, which outlive a killed one by a moment."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (entry / "cwd").readlink() == self._data:
                    found.append(int(entry.name))
        return found

    def _spawn(self) -> None:
        settings = {**self._settings, "port": str(self.port), "unix_socket_directories": str(self._socket_folder)}
        command = [*self._account.prefix, str(self._bin / "postgres"), "-D", str(self._data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        self._child.spawn(command, _ENVIRONMENT, self._account.arguments)

    def _ready(self) -> bool:
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[0] == str(self._child.pid) and lines[7].strip() in ("ready", "standby")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
