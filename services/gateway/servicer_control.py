"""gRPC of the gateway for the other services: look-ups and findings, and its leaf port."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from runway.internal.fence.v1 import fence_pb2
from runway.internal.gateway.v1 import gateway_internal_pb2 as pb
from runway.internal.gateway.v1 import gateway_internal_pb2_grpc

from libs.fence.raising import FencePoint
from libs.outbox import Outgoing, Relay
from services.gateway import translate
from services.gateway.app.hold_approvals import Certificates, hold_approvals
from services.gateway.app.inspect_effects import inspect_effects
from services.gateway.app.resolve_effects import resolve_effects
from services.gateway.ports import Ports


class EffectServicer(gateway_internal_pb2_grpc.EffectServiceServicer):
    """What the reconciler asks."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def InspectEffects(self, request: pb.InspectEffectsRequest, context: Any) -> pb.InspectEffectsResponse:
        """See the contract."""
        found = await inspect_effects(self._ports, [translate.name(effect) for effect in request.effects])
        return pb.InspectEffectsResponse(inspections=[translate.inspection(item) for item in found])

    async def ResolveEffects(self, request: pb.ResolveEffectsRequest, context: Any) -> pb.ResolveEffectsResponse:
        """See the contract."""
        answers = await resolve_effects(self._ports, [translate.resolution(item) for item in request.resolutions])
        return pb.ResolveEffectsResponse(results=[translate.recorded(answer) for answer in answers])


class GatewayFences:
    """The gateway's leaf RPCs; implements `FencesHandler`. Events that a raise caused leave at once after its commit."""

    def __init__(
        self,
        point: FencePoint,
        collecting: Callable[[], dict[UUID, list[Outgoing]]],
        relay: Relay,
        certificates: Certificates,
        closed: Callable[[list[UUID]], object],
    ) -> None:
        """`closed` hears of runs that are closed here from now on; it only notes them."""
        self._closed = closed
        self._point = point
        self._certificates = certificates
        self._collecting = collecting
        self._relay = relay

    async def raise_fences(self, request: fence_pb2.RaiseFencesRequest) -> fence_pb2.RaiseFencesResponse:
        """Merges by maximum, then hands over what followed."""
        collected = self._collecting()
        response = await self._point.raise_fences(request)
        committed = {UUID(bytes=a.gate.run_id) for a in (*response.gates, *response.steps) if a.committed}
        self._relay.offer([event for run_id in committed for event in collected.get(run_id, ())])
        self._closed(
            [UUID(bytes=a.gate.run_id) for a in response.gates if a.committed and a.gate.mode == fence_pb2.MODE_CLOSED]
        )
        if request.approvals:
            answers = await hold_approvals(self._certificates, [translate.certificate(item) for item in request.approvals])
            response.approvals.extend(translate.held(answer) for answer in answers)
        return response

    async def get_fences(self, request: fence_pb2.GetFencesRequest) -> fence_pb2.GetFencesResponse:
        """What this point holds."""
        return await self._point.get_fences(request)
