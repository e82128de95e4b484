"""Owners of runs, asked of launch, for a run that the scheduler has no ticket of yet. Implements `servicer_control.Owners`."""

from uuid import UUID

from runway.internal.launch.v1 import launch_internal_pb2, launch_internal_pb2_grpc

from libs.runtime.peers import Peers


class OwnerClient:
    """One small call; only where a run is unknown here."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def owner(self, run_id: UUID) -> tuple[str, str] | None:
        """(tenant, project); None where launch does not know the run."""
        stub = self._peers.stub("launch", launch_internal_pb2_grpc.LaunchInternalServiceStub)
        request = launch_internal_pb2.GetOwnersRequest(run_ids=[run_id.bytes])
        record = (await self._peers.ask(stub.GetOwners, request)).owners[0]
        return (record.tenant, record.project) if record.known else None
