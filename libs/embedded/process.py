"""Authoritative for how a server child starts, becomes ready, and ends: never later than the process that owns it.

Can go wrong: the owner is killed. The kernel then sends the child its stop signal (`PR_SET_PDEATHSIG`), and a file lock that
died with the owner tells the next owner that the folder is free. The death signal belongs to the *thread* that started
the child, so children are started on the caller's thread, never in an executor.
"""

import asyncio
import ctypes
import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

POLL_S = 0.02
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class EmbeddedError(RuntimeError):
    """A server of ours could not be found, started or stopped; the message says what to do."""


_LOWEST_PORT = 15_000
_given: set[int] = set()
"""Ports that this process was given and may not have bound yet."""


def _ephemeral_from() -> int:
    """Where the ports begin that the kernel lends to outgoing connections."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768


def free_port() -> int:
    """A loopback port that is free now, below those that the kernel lends to outgoing connections: a server that is started
    again finds its port. Somebody else may still take it first: callers try again."""
    highest = _ephemeral_from()
    for _ in range(200):
        port = _LOWEST_PORT + secrets.randbelow(max(1, highest - _LOWEST_PORT))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            if port not in _given:
                _given.add(port)
                return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def dies_with_the_owner(number: signal.Signals) -> Callable[[], None]:
    """For `preexec_fn`: the kernel sends the child this signal when the thread that starts it ends, however it ends."""
    owner = os.getpid()

    def arrange() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, int(number))
            if os.getppid() != owner:  # it died between fork and here
                os._exit(1)

    return arrange


class FolderLock:
    """Says that this process owns a server's folder. The kernel drops it when the process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def take(self) -> None:
        """Owns the folder, or says at once that somebody else does."""
        if self._file is not None:
            return
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise EmbeddedError(
                f"another process runs the server in {self._path.parent}: stop it or choose another folder"
            ) from None
        self._file = file

    def drop(self) -> None:
        """Gives the folder back."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class Child:
    """A server process, started on the caller's thread and stopped by it."""

    def __init__(self, name: str, log: Path, stop_signal: signal.Signals) -> None:
        self.name = name
        self._log = log
        self._stop_signal = stop_signal
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self.running and self._process is not None else None

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._process is not None and self._process.poll() is None

    def spawn(self, command: Sequence[str], env: Mapping[str, str], account: Mapping[str, Any]) -> None:
        """Starts the process in its own session, with standard output and errors in the log."""
        with self._log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True,
                preexec_fn=dies_with_the_owner(self._stop_signal), env=dict(env), **account,
            )  # fmt: skip

    def said(self) -> str:
        """The end of what it has logged since it was started."""
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")[-2000:]

    def send(self, number: int) -> None:
        """Sends it a signal, when it runs."""
        if self._process is not None and self.running:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Ends it at once, as a crash would; its descendants notice by themselves."""
        self.send(signal.SIGKILL)
        self.reap()

    def reap(self) -> None:
        """Waits for an ended process."""
        if self._process is not None:
            self._process.wait(30)

    def escalation(self) -> tuple[signal.Signals, ...]:
        """Signals that end it, from polite to certain."""
        return (self._stop_signal, signal.SIGQUIT, signal.SIGKILL)


async def stop_child(child: Child, patience_s: float) -> None:
    """Stops a child without holding up the event loop."""
    for number in child.escalation():
        child.send(number)
        if await wait_for(lambda: not child.running, patience_s):
            break
    child.reap()


def stop_child_sync(child: Child, patience_s: float) -> None:
    """Stops a child from synchronous code."""
    for number in child.escalation():
        child.send(number)
        if wait_for_sync(lambda: not child.running, patience_s):
            break
    child.reap()


async def wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether a condition came true in time; looks 50 times a second."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(POLL_S)
    return True


def wait_for_sync(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether a condition came true in time, for synchronous code."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)  # between two looks; the condition is a process or a port, which nobody signals
    return True
