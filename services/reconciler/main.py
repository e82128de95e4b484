"""Composition root of the reconciler: the only file that constructs things."""

from runway.reconciler.v1.reconciler_service_pb2_grpc import add_ReconcilerServiceServicer_to_server

from libs.pg import Database
from libs.rpc.server import Mounted
from libs.runtime.host import Host
from libs.runtime.process import run as run_process
from libs.runtime.retention import forgetting
from libs.runtime.service import Composed, Service
from services.reconciler import consumers
from services.reconciler.clients.effects import GatewayEffects
from services.reconciler.clients.gauges import CaseGauges
from services.reconciler.clients.others import OtherServices
from services.reconciler.domain.cases import Policy
from services.reconciler.loops import ReconcilerStuck, Wake, loops
from services.reconciler.ports import Limits, Ports
from services.reconciler.servicer import ReconcilerServicer
from services.reconciler.settings import ReconcilerSettings
from services.reconciler.store.cases import CaseStore


async def compose(host: Host) -> Service:
    """Builds the reconciler for this process; opens nothing."""
    settings = ReconcilerSettings()
    db = Database(host.database_url("reconciler"), name="reconciler", size=settings.pool_size)
    cases = CaseStore(db)
    ports = Ports(
        cases=cases,
        effects=GatewayEffects(host.peers, settings.lookup_deadline_ms),
        others=OtherServices(host.peers),
        gauges=CaseGauges(),
        clock=host.clock,
        ids=host.ids,
        policy=Policy(settings.first_backoff_ms, settings.longest_backoff_ms, settings.max_unreachable, settings.give_up_ms),
        limits=Limits(settings.batch_cases, settings.lookup_lease_ms, settings.sweep_older_than_ms),
    )
    wake = Wake(settings.workers)
    return Composed(
        name="reconciler",
        healthy=db.answers,
        servicers=[
            Mounted(
                add_ReconcilerServiceServicer_to_server, ReconcilerServicer(ports), "runway.reconciler.v1.ReconcilerService"
            )
        ],
        inbox=lambda raws: consumers.apply(ports, wake, raws),
        stuck=ReconcilerStuck(ports).list_stuck,
        loops=[*loops(ports, wake, settings), forgetting(cases.forget_runs, host.clock, host.settings.retention_ms)],
        start=db.open,
        stop=db.close,
    )


def run() -> None:
    """This service alone in a process."""
    run_process(["reconciler"])
