"""Launch as the authority for gates, read cold over its leaf port. Implements `ports.Gates`.

Can go wrong: stamping with an incarnation that began after the question; it is read before the question is asked.
"""

from collections.abc import Callable, Collection
from uuid import UUID

from runway.internal.fence.v1 import fence_pb2

from libs.fence.wire import gate_from, scope_from
from libs.kernel.refusal import unreachable
from libs.runtime.peers import Peers
from services.scheduler.store.fences import FenceRead

MOST = 2000


class LaunchGates:
    """Asks for many runs at once."""

    def __init__(self, peers: Peers, incarnation: Callable[[], int], *, deadline_ms: int = 2_000) -> None:
        self._peers = peers
        self._incarnation = incarnation
        self._deadline_ms = deadline_ms

    async def read(self, runs: Collection[UUID]) -> FenceRead:
        """Gates of these runs and the scopes of theirs that are not open."""
        started_in = self._incarnation()
        ordered = sorted(runs)
        gates, scopes, incarnation = [], [], 0
        for start in range(0, len(ordered), MOST):
            part = ordered[start : start + MOST]
            request = fence_pb2.GetFencesRequest(service="launch", run_ids=[run_id.bytes for run_id in part])
            answer = await self._peers.get_fences("launch", request, deadline_ms=self._deadline_ms)
            found = [gate_from(gate) for gate in answer.gates]
            if [gate.run_id for gate in found] != part:
                raise unreachable("an authority that answers for every run asked")
            gates += found
            scopes += [scope_from(scope) for scope in answer.scopes]
            incarnation = max(incarnation, answer.incarnation)
        return FenceRead(started_in, tuple(gates), tuple(scopes), incarnation)
