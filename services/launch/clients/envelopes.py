"""Runs' envelopes at the gateway, over the wire. Implements `ports.Envelopes`.

Can go wrong: the gateway does not answer. Nothing is assumed: taking slices is refused, and is repeated by the same names.
"""

from collections.abc import Sequence
from uuid import UUID

from runway.internal.gateway.v1 import gateway_internal_pb2 as pb
from runway.internal.gateway.v1 import gateway_internal_pb2_grpc

from libs.runtime.peers import Peers
from services.launch.clients.notices import open_gate
from services.launch.domain.children import Envelope, SliceTaken
from services.launch.domain.run import RunHead

_TAKE_MS = 4_000
_READ_MS = 1_000
_MOST_ASKS = 200


class EnvelopeClient:
    """One call for a batch of parents."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    def _stub(self) -> gateway_internal_pb2_grpc.EnvelopeServiceStub:
        return self._peers.stub("gateway", gateway_internal_pb2_grpc.EnvelopeServiceStub)

    async def take(self, asks: Sequence[tuple[RunHead, Sequence[tuple[bytes, int, int]]]]) -> list[SliceTaken]:
        """Slices out of parents' envelopes."""
        found: list[SliceTaken] = []
        for at in range(0, len(asks), _MOST_ASKS):
            request = pb.TakeSlicesRequest(
                asks=[
                    pb.SliceAsk(
                        gate=open_gate(head),
                        slices=[pb.Slice(delegation=name, micros=micros, sequence=n) for name, micros, n in slices],
                    )
                    for head, slices in asks[at : at + _MOST_ASKS]
                ]
            )
            answer = await self._peers.ask(self._stub().TakeSlices, request, deadline_ms=_TAKE_MS)
            found += [SliceTaken(item.taken, item.reason, item.free_micros) for item in answer.answers]
        return found

    async def read(self, run_ids: Sequence[UUID]) -> dict[UUID, Envelope]:
        """What gates hold."""
        request = pb.ReadEnvelopesRequest(run_ids=[run_id.bytes for run_id in run_ids])
        answer = await self._peers.ask(self._stub().ReadEnvelopes, request, deadline_ms=_READ_MS)
        return {
            run_id: Envelope(
                item.held_micros,
                item.used_micros,
                item.granted_micros - item.held_micros - item.used_micros - item.delegated_micros,
            )
            for run_id, item in zip(run_ids, answer.envelopes, strict=True)
            if item.known and item.granted_micros  # a gate that has not been told its grant yet says nothing of what is free
        }
