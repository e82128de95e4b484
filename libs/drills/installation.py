"""An installation for drills: real PostgreSQL, etcd, a process per service and replica, and workers, each of which may be hurt.

Built on `libs.runtime.dev`; what is added is replicas, an etcd cluster, databases apart, and links between services that lead
elsewhere. Authoritative for which process is which. Can go wrong: a process that outlives its drill. All are children that
the kernel ends with us, and are ended by their process id.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from libs.drills.etcd import EtcdCluster
from libs.drills.history import HISTORY, Fact, History
from libs.drills.leases import read_leases
from libs.embedded import EmbeddedPostgres, dies_with_the_owner, free_port
from libs.embedded.process import wait_for
from libs.migrate import provision
from libs.runtime.dev import DevStack, HostProcess
from libs.runtime.service import SERVICES

NAMES = ("flow", "patient", "enduring", "leaf", "tree", "grove", "waits", "naps", "approved")
BOUNDED = ("eager", "eager_tree", "capped", "dear", "capped_tree", "scarce")
FLOWS = (*(f"libs.drills.flows:{name}" for name in NAMES), *(f"libs.drills.bounded:{name}" for name in BOUNDED))
ARMED = {"RUNWAY_FAULTS_ARMED": "development"}
POSTGRES = {"checkpoint_timeout": "30s", "shared_buffers": "64MB"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """The shape of an installation; equal shapes may share one."""

    replicas: tuple[tuple[str, int], ...] = (("scheduler", 2),)
    etcd_members: int = 1
    workers: int = 2
    environ: tuple[tuple[str, str], ...] = ()
    reset_lost_etcd: bool = False
    apart: str = ""
    """A service whose database is a cluster of its own."""

    def of(self, service: str) -> int:
        """Replicas of a service."""
        return dict(self.replicas).get(service, 1)


@dataclass(slots=True)
class WorkerProcess:
    """A worker, and where it writes its leases."""

    process: asyncio.subprocess.Process
    worker_id: str
    leases: Path


Wire = Callable[[str, str, str], str]
"""(service, port, address) → the address by which other services reach it."""


class Installation(DevStack):
    """The processes of one recipe."""

    def __init__(self, folder: Path, recipe: Recipe, history: History, targets: Mapping[str, object]) -> None:
        groups = [[name] for name in SERVICES for _ in range(recipe.of(name))]
        super().__init__(folder, groups, form="json")
        self.recipe = recipe
        self.history = history
        self._targets = targets
        self.postgres = EmbeddedPostgres(self.folder / "postgres", port=free_port(), settings=POSTGRES)
        self.apart: EmbeddedPostgres | None = None
        if recipe.apart:
            self.apart = EmbeddedPostgres(self.folder / "apart", port=free_port(), settings=POSTGRES)
        self.etcd = EtcdCluster(self.folder / "etcd", recipe.etcd_members)
        self.urls: dict[str, str] = {}
        self.workers: list[WorkerProcess] = []
        self.wire: Wire | None = None
        self.database_address: Callable[[str, str], str] = lambda _, url: url
        """(service, address of its database) → the address that it is given."""
        self.prefix: Callable[[HostProcess], Sequence[str]] = lambda _: ()
        """What a host's command begins with, for namespaces."""
        self.environ: dict[str, str] = {}
        """For all hosts and workers of this installation, beside the recipe's."""
        self.own: dict[int, dict[str, str]] = {}
        """Environment of single hosts, by their place in `hosts`."""
        self._started = 0

    def say(self, event: str, text: str, **facts: object) -> None:
        """Into the history."""
        self.history.note("stack", event, text=text, **{key: value for key, value in facts.items() if key != "text"})

    # -- addresses

    def hosts_of(self, service: str) -> list[HostProcess]:
        """Every replica of a service."""
        return [host for host in self.hosts if service in host.services]

    def host(self, service: str, replica: int = 0) -> HostProcess:
        """One replica."""
        return self.hosts_of(service)[replica]

    def pid(self, service: str, replica: int = 0) -> int:
        """Its process."""
        process = self.host(service, replica).process
        assert process is not None
        return process.pid

    def _target(self, service: str, port: str, *, wired: bool = False) -> str:
        addresses = [str(getattr(host, port)) for host in self.hosts_of(service)]
        if wired and self.wire is not None:
            addresses = [self.wire(service, port, address) for address in addresses]
        return addresses[0] if len(addresses) == 1 else "ipv4:" + ",".join(addresses)

    async def _servers(self) -> tuple[dict[str, str], list[str]]:
        waits = [self.postgres.start(), self.etcd.start()]
        if self.apart is not None:
            waits.append(self.apart.start())
        await asyncio.gather(*waits)
        self.urls = await provision(self.postgres.url(), SERVICES)
        if self.apart is not None:
            self.urls |= await provision(self.apart.url(), [self.recipe.apart])
        self.urls = {name: self.database_address(name, url) for name, url in self.urls.items()}
        return dict(self.urls), self.etcd.endpoints

    def _surroundings(self, urls: Mapping[str, str], endpoints: Sequence[str], secret: str) -> dict[str, str]:
        environ = super()._surroundings(urls, endpoints, secret)
        for name in SERVICES:
            upper = name.upper()
            for infix, port in (("", "public"), ("CONTROL_", "control"), ("LEAF_", "leaf")):
                environ[f"RUNWAY_{upper}_{infix}ADDRESS"] = self._target(name, port, wired=True)
        environ |= {
            "RUNWAY_SCHEDULER_RESET_LOST_ETCD": str(self.recipe.reset_lost_etcd).lower(),
            "RUNWAY_GATEWAY_HTTP_TARGETS": json.dumps(self._targets),
            "RUNWAY_GATEWAY_CALL_TIMEOUT_MS": "10000",
            "RUNWAY_LAUNCH_DEFAULT_DEADLINE_MS": "86400000",
            **ARMED,
            **dict(self.recipe.environ),
            **self.environ,
        }
        return environ

    def _command_of(self, host: HostProcess) -> Sequence[str]:
        return [*self.prefix(host), *super()._command_of(host)]

    def _environ_of(self, host: HostProcess) -> dict[str, str]:
        return super()._environ_of(host) | self.own.get(self.hosts.index(host), {})

    def profile(self, key: str) -> dict[str, object]:
        """Every replica, where there are several."""
        found = super().profile(key)
        others = [name for name in SERVICES if name != "launch"]
        return found | {
            "address": self._target("launch", "public"),
            "control_address": self._target("launch", "control"),
            "services": {name: self._target(name, "public") for name in others},
            "control_services": {name: self._target(name, "control") for name in others},
        }

    # -- life

    async def begin(self) -> None:
        """Everything, and the workers."""
        await self.start()
        for _ in range(self.recipe.workers):
            await self.start_worker()

    async def start_worker(self, slots: int = 8) -> WorkerProcess:
        """One more worker process."""
        self._started += 1
        name = f"worker-{self._started}"
        leases = self.folder / f"leases-{name}"
        command = [sys.executable, "-m", "runway_sdk.serve", *FLOWS, "--worker-id", name, "--slots", str(slots)]
        command += ["--profile", str(self.folder / "profile.json"), "--record-leases", str(leases)]
        with (self.folder / "workers.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **ARMED, HISTORY: str(self.history.path), **self.environ},
                start_new_session=True,
                preexec_fn=dies_with_the_owner(signal.SIGKILL),
            )
        worker = WorkerProcess(process, name, leases)
        self.workers.append(worker)
        return worker

    async def replace_worker(self, place: int) -> None:
        """A new worker in the place of one that ended."""
        await self.workers[place].process.wait()
        await self.start_worker()

    async def stop(self) -> None:
        """Workers, hosts, etcd, PostgreSQL."""
        await asyncio.gather(*(self._stop_worker(worker) for worker in self.workers))
        await super().stop()
        await self.etcd.stop()
        for server in (self.apart, self.postgres):
            if server is not None:
                await server.stop()

    async def _stop_worker(self, worker: WorkerProcess) -> None:
        if worker.process.returncode is None:
            with suppress(ProcessLookupError):
                worker.process.send_signal(signal.SIGCONT)
                worker.process.terminate()
            try:
                await asyncio.wait_for(worker.process.wait(), 10)
            except TimeoutError:
                worker.process.kill()
                await worker.process.wait()

    async def back(self, service: str, gone: int, replica: int = 0, timeout_s: float = 60.0) -> None:
        """Waits until a host that was killed serves again."""
        host = self.host(service, replica)

        def serves() -> bool:
            return host.process is not None and host.process.pid != gone and host.ready.is_set()

        if not await wait_for(serves, timeout_s):
            raise TimeoutError(f"{service} is not back after {timeout_s:.0f} s")

    def log_of(self, service: str) -> str:
        """What a service's processes have logged."""
        path = self.folder / f"{service}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def leases(self) -> list[Fact]:
        """What workers were granted, as facts."""
        return [fact for worker in self.workers for fact in read_leases(worker.leases)]
