"""The installation: which processes there are, how each is composed, killed, paused and started again.

Every service is a process of its own here, some are two, and each reaches the others over the network only.
"""

import asyncio
import json
import os
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import SecretStr
from runway.launch.v1 import admin_service_pb2, admin_service_pb2_grpc
from runway_sdk.connection import Target
from runway_sdk.worker import Worker
from runway_sdk.workflow import Workflow

from libs.rpc.channels import open_channel
from libs.runtime.host import Host
from libs.runtime.settings import HostSettings
from tests.simulation import gate as sql
from tests.simulation import pool, seeded, wire
from tests.simulation.bounds import MODEL
from tests.simulation.etcd import ADDRESS, EtcdChannel, EtcdServer
from tests.simulation.history import History
from tests.simulation.loop import DEAD, PAUSED, Process, VirtualLoop
from tests.simulation.network import Network, Weather
from tests.simulation.petitions import WORKFLOWS
from tests.simulation.provider import BASE, SETTLE_S, Provider
from tests.simulation.workload import Callers

REPLICAS = {"launch": 1, "readiness": 1, "scheduler": 2, "gateway": 2, "checkpoint": 1, "reconciler": 1}
WORKERS = 3
REVIEWERS = ("reviewer", "second")
IN_FORCE_S = 1.5
"""After so long every gateway and scheduler knows a bucket."""
SECRET = "the-secret-of-a-simulation"
PORTS = ("public", "control", "leaf")
TARGETS = {
    "plain": {"base_url": BASE},
    "known": {
        "base_url": BASE,
        "lookup_path": "/known/keys/{key}",
        "lookup_authoritative": True,
    },
    "keyed": {
        "base_url": BASE,
        "lookup_path": "/keyed/keys/{key}",
        "lookup_authoritative": True,
    },
}
MODELS = {MODEL: {"base_url": f"{BASE}/model", "model": MODEL, "price_micros_per_1k_output": 1_000}}
SETTINGS = {
    "RUNWAY_SCHEDULER_RESET_LOST_ETCD": "true",
    "RUNWAY_SCHEDULER_EXPIRY_INTERVAL_MS": "500",
    "RUNWAY_SCHEDULER_NOTICE_INTERVAL_MS": "500",
    "RUNWAY_SCHEDULER_POOL_SIZE": "4",
    "RUNWAY_READINESS_RETRY_POLL_MS": "300",
    "RUNWAY_LAUNCH_EXPIRE_INTERVAL_MS": "2000",
    "RUNWAY_LAUNCH_WATCH_POLL_MS": "1000",
    "RUNWAY_RECONCILER_POLL_INTERVAL_MS": "1000",
    "RUNWAY_RECONCILER_WORKERS": "1",
    "RUNWAY_RECONCILER_SWEEP_INTERVAL_MS": "10000",
    "RUNWAY_RECONCILER_SWEEP_OLDER_THAN_MS": "3000",
    "RUNWAY_RECONCILER_LONGEST_BACKOFF_MS": "5000",
    "RUNWAY_GATEWAY_ADOPT_INTERVAL_MS": "2000",
    "RUNWAY_GATEWAY_CALL_TIMEOUT_MS": "4000",
    "RUNWAY_GATEWAY_MODEL_TIMEOUT_MS": "4000",
    "RUNWAY_GATEWAY_CONNECT_TIMEOUT_MS": "1000",
}
"""Slower polls than the defaults, so that a virtual second costs few statements; nothing here changes what is decided."""


@dataclass
class Member:
    """A place in the installation and the process that fills it now."""

    name: str
    service: str
    number: int
    process: Process | None = None
    host: Host | None = None
    clock: seeded.SkewedClock | None = None
    worker: Worker | None = None
    starting: asyncio.Task[Any] | None = None
    deaths: int = 0
    jumped_ms: int = 0
    """How far its machine's clock is off."""
    furthest_ms: int = 0
    """The most that it ever was."""

    def jump(self, by_ms: int) -> None:
        """Its machine's clock is set."""
        self.jumped_ms += by_ms
        self.furthest_ms = max(self.furthest_ms, self.jumped_ms)
        if self.clock is not None:
            self.clock.jumped_ms = self.jumped_ms


@dataclass
class World:
    """See the module."""

    loop: VirtualLoop
    seed: int
    urls: dict[str, str]
    history: History
    network: Network = field(init=False)
    gate: sql.Gate = field(init=False)
    etcd: EtcdServer = field(init=False)
    provider: Provider = field(init=False)
    callers: Callers = field(init=False)
    members: dict[str, Member] = field(default_factory=dict)
    processes: dict[int, Process] = field(default_factory=dict)
    leases: dict[tuple[str, str, int], tuple[bytes, str]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    api_key: str = ""
    reviewer_keys: dict[str, str] = field(default_factory=dict)
    bucket: tuple[int, int] = (0, 0)
    """Capacity and flow in a minute of the model's bucket; nothing: it has none."""
    workflows: tuple[Workflow, ...] = WORKFLOWS

    undisturbed: bool = False
    """Whether nothing but a directed day's own fault comes between processes."""

    def __post_init__(self) -> None:
        self.provider = Provider(self.loop, self._chance("provider"), self.history)
        seeded.install(self.loop, self.seed, self.provider, self.processes.get)
        self.network = Network(self.loop, self._chance("network"), self.history)
        self.etcd = EtcdServer(self.network)
        self.gate = sql.Gate(self.loop, self._chance("gate"), self.history)
        self.loop.backlog = self.gate
        pool.install(self.gate)
        wire.install(self.network, self._etcd_channel)
        os.environ.update(SETTINGS)
        targets = {name: {**target, "settle_ms": int(SETTLE_S * 1000)} for name, target in TARGETS.items()}
        os.environ["RUNWAY_GATEWAY_HTTP_TARGETS"] = json.dumps(targets)
        os.environ["RUNWAY_GATEWAY_MODELS"] = json.dumps(MODELS)
        number = 0
        for service, count in REPLICAS.items():
            for replica in range(count):
                number += 1
                self.members[f"{service}-{replica}"] = Member(f"{service}-{replica}", service, number)
        for worker in range(WORKERS):
            self.members[f"worker-{worker}"] = Member(f"worker-{worker}", "", 100 + worker)

    def _chance(self, what: str) -> random.Random:
        return random.Random(f"{self.seed} {what}")

    def _etcd_channel(self, process: Process, address: str) -> Any:
        return EtcdChannel(self.etcd, process) if address == ADDRESS else None

    # -- processes

    def birth(self, name: str) -> Process:
        """A new process."""
        process = Process(name, 1_000 + len(self.processes))
        self.processes[process.number] = process
        return process

    def address(self, service: str, port: str) -> str:
        """Where the replicas of a service listen."""
        offset = PORTS.index(port)
        found = [member for member in self.members.values() if member.service == service]
        return ",".join(f"127.0.0.1:{7000 + 10 * member.number + offset}" for member in found)

    def _environ(self) -> dict[str, str]:
        infix = {"public": "", "control": "CONTROL_", "leaf": "LEAF_"}
        found = {
            f"RUNWAY_{service.upper()}_{infix[port]}ADDRESS": self.address(service, port)
            for service in REPLICAS
            for port in PORTS
        }
        urls = {f"RUNWAY_{service.upper()}_DATABASE_URL": url for service, url in self.urls.items()}
        return {**found, **urls, "RUNWAY_ETCD_ENDPOINTS": ADDRESS}

    def start(self, member: Member) -> None:
        """Starts a process for a place."""
        process = member.process = self.birth(member.name)
        self.history.note("start", repr(process))
        member.starting = self.loop.spawn(process, self._host(member) if member.service else self._worker(member))
        member.starting.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.violations.append(f"a process ended by itself: {task.exception()!r}")

    async def _host(self, member: Member) -> None:
        clock = member.clock = seeded.SkewedClock(self.loop, 1_000_000 * member.number)
        clock.jumped_ms = member.jumped_ms
        settings = HostSettings(
            service_secret=SecretStr(SECRET),
            health_interval_ms=5_000,
            **{f"{port}_bind": f"127.0.0.1:{7000 + 10 * member.number + offset}" for offset, port in enumerate(PORTS)},
        )
        ids = seeded.Ids(self._chance(f"ids of {member.process}"), clock)
        host = member.host = Host(settings, environ=self._environ(), clock=clock, ids=ids)
        await host.start([member.service])
        self.history.note("up", repr(member.process))
        await asyncio.Event().wait()

    async def _worker(self, member: Member) -> None:
        slots = 4
        member.worker = Worker(
            self.workflows,
            target=self.target(),
            slots=slots,
            worker_id=repr(member.process),
            on_lease=lambda lease: self._leased(member, lease),
        )
        await member.worker.run()

    def _leased(self, member: Member, lease: Any) -> None:
        """No two attempts are ever granted one step under one lease epoch."""
        key = (lease.run_id, lease.step_key, lease.lease_epoch)
        before = self.leases.setdefault(key, (lease.attempt_id, repr(member.process)))
        if before[0] != lease.attempt_id:
            self.violations.append(f"{key} was granted to {before[1]} and to {member.process}")

    def kill(self, member: Member) -> None:
        """SIGKILL."""
        process = member.process
        if process is None or process.state == DEAD:
            return
        self.history.note("kill", repr(process))
        member.deaths += 1
        self.loop.kill(process)
        self.gate.crash(process)
        self.network.died(process)

    def pause(self, member: Member) -> None:
        """SIGSTOP; the server ends its idle transactions."""
        process = member.process
        if process is not None and process.state not in (DEAD, PAUSED):
            self.history.note("pause", repr(process))
            self.loop.pause(process)
            self.loop.later(sql.IDLE_LIMIT_S, self._silent, process)

    def _silent(self, process: Process) -> None:
        if process.state == PAUSED:
            self.gate.idle_too_long(process)

    def resume(self, member: Member) -> None:
        """SIGCONT."""
        if member.process is not None and member.process.state == PAUSED:
            self.history.note("resume", repr(member.process))
            self.loop.resume(member.process)

    async def drain(self, member: Member) -> None:
        """SIGTERM: a clean end, with two seconds for what is under way."""
        host, process = member.host, member.process
        if host is None or process is None or process.state == DEAD:
            return
        self.history.note("drain", repr(process))
        await asyncio.wait([self.loop.spawn(process, host.stop(2_000))], timeout=15)
        self.kill(member)

    # -- beginnings

    def target(self) -> Target:
        """The installation as callers and workers see it."""
        return Target(
            self.address("launch", "public"),
            self.api_key,
            services={service: self.address(service, "public") for service in REPLICAS},
            control_services={service: self.address(service, "control") for service in REPLICAS},
        )

    def reviewer(self, name: str) -> Target:
        """The same for somebody who approves."""
        return replace(self.target(), api_key=self.reviewer_keys[name])

    async def inhabit(self) -> None:
        """Starts every service, makes a tenant and a key, publishes the workflows, starts the workers."""
        for member in self.members.values():
            if member.service:
                self.start(member)
        outside = self.birth("callers")
        self.callers = Callers(self.loop, self._chance("callers"), self.history, self.provider, self.target())
        await self._in(outside, self._make_key)
        self.callers.target = self.target()
        self.callers.holds.address, self.callers.holds.secret = self.address("scheduler", "control"), SECRET
        await self._in(outside, lambda: self.callers.publish(self.workflows))
        for member in self.members.values():
            if not member.service:
                self.start(member)
        self.outside = outside

    async def _in(self, process: Process, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return await self.loop.spawn(process, work())

    async def put_bucket(self, capacity: int, per_minute: int) -> None:
        """An operator bounds the model, and waits until that is in force everywhere."""
        address = self.address("gateway", "control")
        await self._in(self.outside, lambda: self.callers.changes.put_bucket(address, SECRET, capacity, per_minute))
        self.bucket = (capacity, per_minute)
        await asyncio.sleep(IN_FORCE_S)

    async def _make_key(self) -> None:
        async with open_channel(self.address("launch", "control"), secret=SECRET) as channel:
            admin = admin_service_pb2_grpc.AdminServiceStub(channel)
            while True:
                try:
                    await admin.PutTenant(
                        admin_service_pb2.PutTenantRequest(tenant="acme", limit_micros=10**12, max_active_runs=10**6)
                    )
                    break
                except Exception:
                    await asyncio.sleep(0.2)
            asked = admin_service_pb2.CreateApiKeyRequest(tenant="acme", scopes=("worker", "operator"), name="simulation")
            self.api_key = str((await admin.CreateApiKey(asked)).api_key)
            for name in REVIEWERS:
                asked = admin_service_pb2.CreateApiKeyRequest(tenant="acme", scopes=("reviewer",), name=name)
                self.reviewer_keys[name] = str((await admin.CreateApiKey(asked)).api_key)

    def heal(self) -> None:
        """Faults stop: whatever is dead is started, whatever is paused goes on, the network is whole."""
        self.history.note("heal", "")
        self.network.weather = Weather()
        self.network.cut.clear()
        self.network.avoided.clear()
        for traps in (self.network.traps, self.gate.traps, self.provider.traps):
            traps.clear()
        self.provider.fates.clear()
        self.etcd.cut.clear()
        self.etcd.regain_quorum()
        self.gate.lost_commits = self.gate.slow = 0.0
        self.gate.refusing.clear()
        self.provider.moods = type(self.provider.moods)()
        for member in self.members.values():
            self.resume(member)
            if member.service == "readiness":  # what waits for a time that a clock ahead of it named waits for that time
                member.jump(member.furthest_ms - member.jumped_ms)
            if member.process is None or member.process.state == DEAD:
                self.start(member)
