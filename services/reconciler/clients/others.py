"""What the reconciler asks of every service. Implements `ports.Others`."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

from runway.internal.inbox.v1 import inbox_pb2
from runway.internal.launch.v1 import launch_internal_pb2, launch_internal_pb2_grpc

from libs.kernel.refusal import Refusal
from libs.runtime.peers import Peers
from libs.runtime.service import SERVICES
from services.reconciler import translate
from services.reconciler.ports import Stuck

_DEADLINE_MS = 5_000
_LISTED = 1000


class OtherServices:
    """Whoever can be asked."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def owners(self, run_ids: Sequence[UUID]) -> dict[UUID, tuple[str, str]]:
        """Tenant and project of runs."""
        stub = self._peers.stub("launch", launch_internal_pb2_grpc.LaunchInternalServiceStub)
        request = launch_internal_pb2.GetOwnersRequest(run_ids=[run_id.bytes for run_id in run_ids])
        answer = await self._peers.ask(stub.GetOwners, request, deadline_ms=_DEADLINE_MS)
        found = zip(run_ids, answer.owners, strict=True)
        return {run_id: (record.tenant, record.project) for run_id, record in found if record.known}

    async def stuck(self, older_than_ms: int) -> tuple[list[Stuck], list[str]]:
        """What every service says does not move, and who could not be asked."""

        async def ask(service: str) -> list[Stuck] | None:
            request = inbox_pb2.ListStuckRequest(service=service, older_than_ms=older_than_ms, limit=_LISTED)
            try:
                answer = await self._peers.list_stuck(service, request, deadline_ms=_DEADLINE_MS)
            except Refusal:
                return None
            return [translate.stuck(service, item) for item in answer.items]

        answers = dict(zip(SERVICES, await asyncio.gather(*[ask(service) for service in SERVICES]), strict=True))
        found = [one for answer in answers.values() for one in answer or ()]
        return found, [service for service, answer in answers.items() if answer is None]
