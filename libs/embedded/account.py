"""Authoritative for which account runs PostgreSQL, which refuses to run as root.

Root drops to an ordinary account where that account can reach the binaries and the folder. Where it cannot (an environment
under a closed home), a user namespace in which root looks like an ordinary user keeps root's access to files.
Can go wrong: neither is possible, for example a container without user namespaces and without accounts.
"""

import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from libs.embedded.process import EmbeddedError

USER_SETTING = "RUNWAY_PG_USER"
_ACCOUNTS = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    """How to run a program so that it is not root: a prefix of the command, or arguments of `subprocess`."""

    uid: int
    gid: int
    prefix: tuple[str, ...] = ()
    arguments: dict[str, Any] = field(default_factory=dict)

    def own(self, path: Path) -> None:
        """Gives a file, or a folder and all in it, to the account; only root can and needs to."""
        if os.geteuid() != 0 or not path.exists() or (path.stat().st_uid, path.stat().st_gid) == (self.uid, self.gid):
            return
        for folder, _, files in os.walk(path):
            os.chown(folder, self.uid, self.gid)
            for name in files:
                os.chown(Path(folder) / name, self.uid, self.gid, follow_symlinks=False)
        os.chown(path, self.uid, self.gid)


def choose_account(binary: Path, folder: Path) -> Account:
    """The account under which `binary` can run on files in `folder`."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid())
    for entry in _ordinary_accounts():
        arguments = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        if _works(["sh", "-c", '"$0" --version && test -x "$1"', str(binary), str(folder)], arguments):
            return Account(entry.pw_uid, entry.pw_gid, (), arguments)
    prefix = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
    if shutil.which("unshare") and _works([*prefix, str(binary), "--version"], {}):
        return Account(0, 0, prefix)
    raise EmbeddedError(
        f"PostgreSQL does not run as root, no ordinary account can reach {binary} and {folder}, and user namespaces are not "
        f"available: run as an ordinary user, name an account in {USER_SETTING}, or set RUNWAY_<SERVICE>_DATABASE_URL"
    )


def _ordinary_accounts() -> list[pwd.struct_passwd]:
    found = []
    for name in (os.environ.get(USER_SETTING), *_ACCOUNTS):
        try:
            entry = pwd.getpwnam(name) if name else None
        except KeyError:
            continue
        if entry is not None and entry.pw_uid != 0:
            found.append(entry)
    return found


def _works(command: Sequence[str], arguments: dict[str, Any]) -> bool:
    try:
        done = subprocess.run(list(command), capture_output=True, cwd="/", timeout=30, check=False, **arguments)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0
