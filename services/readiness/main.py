"""Composition root of readiness: the only file that constructs things."""

from runway.internal.readiness.v1.readiness_internal_pb2_grpc import add_ReadinessInternalServiceServicer_to_server
from runway.readiness.v1.readiness_service_pb2_grpc import add_ReadinessServiceServicer_to_server

from libs.outbox import Relay
from libs.pg import Database
from libs.rpc.server import Mounted
from libs.runtime.host import Host
from libs.runtime.process import run as run_process
from libs.runtime.retention import forgetting
from libs.runtime.sender import PeerSender
from libs.runtime.service import Composed, Loop, Service
from services.readiness import consumers
from services.readiness.app.cache import StepCache
from services.readiness.clients.explanations import Explanations
from services.readiness.clients.expressions import CelExpressions
from services.readiness.clients.notices import EventNotices
from services.readiness.clients.owners import OwnerClient
from services.readiness.clients.versions import VersionClient
from services.readiness.loops import ReadinessStuck, loops
from services.readiness.ports import Ports
from services.readiness.servicer import ReadinessServicer
from services.readiness.servicer_control import InternalServicer
from services.readiness.settings import ReadinessSettings
from services.readiness.store.steps import ReadinessDatabase


async def compose(host: Host) -> Service:
    """Builds readiness for this process; opens nothing."""
    settings = ReadinessSettings()
    db = Database(host.database_url("readiness"), name="readiness", size=settings.pool_size)
    relay = Relay(db, PeerSender(host.peers), host.clock, settings=host.relay_settings)
    store = ReadinessDatabase(db, relay, host.ids)
    versions = VersionClient(store, host.peers)
    cache = StepCache(settings.cache_runs, settings.cache_run_bytes, settings.cache_bytes)
    db.on_incarnation_changed(lambda _: cache.clear())
    notices = EventNotices(host.ids, settings.ticket_limit_bytes)
    ports = Ports(
        store,
        versions,
        CelExpressions(),
        cache,
        notices,
        host.clock,
        settings.ticket_limit_bytes,
        host.settings.retention_ms,
        relay.keeps,
        settings.max_steps,
    )
    servicer = ReadinessServicer(ports, store, OwnerClient(host.peers), host.ids)

    async def stop() -> None:
        await servicer.close()
        await db.close()

    return Composed(
        name="readiness",
        healthy=db.answers,
        servicers=[
            Mounted(add_ReadinessServiceServicer_to_server, servicer, "runway.readiness.v1.ReadinessService"),
            Mounted(
                add_ReadinessInternalServiceServicer_to_server,
                InternalServicer(store, Explanations(store, versions, host.clock)),
                "runway.internal.readiness.v1.ReadinessInternalService",
            ),
        ],
        inbox=lambda raws: consumers.apply(ports, raws),
        stuck=ReadinessStuck(ports, store, db, relay.why).list_stuck,
        loops=[
            Loop("relay", relay.run),
            *loops(ports, store, settings),
            forgetting(store.forget_runs, host.clock, host.settings.retention_ms),
        ],
        start=db.open,
        stop=stop,
    )


def run() -> None:
    """This service alone in a process."""
    run_process(["readiness"])
