"""Composition root of checkpoint: the only file that constructs things."""

from runway.checkpoint.v1.checkpoint_service_pb2_grpc import add_CheckpointServiceServicer_to_server
from runway.internal.checkpoint.v1.checkpoint_internal_pb2_grpc import add_CheckpointInternalServiceServicer_to_server

from libs.blobs import BlobStore
from libs.fence.cold import ColdReader
from libs.fence.raising import FencePoint, NothingPending
from libs.fence.token import Verifier
from libs.pg import Database
from libs.rpc.server import Mounted
from libs.runtime.host import Host
from libs.runtime.process import run as run_process
from libs.runtime.retention import forgetting
from libs.runtime.service import Composed, Service
from services.checkpoint.clients.chunks import StoredChunks, StoreProbe
from services.checkpoint.clients.gauges import CheckpointGauges
from services.checkpoint.clients.peers import RunOwners, SchedulerKeys
from services.checkpoint.clients.signing import ManifestSigner
from services.checkpoint.loops import CheckpointStuck, loops
from services.checkpoint.ports import Limits, Ports
from services.checkpoint.servicer import CheckpointServicer, InternalServicer
from services.checkpoint.settings import CheckpointSettings
from services.checkpoint.store.reads import CheckpointReads, ChunkRows
from services.checkpoint.store.transaction import FencedCommits

AUDIENCE = "RUNWAY_AUDIENCE"
"""Names the installation in lease tokens; the scheduler signs by it."""
DEFAULT_AUDIENCE = "runway"


async def compose(host: Host) -> Service:
    """Builds checkpoint for this process; opens nothing but the store's folder."""
    settings = CheckpointSettings()
    url = host.database_url("checkpoint")
    db = Database(url, name="checkpoint", size=settings.pool_size)
    leaf_db = Database(url, name="checkpoint-leaf", size=settings.leaf_pool_size)
    store = BlobStore.at(settings.store_url)
    probe = StoreProbe(store, host.clock, str(host.ids.random128()), settings.store_probe_interval_ms)
    reader = ColdReader(db, host.peers)
    reads, rows = CheckpointReads(db, host.clock), ChunkRows(db, host.clock)
    ports = Ports(
        commits=FencedCommits(db, reader),
        reads=reads,
        rows=rows,
        chunks=StoredChunks(store),
        signer=ManifestSigner(),
        owners=RunOwners(reads, host.peers),
        gauges=CheckpointGauges(),
        clock=host.clock,
        limits=Limits(settings.max_artifact_bytes, settings.max_checkpoint_bytes, settings.chunk_grace_ms),
    )
    servicer = CheckpointServicer(ports)

    async def start() -> None:
        for database in (db, leaf_db):
            await database.open()

    async def stop() -> None:
        await servicer.close()
        await reader.close()
        for database in (db, leaf_db):
            await database.close()

    async def healthy() -> bool:
        return await db.answers() and await probe.writable()

    return Composed(
        name="checkpoint",
        healthy=healthy,
        servicers=[
            Mounted(add_CheckpointServiceServicer_to_server, servicer, "runway.checkpoint.v1.CheckpointService"),
            Mounted(
                add_CheckpointInternalServiceServicer_to_server,
                InternalServicer(ports),
                "runway.internal.checkpoint.v1.CheckpointInternalService",
            ),
        ],
        stuck=CheckpointStuck(reads, rows, host.clock).list_stuck,
        fences=FencePoint(leaf_db, NothingPending()),
        loops=[*loops(ports, settings), forgetting(rows.forget_runs, host.clock, host.settings.retention_ms)],
        leases=Verifier(SchedulerKeys(host.peers), host.clock, audience=host.surroundings.get(AUDIENCE) or DEFAULT_AUDIENCE),
        start=start,
        stop=stop,
    )


def run() -> None:
    """This service alone in a process."""
    run_process(["checkpoint"])
