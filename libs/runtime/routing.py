"""Authoritative for the two gRPC services that every process serves once for all it hosts: InboxService and FenceService,
routed by `request.service`.

Can go wrong: an answer that does not match its request. Counts are compared here, because a sender that pairs verdicts with
the wrong events would forget what was never applied.
"""

from collections import Counter
from typing import Any

from runway.internal.fence.v1 import fence_pb2, fence_pb2_grpc
from runway.internal.inbox.v1 import inbox_pb2, inbox_pb2_grpc

from libs.kernel.refusal import Reason, Refusal
from libs.rpc.server import Gate, Mounted
from libs.runtime.service import FencesHandler, Service
from libs.telemetry.catalogue import INBOX_EVENTS

INBOX = "runway.internal.inbox.v1.InboxService"
FENCES = "runway.internal.fence.v1.FenceService"
_VERDICTS = {
    inbox_pb2.VERDICT_APPLIED: "applied",
    inbox_pb2.VERDICT_RETRY: "retry",
    inbox_pb2.VERDICT_REFUSED: "refused",
    inbox_pb2.VERDICT_UNSPECIFIED: "unspecified",
}


class Router:
    """Finds the hosted service that a request names."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._services: dict[str, Service] = {}

    def add(self, service: Service) -> None:
        """Hosts a service."""
        self._services[service.name] = service

    def hosts(self, service: str) -> bool:
        """Whether the service lives in this process."""
        return service in self._services

    def mounted(self) -> list[Mounted]:
        """The two gRPC services, for the servers of this process."""
        return [
            Mounted(inbox_pb2_grpc.add_InboxServiceServicer_to_server, InboxServicer(self), INBOX),
            Mounted(fence_pb2_grpc.add_FenceServiceServicer_to_server, FenceServicer(self), FENCES),
        ]

    async def deliver(self, request: inbox_pb2.DeliverRequest) -> inbox_pb2.DeliverResponse:
        """Events, judged by the service they are for."""
        service = self._find(request.service)
        if service.inbox is None:
            raise _not_taken(service.name, "takes no events")
        incarnation, verdicts = await service.inbox(list(request.events))
        _same_count(service.name, len(request.events), len(verdicts))
        for kind, count in Counter(verdict.verdict for verdict in verdicts).items():
            INBOX_EVENTS.labels(service.name, _VERDICTS[kind]).inc(count)
        return inbox_pb2.DeliverResponse(verdicts=verdicts, incarnation=incarnation)

    async def list_stuck(self, request: inbox_pb2.ListStuckRequest) -> inbox_pb2.ListStuckResponse:
        """What of a service does not move."""
        service = self._find(request.service)
        return inbox_pb2.ListStuckResponse() if service.stuck is None else await service.stuck(request)

    async def raise_fences(self, request: fence_pb2.RaiseFencesRequest) -> fence_pb2.RaiseFencesResponse:
        """Fences merged at a point."""
        response = await self._fences(request.service).raise_fences(request)
        for asked, answered in (
            (request.gates, response.gates),
            (request.steps, response.steps),
            (request.scopes, response.scopes),
        ):
            _same_count(request.service, len(asked), len(answered))
        return response

    async def get_fences(self, request: fence_pb2.GetFencesRequest) -> fence_pb2.GetFencesResponse:
        """Fences read from their authority."""
        return await self._fences(request.service).get_fences(request)

    def _fences(self, name: str) -> FencesHandler:
        service = self._find(name)
        if service.fences is None:
            raise _not_taken(name, "has no fences")
        return service.fences

    def _find(self, name: str) -> Service:
        service = self._services.get(name)
        if service is None:
            raise Refusal(
                Reason.NOT_FOUND,
                f"this process does not host {name}",
                field="service",
                remedy="check the address settings of the sender",
            )
        self._gate.check(name)
        return service


class InboxServicer(inbox_pb2_grpc.InboxServiceServicer):
    """Events from the wire."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def Deliver(self, request: inbox_pb2.DeliverRequest, context: Any) -> inbox_pb2.DeliverResponse:
        """See the proto."""
        return await self._router.deliver(request)

    async def ListStuck(self, request: inbox_pb2.ListStuckRequest, context: Any) -> inbox_pb2.ListStuckResponse:
        """See the proto."""
        return await self._router.list_stuck(request)


class FenceServicer(fence_pb2_grpc.FenceServiceServicer):
    """Raises and cold reads from the wire."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def RaiseFences(self, request: fence_pb2.RaiseFencesRequest, context: Any) -> fence_pb2.RaiseFencesResponse:
        """See the proto."""
        return await self._router.raise_fences(request)

    async def GetFences(self, request: fence_pb2.GetFencesRequest, context: Any) -> fence_pb2.GetFencesResponse:
        """See the proto."""
        return await self._router.get_fences(request)


def _not_taken(name: str, why: str) -> Refusal:
    return Refusal(Reason.METHOD_DENIED, f"{name} {why}", field="service", remedy="this is a fault of the sender: report it")


def _same_count(name: str, asked: int, answered: int) -> None:
    if asked != answered:
        raise ValueError(f"{name} answered {answered} items for {asked}")
