"""What runs wait for, asked of readiness when somebody looks at one. Implements `ports.Waits`.

Can go wrong: readiness is away. A run is then shown without its reasons, which is true and less; nobody waits for them.
"""

from collections.abc import Sequence
from uuid import UUID

from runway.internal.readiness.v1 import readiness_internal_pb2, readiness_internal_pb2_grpc

from libs.kernel.refusal import Refusal
from libs.runtime.peers import Peers
from services.launch.domain.facts import Waiting

_DEADLINE_MS = 500


class WaitClient:
    """One call for a batch of runs."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def waits(self, run_ids: Sequence[UUID]) -> dict[UUID, Waiting]:
        """Of runs that wait for something."""
        request = readiness_internal_pb2.GetWaitsRequest(run_ids=[run_id.bytes for run_id in run_ids])
        try:
            stub = self._peers.stub("readiness", readiness_internal_pb2_grpc.ReadinessInternalServiceStub)
            answer = await self._peers.ask(stub.GetWaits, request, deadline_ms=_DEADLINE_MS)
        except Refusal:
            return {}
        found = zip(run_ids, answer.waits, strict=True)
        return {run_id: Waiting(item.all_wait, tuple(item.reasons)) for run_id, item in found if item.reasons}
