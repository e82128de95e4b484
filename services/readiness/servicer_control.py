"""gRPC of readiness for the other services: read → translate."""

from collections.abc import Sequence
from typing import Any, Protocol
from uuid import UUID

from runway.internal.readiness.v1 import readiness_internal_pb2 as pb
from runway.internal.readiness.v1 import readiness_internal_pb2_grpc

from services.readiness.clients.explanations import Explanations


class WaitReads(Protocol):
    """Where waits are read."""

    async def waits(self, run_ids: Sequence[UUID]) -> dict[UUID, tuple[bool, tuple[str, ...]]]:
        """Whether every open step waits, and for what; a run without open steps is missing."""
        ...


class InternalServicer(readiness_internal_pb2_grpc.ReadinessInternalServiceServicer):
    """Waits of runs, and why steps have no ticket."""

    def __init__(self, reads: WaitReads, explanations: Explanations) -> None:
        self._reads = reads
        self._explanations = explanations

    async def ExplainSteps(self, request: pb.ExplainStepsRequest, context: Any) -> pb.ExplainStepsResponse:
        """See the contract."""
        return await self._explanations.steps(request)

    async def GetWaits(self, request: pb.GetWaitsRequest, context: Any) -> pb.GetWaitsResponse:
        """See the contract."""
        run_ids = [UUID(bytes=raw) for raw in request.run_ids]
        found = await self._reads.waits(run_ids)
        nothing: tuple[bool, tuple[str, ...]] = (False, ())
        waits = [found.get(run_id, nothing) for run_id in run_ids]
        return pb.GetWaitsResponse(waits=[pb.RunWaits(all_wait=all_wait, reasons=reasons) for all_wait, reasons in waits])
