"""Composition root of launch: the only file that constructs things."""

from dataclasses import replace

from runway.internal.fence.v1 import fence_pb2
from runway.internal.launch.v1.launch_internal_pb2_grpc import add_LaunchInternalServiceServicer_to_server
from runway.launch.v1.admin_service_pb2_grpc import add_AdminServiceServicer_to_server
from runway.launch.v1.approval_service_pb2_grpc import add_ApprovalServiceServicer_to_server
from runway.launch.v1.key_service_pb2_grpc import add_KeyServiceServicer_to_server
from runway.launch.v1.launch_service_pb2_grpc import add_LaunchServiceServicer_to_server
from runway.launch.v1.project_service_pb2_grpc import add_ProjectServiceServicer_to_server
from runway.launch.v1.scope_service_pb2_grpc import add_ScopeServiceServicer_to_server
from runway.launch.v1.tree_service_pb2_grpc import add_TreeServiceServicer_to_server

from libs.outbox import Outgoing, Relay
from libs.pg import Database
from libs.rpc.server import Mounted
from libs.runtime.host import Host
from libs.runtime.process import run as run_process
from libs.runtime.retention import forgetting
from libs.runtime.sender import PeerSender
from libs.runtime.service import Composed, Every, Loop, Service
from services.launch import consumers
from services.launch.app.adopt_runs import adopt_all
from services.launch.app.hold_approvals import record_held
from services.launch.app.limit_rate import LaunchRate
from services.launch.app.record_receipts import record_receipts
from services.launch.app.stop_scopes import Switches
from services.launch.app.wait_runs import WaitHub
from services.launch.clients.accounts import AccountClients
from services.launch.clients.approvals import ApprovalNotices, GatewayApprovals, carried
from services.launch.clients.envelopes import EnvelopeClient
from services.launch.clients.explanations import Explanations
from services.launch.clients.notices import EventNotices
from services.launch.clients.points import PointClients, receipt_of, scope_ack, scope_raises
from services.launch.clients.waits import WaitClient
from services.launch.domain.workflow import POINT_NAMES
from services.launch.loops import LaunchStuck, adoption, loops
from services.launch.ports import Limits, Ports
from services.launch.ports_approvals import ApprovalPorts
from services.launch.servicer import LaunchServicer
from services.launch.servicer_approvals import ApprovalServicer
from services.launch.servicer_control import AdminServicer, InternalServicer, LaunchCallers, LaunchFences
from services.launch.servicer_keys import KeyServicer, ProjectServicer
from services.launch.servicer_scopes import ScopeServicer
from services.launch.servicer_trees import TreeServicer
from services.launch.settings import LaunchSettings
from services.launch.store.approvals import ApprovalReads
from services.launch.store.catalogue import CatalogueStore
from services.launch.store.children import ChildReads
from services.launch.store.held_spawns import HeldReads
from services.launch.store.projects import ProjectStore
from services.launch.store.promotion import LaunchPromotion
from services.launch.store.reads import LaunchReads
from services.launch.store.retention import LaunchRetention
from services.launch.store.scopes import ScopeStore
from services.launch.store.tenancy import TenancyStore
from services.launch.store.transaction import LaunchDatabase
from services.launch.translate_versions import parse_spec

_BITS = {name: bit for bit, name in POINT_NAMES.items()}

RECEIPTS_INTERVAL_MS = 600_000
KEYS_AT_ONCE = 1_000


async def compose(host: Host) -> Service:
    """Builds launch for this process; opens nothing."""
    settings = LaunchSettings()
    url = host.database_url("launch")
    db = Database(url, name="launch", size=settings.pool_size)
    control_db = Database(url, name="launch-control", size=settings.control_pool_size)
    leaf_db = Database(url, name="launch-leaf", size=settings.leaf_pool_size)

    async def on_answers(answers: list[tuple[Outgoing, bytes]]) -> None:
        held = {place: held for place, (r, answer) in enumerate(answers) if (held := carried(r.payload, answer))}
        acks = {place: ack for place, (r, answer) in enumerate(answers) if (ack := scope_ack(r.receiver, r.payload, answer))}
        receipts = [
            receipt_of(raise_.key, _BITS[raise_.receiver], fence_pb2.RaiseAnswer.FromString(answer))
            for place, (raise_, answer) in enumerate(answers)
            if place not in acks and place not in held
        ]
        await record_held(ports, list(held.values()))
        await switches.acknowledge(list(acks.values()))
        await record_receipts(ports, [receipt for receipt in receipts if receipt.epoch])

    relay = Relay(db, PeerSender(host.peers), host.clock, on_answers=on_answers, settings=host.relay_settings)
    promotion = LaunchPromotion((db, control_db, leaf_db), relay, host.ids)
    reads = LaunchReads(db, promotion.check)
    hub = WaitHub(reads)
    ports = Ports(
        db=LaunchDatabase(db, relay, host.ids, promotion.check),
        reads=reads,
        children=ChildReads(db, promotion.check),
        held=HeldReads(db),
        envelopes=EnvelopeClient(host.peers),
        catalogue=CatalogueStore(db, parse_spec, host.clock, settings.newest_ttl_ms),
        tenancy=TenancyStore(control_db),
        projects=ProjectStore(control_db),
        points=PointClients(host.peers),
        notices=EventNotices(host.ids),
        hub=hub,
        clock=host.clock,
        ids=host.ids,
        limits=_limits(settings),
        approvals=_approvals(host, settings, ApprovalReads(db, promotion.check)),
    )
    control = replace(
        ports,
        db=LaunchDatabase(control_db, relay, host.ids, promotion.check),
        reads=LaunchReads(control_db, promotion.check),
        children=ChildReads(control_db, promotion.check),
    )
    scopes = ScopeStore(control_db, relay, host.ids, scope_raises)
    switches = Switches(scopes, PointClients(host.peers), host.clock, settings.enforce_deadline_ms)
    leaf = LaunchReads(leaf_db, promotion.check)
    rate = LaunchRate(host.clock, settings.launches_per_s, settings.launch_burst)
    explanations = Explanations(AccountClients(host.peers), ports.approvals.reads, ports.held)
    servicer = LaunchServicer(ports, control, hub, rate, WaitClient(host.peers), explanations)

    approvals = ApprovalServicer(control)

    async def start() -> None:
        for database in (db, control_db, leaf_db):
            await database.open()
        if await promotion.stored() in (None, promotion.incarnation):  # else the loop does, once the points answer
            await adopt_all(ports, promotion, promotion.incarnation, switches)

    async def stop() -> None:
        await servicer.close()
        await approvals.close()
        for database in (db, control_db, leaf_db):
            await database.close()

    return Composed(
        name="launch",
        healthy=db.answers,
        servicers=[
            Mounted(add_LaunchServiceServicer_to_server, servicer, "runway.launch.v1.LaunchService"),
            Mounted(add_ApprovalServiceServicer_to_server, approvals, "runway.launch.v1.ApprovalService"),
            Mounted(add_ScopeServiceServicer_to_server, ScopeServicer(switches), "runway.launch.v1.ScopeService"),
            Mounted(add_TreeServiceServicer_to_server, TreeServicer(ports, control), "runway.launch.v1.TreeService"),
            Mounted(add_KeyServiceServicer_to_server, KeyServicer(ports), "runway.launch.v1.KeyService"),
            Mounted(add_ProjectServiceServicer_to_server, ProjectServicer(ports), "runway.launch.v1.ProjectService"),
            Mounted(add_AdminServiceServicer_to_server, AdminServicer(ports), "runway.launch.v1.AdminService"),
            Mounted(
                add_LaunchInternalServiceServicer_to_server,
                InternalServicer(ports, leaf),
                "runway.internal.launch.v1.LaunchInternalService",
            ),
        ],
        inbox=lambda raws: consumers.apply(ports, raws),
        stuck=LaunchStuck(ports, db).list_stuck,
        fences=LaunchFences(leaf),
        loops=[
            Loop("relay", relay.run),
            Loop("adoption", adoption(ports, promotion, switches)),
            *loops(ports, hub, settings),
            *_forgetting(host, control_db),
        ],
        callers=LaunchCallers(ports),
        start=start,
        stop=stop,
    )


def _approvals(host: Host, settings: LaunchSettings, reads: ApprovalReads) -> ApprovalPorts:
    return ApprovalPorts(
        reads=reads,
        notices=ApprovalNotices(host.ids),
        point=GatewayApprovals(host.peers),
        default_length_ms=settings.approval_length_ms,
        hold_deadline_ms=settings.enforce_deadline_ms,
    )


def _limits(settings: LaunchSettings) -> Limits:
    return Limits(
        default_deadline_ms=settings.default_deadline_ms,
        max_deadline_ms=settings.max_deadline_ms,
        default_budget_micros=settings.default_budget_micros,
        default_budget_tokens=settings.default_budget_tokens,
        enforce_deadline_ms=settings.enforce_deadline_ms,
        input_limit_bytes=settings.input_limit_bytes,
        longest_pause_ms=settings.longest_pause_ms,
        max_children=settings.max_children,
        max_child_depth=settings.max_child_depth,
    )


def _forgetting(host: Host, db: Database) -> list[Every]:
    """Runs go after their retention, receipts and keys that ended later."""
    retention = LaunchRetention(db, host.clock, host.settings.retention_ms)

    async def receipts() -> None:
        await retention.forget_receipts(host.clock.now_ms() - host.settings.retention_ms - host.settings.receipt_keep_ms)

    async def keys() -> None:
        ended_before_ms = host.clock.now_ms() - host.settings.retention_ms - host.settings.receipt_keep_ms
        while await retention.forget_keys(ended_before_ms, KEYS_AT_ONCE):
            continue

    return [
        forgetting(retention.forget_runs, host.clock, host.settings.retention_ms),
        Every(RECEIPTS_INTERVAL_MS, receipts, "forget_receipts"),
        Every(RECEIPTS_INTERVAL_MS, keys, "forget_keys"),
    ]


def run() -> None:
    """This service alone in a process."""
    run_process(["launch"])
