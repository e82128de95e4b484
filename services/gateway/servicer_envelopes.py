"""gRPC of envelopes, for launch: parse → app → translate."""

from typing import Any

from runway.internal.gateway.v1 import gateway_internal_pb2 as pb
from runway.internal.gateway.v1 import gateway_internal_pb2_grpc

from libs.fence.wire import gate_from
from services.gateway import translate
from services.gateway.app.divide_envelopes import read_envelopes, take_slices
from services.gateway.domain.envelopes import Envelope, Slice, SliceAsk
from services.gateway.ports import Ports


class EnvelopeServicer(gateway_internal_pb2_grpc.EnvelopeServiceServicer):
    """What launch asks."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def TakeSlices(self, request: pb.TakeSlicesRequest, context: Any) -> pb.TakeSlicesResponse:
        """See the contract."""
        gates = [gate_from(ask.gate) for ask in request.asks]
        asks = [
            SliceAsk(gate.run_id, tuple(Slice(s.delegation, s.micros, s.sequence) for s in ask.slices))
            for gate, ask in zip(gates, request.asks, strict=True)
        ]
        answers = await take_slices(self._ports, gates, asks)
        return pb.TakeSlicesResponse(
            answers=[pb.SliceAnswer(taken=a.taken, reason=a.reason, free_micros=a.free) for a in answers]
        )

    async def ReadEnvelopes(self, request: pb.ReadEnvelopesRequest, context: Any) -> pb.ReadEnvelopesResponse:
        """See the contract."""
        run_ids = [translate.run_id(raw) for raw in request.run_ids]
        found = await read_envelopes(self._ports, run_ids)
        return pb.ReadEnvelopesResponse(envelopes=[_message(found.get(run_id)) for run_id in run_ids])


def _message(envelope: Envelope | None) -> pb.Envelope:
    if envelope is None:
        return pb.Envelope()
    return pb.Envelope(
        known=True,
        granted_micros=envelope.granted,
        held_micros=envelope.held,
        used_micros=envelope.used,
        delegated_micros=envelope.delegated,
        envelope_sequence=envelope.sequence,
    )
