"""A whole installation as child processes, and the means to end some of them at a named moment.

Authoritative for nothing. Can go wrong: a child outlives its test. Everything started here is ended here, by its process id;
where we are killed ourselves, the kernel ends it (on Linux).
"""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from runway_sdk.client import Client
from runway_sdk.connection import Target, read_profile
from runway_sdk.testing.boundaries import CATALOGUE

_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.01
"""How often it is looked whether a boundary has struck: it is a file that goes."""
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _dies_with_us(number: signal.Signals) -> Callable[[], None]:
    """For `preexec_fn`: the kernel sends the child this signal when the thread that started it ends, however it ends."""
    owner = os.getpid()

    def arrange() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, int(number))
            if os.getppid() != owner:
                os._exit(1)

    return arrange


def _drills(charges: Path, action: Mapping[str, str], *, of_worker: bool) -> dict[str, str]:
    """The environment that arms the boundaries of workers, or those of services."""
    faults = ",".join(
        f"{found.point}={action.get(name, found.action)}@{charges / name}"
        for name, found in CATALOGUE.items()
        if found.of_worker is of_worker
    )
    return {"RUNWAY_FAULTS_ARMED": "development", "RUNWAY_FAULTS": faults}


class StackError(Exception):
    """The installation, or a process of it, did not do what a test needs."""


class WorkerProcess:
    """A worker in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, worker_id: str, leases: Path) -> None:
        self.process = process
        self.worker_id = worker_id
        self._leases = leases

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.returncode is None

    def leases(self) -> list[dict[str, Any]]:
        """Every lease that it was granted: step_key, attempt_id, lease_epoch, token (base64)."""
        return [json.loads(line) for line in self._leases.read_text().splitlines()] if self._leases.exists() else []

    async def kill(self) -> None:
        """SIGKILL, and waits for its end."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    def resume(self) -> None:
        """SIGCONT, after a fault that paused it."""
        self.process.send_signal(signal.SIGCONT)

    async def stop(self) -> None:
        """SIGTERM: drains; killed after ten seconds."""
        if not self.running:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), 10)
        except TimeoutError:
            await self.kill()


class Stack:
    """An installation in a folder, with the gateway in a process of its own so that it can die alone."""

    def __init__(self, folder: Path, process: asyncio.subprocess.Process, drills: Mapping[str, str]) -> None:
        self.folder = folder
        self._process = process
        self._drills = drills
        self._pids: dict[str, int] = {}
        self._changed = asyncio.Condition()
        self._events: list[dict[str, Any]] = []
        self._reading = asyncio.create_task(self._read())
        self._workers: list[WorkerProcess] = []
        self.target: Target
        self.client: Client

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        folder: Path,
        *,
        apart: Sequence[str] = ("gateway",),
        environ: Mapping[str, str] | None = None,
        strikes: Mapping[str, str] | None = None,
        armed: bool = True,
        timeout_s: float = 90.0,
    ) -> AsyncIterator["Stack"]:
        """Starts an installation and stops it afterwards.

        `strikes` says what an armed boundary does: kill (the default) or pause, where a test wants to look before it kills.
        `armed=False` leaves the boundaries out, and workers record no leases: for measurements.
        """
        folder = Path(os.path.abspath(folder))  # noqa: ASYNC240  (no I/O)
        charges = folder / "charges"
        await asyncio.to_thread(charges.mkdir, parents=True, exist_ok=True)
        action = dict(strikes or {})
        drills = _drills(charges, action, of_worker=False) if armed else {}
        worker_drills = _drills(charges, action, of_worker=True) if armed else {}
        errors = (folder / "stack.log").open("ab")
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "libs.runtime",
                "dev",
                "--data",
                str(folder / "data"),
                "--split",
                ",".join(apart),
                "--output",
                "json",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(environ or {}), **drills},
                start_new_session=True,
                preexec_fn=_dies_with_us(signal.SIGTERM),
            )
        finally:
            errors.close()
        stack = cls(folder, process, worker_drills)
        try:
            await stack._until(
                lambda: any(event["event"] in ("ready", "failed") for event in stack._events), timeout_s, "ready"
            )
            failed = next((event for event in stack._events if event["event"] == "failed"), None)
            if failed:
                raise StackError(f"the installation did not start: {failed.get('error')}")
            stack.target = read_profile(folder / "data" / "profile.json")
            stack.client = Client(stack.target)
            try:
                yield stack
            finally:
                await stack.client.close()
        finally:
            await stack._stop()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            event = json.loads(line)
            async with self._changed:
                self._events.append(event)
                if event["event"] == "host":
                    self._pids.update(dict.fromkeys(event["services"], event["pid"]))
                self._changed.notify_all()
        async with self._changed:
            self._events.append({"event": "failed", "error": f"it ended; see {self.folder / 'stack.log'}"})
            self._changed.notify_all()

    async def _until(self, holds: Any, timeout_s: float, what: str) -> None:
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(holds)
        except TimeoutError:
            raise StackError(f"not {what} within {timeout_s} s") from None

    def pid(self, service: str) -> int:
        """The process that hosts a service now."""
        return self._pids[service]

    def arm(self, boundary: str, *, step: str = "", nth: int = 1) -> None:
        """The next time the boundary is reached (by this step; for the nth time) it strikes; once."""
        if boundary not in CATALOGUE:
            raise StackError(f"{boundary!r} is none of {', '.join(CATALOGUE)}")
        if step and not CATALOGUE[boundary].knows_step:
            raise StackError(f"{boundary} is of no one step")
        charge = self.folder / "charges" / boundary
        Path(f"{charge}.struck").unlink(missing_ok=True)
        made = Path(f"{charge}.made")
        made.write_text(json.dumps({"step": step, "nth": nth}))
        made.rename(charge)

    def disarm(self, boundary: str) -> bool:
        """Takes back an arming; False where it has struck already."""
        try:
            (self.folder / "charges" / boundary).unlink()
        except FileNotFoundError:
            return False
        return True

    def armed(self, boundary: str) -> bool:
        """Whether it has been armed and has not struck."""
        return (self.folder / "charges" / boundary).exists()

    def struck_where(self, boundary: str) -> tuple[str, str]:
        """Step and slot at which the boundary struck; empty where it is of none."""
        note = Path(f"{self.folder / 'charges' / boundary}.struck")
        found = json.loads(note.read_text()) if note.exists() else {}
        return found.get("step", ""), found.get("slot", "")

    async def struck(self, boundary: str, timeout_s: float = 60.0) -> None:
        """Waits until an armed boundary has struck."""
        end = asyncio.get_running_loop().time() + timeout_s
        while self.armed(boundary):
            if asyncio.get_running_loop().time() > end:
                raise StackError(f"{boundary} was not reached within {timeout_s} s")
            await asyncio.sleep(_LOOK_S)

    async def kill(self, service: str) -> int:
        """SIGKILL for the process that hosts a service; the process id that is gone."""
        pid = self._pids[service]
        os.kill(pid, signal.SIGKILL)
        return pid

    def resume(self, service: str) -> None:
        """SIGCONT for the process that hosts a service, after a boundary that pauses."""
        os.kill(self._pids[service], signal.SIGCONT)

    async def back(self, service: str, gone: int, timeout_s: float = 60.0) -> int:
        """Waits until a service that was killed is hosted by a new process; its process id."""
        await self._until(lambda: self._pids.get(service) != gone, timeout_s, f"back: {service}")
        return self._pids[service]

    async def start_worker(
        self, workflow: str, *, worker_id: str, slots: int = 4, resources: Mapping[str, int] | None = None
    ) -> WorkerProcess:
        """A worker process for `module:name`; ended with the stack."""
        leases = self.folder / f"leases-{worker_id}"
        leases.touch(mode=0o600)
        errors = (self.folder / "workers.log").open("ab")
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "runway_sdk.serve",
                workflow,
                "--worker-id",
                worker_id,
                "--slots",
                str(slots),
                *(f"--resource={name}={amount}" for name, amount in (resources or {}).items()),
                "--profile",
                str(self.folder / "data" / "profile.json"),
                *(("--record-leases", str(leases)) if self._drills else ()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env={**os.environ, **self._drills},
                start_new_session=True,
                preexec_fn=_dies_with_us(signal.SIGKILL),
            )
        finally:
            errors.close()
        worker = WorkerProcess(process, worker_id, leases)
        self._workers.append(worker)
        return worker

    @asynccontextmanager
    async def worker(
        self, workflow: str, *, worker_id: str = "worker", slots: int = 4, resources: Mapping[str, int] | None = None
    ) -> AsyncIterator[WorkerProcess]:
        """A worker process while the block lasts."""
        started = await self.start_worker(workflow, worker_id=worker_id, slots=slots, resources=resources)
        try:
            yield started
        finally:
            await started.stop()

    async def _stop(self) -> None:
        await asyncio.gather(*(worker.stop() for worker in self._workers))
        for worker in self._workers:
            worker._leases.unlink(missing_ok=True)
        if self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), 40)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        await asyncio.gather(self._reading, return_exceptions=True)
