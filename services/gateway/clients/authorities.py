"""What the gateway asks of the other services: signing keys, artifacts, owners of runs."""

from collections.abc import AsyncIterator
from uuid import UUID

import grpc
from runway.internal.checkpoint.v1 import checkpoint_internal_pb2, checkpoint_internal_pb2_grpc
from runway.internal.launch.v1 import launch_internal_pb2, launch_internal_pb2_grpc
from runway.internal.scheduler.v1 import scheduler_internal_pb2, scheduler_internal_pb2_grpc

from libs.rpc.status import refusal_of
from libs.runtime.peers import Peers

KEY_DEADLINE_MS = 2_000
ARTIFACT_DEADLINE_S = 120.0


class SigningKeys:
    """Public halves of the keys that sign leases: rows of the scheduler's database. Implements `libs.fence.KeySource`."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def fetch(self, key_id: bytes) -> bytes | None:
        """One key, or None."""
        stub = self._peers.stub("scheduler", scheduler_internal_pb2_grpc.SchedulerInternalServiceStub, "leaf")
        request = scheduler_internal_pb2.GetSigningKeysRequest(key_ids=[key_id])
        answer = await self._peers.ask(stub.GetSigningKeys, request, deadline_ms=KEY_DEADLINE_MS)
        return next((key.public_key for key in answer.keys if key.key_id == key_id), None)


class CheckpointArtifacts:
    """Artifacts from the checkpoint service, which verifies what it gives."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def read(self, run_id: UUID, digest: bytes) -> AsyncIterator[bytes]:
        """The bytes of an artifact of a run."""
        stub = self._peers.stub("checkpoint", checkpoint_internal_pb2_grpc.CheckpointInternalServiceStub)
        request = checkpoint_internal_pb2.ReadArtifactRequest(run_id=run_id.bytes, digest=digest)
        try:
            async for part in stub.ReadArtifact(request, timeout=ARTIFACT_DEADLINE_S):
                yield part.data
        except grpc.aio.AioRpcError as error:
            raise refusal_of(error) from None


class LaunchOwners:
    """Owners of runs. Implements `ports.Owners`."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def owner(self, run_id: UUID) -> tuple[str, str] | None:
        """Tenant and project; None for a run that launch does not know."""
        stub = self._peers.stub("launch", launch_internal_pb2_grpc.LaunchInternalServiceStub)
        answer = await self._peers.ask(stub.GetOwners, launch_internal_pb2.GetOwnersRequest(run_ids=[run_id.bytes]))
        record = answer.owners[0]
        return (record.tenant, record.project) if record.known else None
