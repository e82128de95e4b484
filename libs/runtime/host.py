"""Authoritative for the life of one process: composes services, binds three servers, starts, watches, drains, stops.

Can go wrong: half a start. Whatever failed, `stop` undoes what was done, in reverse, and each part's failure to stop is
logged and does not keep the others from stopping.
"""

import asyncio
import importlib
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from libs.kernel.clock import Clock
from libs.kernel.ids import IdSource
from libs.kernel.refusal import Reason, Refusal
from libs.outbox.settings import RelaySettings
from libs.rpc.admission import Limits
from libs.rpc.bulkhead import Bulkhead, Strength
from libs.rpc.directory import CachedDirectory
from libs.rpc.health import HealthBoard
from libs.rpc.identity import CallerDirectory, LeaseVerifier
from libs.rpc.policy import Access
from libs.rpc.server import Gate, Mounted, PortServer, serve
from libs.rpc.shedding import Bounds
from libs.runtime.callers import RemoteCallers
from libs.runtime.clock import clock_of
from libs.runtime.ids import SystemIds
from libs.runtime.loops import Supervisor
from libs.runtime.peers import Peers
from libs.runtime.routing import Router
from libs.runtime.service import SERVICES, Every, Service
from libs.runtime.settings import HostSettings, Surroundings
from libs.telemetry.catalogue import LOOP_LAG_SECONDS
from libs.telemetry.logs import get_logger
from libs.telemetry.redaction import register_secret

Compose = Callable[["Host"], Awaitable[Service]]
log = get_logger(__name__)
_LAG_INTERVAL_MS = 250


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the process listens."""

    public: str
    control: str
    leaf: str


def load_compose(name: str) -> Compose:
    """The composition root of a service, found by its name."""
    if name not in SERVICES:
        raise ValueError(f"{name!r} is not one of {', '.join(SERVICES)}")
    compose: Compose = importlib.import_module(f"services.{name}.main").compose
    return compose


class Host:
    """One process. What services may use: clock, ids, settings, surroundings, peers, addresses, draining, loop_lag_ms."""

    def __init__(
        self,
        settings: HostSettings | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        self.settings = settings or HostSettings()
        self.surroundings = Surroundings(os.environ if environ is None else environ)
        self.clock: Clock = clock or clock_of()
        self.ids: IdSource = ids or SystemIds()
        self.draining = asyncio.Event()
        self.services: list[Service] = []
        self.health = HealthBoard()
        self._gate = Gate()
        self._router = Router(self._gate)
        given = self.settings.service_secret
        self._secret = given.get_secret_value() if given else secrets.token_urlsafe(32)
        register_secret(self._secret)
        self.peers = Peers(self.surroundings, self._router, self._secret)
        self._supervisor = Supervisor()
        self._servers: list[PortServer] = []
        self._addresses: Addresses | None = None
        self._lag_ms = 0.0
        self._lag_due_s = 0.0

    @property
    def relay_settings(self) -> RelaySettings:
        """How this installation's outboxes behave."""
        return RelaySettings(keep_ms=self.settings.outbox_keep_ms)

    @property
    def addresses(self) -> Addresses:
        """Where this process listens; known once every service is composed."""
        if self._addresses is None:
            raise RuntimeError("the process is not bound yet: read addresses in start, not in compose")
        return self._addresses

    @property
    def loop_lag_ms(self) -> float:
        """How late the event loop ran its last timer: evidence against ourselves, before others are called late."""
        return self._lag_ms

    def database_url(self, service: str) -> str:
        """The database of a service (see Surroundings.database_url)."""
        return self.surroundings.database_url(service)

    async def start(self, names: Sequence[str], compose_of: Callable[[str], Compose] = load_compose) -> None:
        """Composes, binds, starts; returns when every service is started. Cancel it, or call `stop`, to give up."""
        for name in sorted(names, key=SERVICES.index):
            service = await compose_of(name)(self)
            self.services.append(service)
            self._router.add(service)
            grpc_names = [item.full_name for item in service.servicers]
            self._gate.starting(name, grpc_names)
            await self.health.add(name, grpc_names)
        self._bind()
        for server in self._servers:
            await server.start()
        await self._start_services()
        self._supervisor.start("host", [Every(_LAG_INTERVAL_MS, self._measure_lag, "lag")])

    async def stop(self, grace_ms: int | None = None) -> None:
        """Drains and stops everything that was started."""
        self.draining.set()
        await self.health.drain()
        if self._servers and self.settings.drain_notice_ms and grace_ms is None:
            await asyncio.sleep(self.settings.drain_notice_ms / 1000)
        self._gate.drain()
        grace = self.settings.drain_grace_ms if grace_ms is None else grace_ms
        await asyncio.gather(*(server.stop(grace) for server in self._servers))
        await self._supervisor.stop()
        for service in reversed(self.services):
            try:
                await service.stop()
            except Exception as error:
                log.error("a service did not stop cleanly", service=service.name, exc_info=error)
        await self.peers.close()

    def _bind(self) -> None:
        mounted: list[Mounted] = [item for service in self.services for item in service.servicers]
        mounted += self._router.mounted()
        access = Access(self._secret, self._callers(), self._leases())
        limits = Limits(
            message_bytes=self.settings.message_limit_bytes,
            deadline_ms=self.settings.call_deadline_ms,
            deadline_ms_of={path: limit for service in self.services for path, limit in service.deadlines_ms.items()},
        )
        binds = {
            "public": self.settings.public_bind,
            "control": self.settings.control_bind,
            "leaf": self.settings.leaf_bind,
        }
        found: dict[str, str] = {}
        for port, bind in binds.items():
            server = serve(
                port,
                bind,
                mounted=mounted,
                access=access,
                health_board=self.health,
                clock=self.clock,
                gate=self._gate,
                limits=limits,
                bulkhead=self._bulkhead(port),
            )
            self._servers.append(server)
            found[port] = self._advertised(server.address)
        self.peers.bound(found)
        self._addresses = Addresses(found["public"], found["control"], found["leaf"])

    def _bulkhead(self, port: str) -> Bulkhead | None:
        """What a port bears. The leaf port takes only raises and reads of fences, which never wait."""
        settings = self.settings
        places = {"public": settings.public_places, "control": settings.control_places}.get(port)
        if places is None:
            return None
        bounds = Bounds(places=places, least_places=max(8, places // 8), waiting=settings.public_waiting)
        strength = Strength(bounds, settings.lasting_calls_per_tenant, settings.shed_again_per_s)
        return Bulkhead(port, strength, lambda: self._lag_ms)

    def _advertised(self, address: str) -> str:
        host = self.settings.advertise_host
        return f"{host}:{address.rpartition(':')[2]}" if host else address

    def _callers(self) -> CallerDirectory:
        own = next((service.callers for service in self.services if service.callers is not None), None)
        return CachedDirectory(own or RemoteCallers(self.peers), self.clock)

    def _leases(self) -> Callable[[str], LeaseVerifier | None]:
        by_name = {item.full_name: service.leases for service in self.services for item in service.servicers}
        return by_name.get

    async def _start_services(self) -> None:
        """Starts them side by side; the first that cannot be started ends the others' start."""
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._start_service(service)) for service in self.services]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _start_service(self, service: Service) -> None:
        """Starts one service; while its database is away it is tried again, NOT_SERVING and refusing."""
        while True:
            try:
                await service.start()
                break
            except Refusal as refusal:
                if refusal.reason is not Reason.AUTHORITY_UNREACHABLE:
                    raise
                log.warning("a service cannot start yet", service=service.name, message=refusal.message)
                await asyncio.sleep(self.settings.start_retry_ms / 1000)
        self._gate.started(service.name)
        await self.health.check(service.name, service.healthy)

        async def watch() -> bool:
            return await self.health.check(service.name, service.healthy)

        watching = Every(self.settings.health_interval_ms, watch, "health")
        self._supervisor.start(service.name, [*service.loops, watching])
        log.info("service started", service=service.name)

    async def _measure_lag(self) -> None:
        """Runs every quarter of a second; what it comes late is the lag."""
        now_s = asyncio.get_running_loop().time()
        if self._lag_due_s:
            self._lag_ms = max(0.0, (now_s - self._lag_due_s) * 1000)
            LOOP_LAG_SECONDS.set(self._lag_ms / 1000)
        self._lag_due_s = now_s + _LAG_INTERVAL_MS / 1000
