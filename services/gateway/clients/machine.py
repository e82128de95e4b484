"""This machine, as Linux tells it: which it is, which boot, which processes run. Implements `ports.Machine`.

Can go wrong: a machine that cannot say who it is, or one image on many machines. The host's name is part of its id, and
without /proc nothing is ever proved.
"""

import os
from pathlib import Path
from uuid import UUID

from libs.kernel.ids import digest
from services.gateway.domain.process import PidState, ProcessIdentity, proved_dead

_CORPSE = "ZX"


class LinuxMachine:
    """Reads /proc."""

    def __init__(self, host_id: str = "", proc: Path = Path("/proc"), machine_id: Path = Path("/etc/machine-id")) -> None:
        self._proc = proc
        self._host = _host(host_id, machine_id)
        self._boot = _text(proc / "sys/kernel/random/boot_id")
        self._me: ProcessIdentity | None = None

    def me(self, process: UUID) -> ProcessIdentity:
        """This process."""
        if self._me is None or self._me.process != process:
            pid = os.getpid()
            try:
                space = str((self._proc / "self/ns/pid").readlink())
            except OSError:
                space = ""
            self._me = ProcessIdentity(process, self._host, self._boot, space, pid, self.pid_state(pid).start or 0)
        return self._me

    def dead(self, other: ProcessIdentity, me: ProcessIdentity) -> bool:
        """Whether another process is proved dead."""
        return proved_dead(other, me, self.pid_state(other.pid))

    def pid_state(self, pid: int) -> PidState:
        """What runs under a pid now."""
        try:
            text = (self._proc / str(pid) / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return PidState(None)
        except OSError:
            return PidState(0)
        fields = text.rpartition(")")[2].split()
        return PidState(int(fields[19]), fields[0] in _CORPSE)


def _host(host_id: str, machine_id: Path) -> str:
    known = host_id or _text(machine_id)
    return digest(f"{known}\0{'' if host_id else os.uname().nodename}".encode()).hex() if known else ""


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
