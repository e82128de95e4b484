"""Composition root of the gateway: the only file that constructs things."""

from contextlib import suppress

from runway.gateway.v1.bucket_service_pb2_grpc import add_BucketServiceServicer_to_server
from runway.gateway.v1.gateway_service_pb2_grpc import add_GatewayServiceServicer_to_server
from runway.gateway.v1.meter_service_pb2_grpc import add_MeterServiceServicer_to_server
from runway.internal.gateway.v1.gateway_internal_pb2_grpc import (
    add_BucketViewServiceServicer_to_server,
    add_EffectServiceServicer_to_server,
    add_EnvelopeServiceServicer_to_server,
)

from libs.fence.cold import ColdReader
from libs.fence.raising import FencePoint
from libs.fence.token import Verifier
from libs.kernel.refusal import Refusal
from libs.outbox import Relay
from libs.pg import Database
from libs.rpc.batcher import Batcher
from libs.rpc.server import Mounted
from libs.runtime.host import Host
from libs.runtime.process import run as run_process
from libs.runtime.retention import forgetting
from libs.runtime.sender import PeerSender
from libs.runtime.service import Composed, Loop, Service
from services.gateway import consumers
from services.gateway.app.admit_intents import admit_intents
from services.gateway.app.adopt_tries import adopt_tries, say_ended
from services.gateway.app.draw_buckets import Buckets
from services.gateway.app.invoke import Invoker
from services.gateway.app.record_receipts import record_receipts
from services.gateway.app.run_calls import Calls
from services.gateway.clients.authorities import CheckpointArtifacts, LaunchOwners, SigningKeys
from services.gateway.clients.git_push import GitPush
from services.gateway.clients.http import Http
from services.gateway.clients.http_request import HttpRequest
from services.gateway.clients.machine import LinuxMachine
from services.gateway.clients.models import Model
from services.gateway.clients.notices import EventNotices
from services.gateway.clients.registry import Registry
from services.gateway.domain.effect import Effect, Receipt
from services.gateway.loops import GatewayStuck, bucket_loops, loops
from services.gateway.ports import Admitted, Intent, Limits, Ports
from services.gateway.servicer import SERVICE, GatewayServicer
from services.gateway.servicer_buckets import BucketServicer, BucketViewServicer
from services.gateway.servicer_control import EffectServicer, GatewayFences
from services.gateway.servicer_envelopes import EnvelopeServicer
from services.gateway.servicer_meter import MeterServicer
from services.gateway.settings import GatewaySettings
from services.gateway.store.approvals import CertificateStore
from services.gateway.store.buckets import BucketStore
from services.gateway.store.effects import EffectStore
from services.gateway.store.meter import MeterStore
from services.gateway.store.processes import ProcessStore
from services.gateway.store.standing import GatewayStanding, collecting
from services.gateway.translate import MAX_WAIT_MS

AUDIENCE = "RUNWAY_AUDIENCE"
"""Names the installation in lease tokens; the scheduler signs by it."""
MAX_BATCH = 200
"""Intents or receipts of one commit: more gains nothing and makes a raise wait longer."""


async def compose(host: Host) -> Service:
    """Builds the gateway for this process; opens nothing."""
    settings = GatewaySettings()
    settings.register_secrets()
    url = host.database_url("gateway")
    db = Database(url, name="gateway", size=settings.pool_size)
    leaf_db = Database(url, name="gateway-leaf", size=settings.leaf_pool_size)
    relay = Relay(db, PeerSender(host.peers), host.clock, settings=host.relay_settings)
    notices = EventNotices(host.ids)
    http = Http(
        connect_timeout_ms=settings.connect_timeout_ms,
        response_limit_bytes=settings.response_limit_bytes,
        max_connections=settings.max_calls,
    )
    effects = EffectStore(db, relay, host.ids)
    ports = Ports(
        store=effects,
        processes=ProcessStore(db),
        machine=LinuxMachine(settings.host_id),
        tools=_tools(host, settings, http),
        notices=notices,
        owners=LaunchOwners(host.peers),
        clock=host.clock,
        ids=host.ids,
        process=host.ids.random128(),
        limits=Limits(
            poll_ms=settings.poll_ms,
            receipt_retry_ms=settings.receipt_retry_ms,
            max_calls=settings.max_calls,
            adopt_rows=1_000,
        ),
    )
    receipts: Batcher[Receipt, Effect | None] = Batcher(
        lambda items: record_receipts(ports, items), name="receipts", max_batch=MAX_BATCH, key=lambda r: r.name.run_id
    )
    kept = BucketStore(db)
    buckets = Buckets(kept, host.clock)
    calls = Calls(ports, receipts.submit, buckets.settle)
    intents: Batcher[Intent, Admitted] = Batcher(
        lambda items: admit_intents(ports, calls, items), name="intents", max_batch=MAX_BATCH, key=lambda i: i.asked.run_id
    )
    cold = ColdReader(db, host.peers)
    standing = GatewayStanding(notices, host.ids, host.clock)

    async def start() -> None:
        await db.open()
        await leaf_db.open()
        await buckets.refresh()
        await adopt_tries(ports)

    async def stop() -> None:
        await intents.close()
        await calls.stop(settings.stop_grace_ms)
        await receipts.close()
        await buckets.close()
        with suppress(Refusal):  # the database is away: the process' death will be proved instead
            await say_ended(ports)
        await cold.close()
        await http.close()
        await leaf_db.close()
        await db.close()

    long_ms = MAX_WAIT_MS + 5_000
    return Composed(
        name="gateway",
        healthy=db.answers,
        servicers=_servicers(ports, Invoker(ports, calls, intents, cold, buckets), kept, buckets, MeterStore(db)),
        inbox=lambda raws: consumers.apply(ports, raws),
        stuck=GatewayStuck(ports, db).list_stuck,
        fences=GatewayFences(FencePoint(leaf_db, standing), collecting, relay, CertificateStore(leaf_db), calls.abort),
        loops=[
            Loop("relay", relay.run),
            *loops(ports, calls, settings),
            *bucket_loops(buckets),
            forgetting(effects.forget_runs, host.clock, host.settings.retention_ms),
        ],
        deadlines_ms={f"/{SERVICE}/{method}": long_ms for method in ("InvokeTool", "Generate", "WaitEffect")},
        leases=Verifier(SigningKeys(host.peers), host.clock, audience=host.surroundings.get(AUDIENCE) or settings.audience),
        start=start,
        stop=stop,
    )


def _servicers(ports: Ports, invoker: Invoker, kept: BucketStore, buckets: Buckets, meter: MeterStore) -> list[Mounted]:
    return [
        Mounted(
            add_GatewayServiceServicer_to_server,
            GatewayServicer(ports, invoker),
            SERVICE,
        ),
        Mounted(add_EffectServiceServicer_to_server, EffectServicer(ports), "runway.internal.gateway.v1.EffectService"),
        Mounted(add_MeterServiceServicer_to_server, MeterServicer(meter, ports), "runway.gateway.v1.MeterService"),
        Mounted(
            add_EnvelopeServiceServicer_to_server,
            EnvelopeServicer(ports),
            "runway.internal.gateway.v1.EnvelopeService",
        ),
        Mounted(
            add_BucketServiceServicer_to_server,
            BucketServicer(kept, buckets, ports.tools),
            "runway.gateway.v1.BucketService",
        ),
        Mounted(
            add_BucketViewServiceServicer_to_server,
            BucketViewServicer(buckets, ports.tools),
            "runway.internal.gateway.v1.BucketViewService",
        ),
    ]


def _tools(host: Host, settings: GatewaySettings, http: Http) -> Registry:
    secrets = settings.secrets()
    push = GitPush(
        settings.git_remotes,
        CheckpointArtifacts(host.peers),
        timeout_ms=settings.call_timeout_ms,
        bundle_limit_bytes=settings.bundle_limit_bytes,
        scratch_dir=settings.scratch_dir,
    )
    request = HttpRequest(settings.http_targets, http, timeout_ms=settings.call_timeout_ms, secrets=secrets)
    models = [
        Model(name, route, http, timeout_ms=settings.model_timeout_ms, secrets=secrets)
        for name, route in settings.models.items()
    ]
    return Registry([push, request, *models])


def run() -> None:
    """This service alone in a process."""
    run_process(["gateway"])
