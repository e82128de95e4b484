"""The enforcement points over the wire: raises asked for at once, beside the outbox that repeats them for ever.

Implements `ports.Points`. Can go wrong: a point that does not answer in time. Its receipt is then missing, not assumed.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from runway.internal.fence.v1 import fence_pb2

from libs.kernel.refusal import Refusal
from services.launch.clients.notices import gate_message
from services.launch.domain.closing import Decided, Receipt
from services.launch.domain.workflow import POINT_NAMES
from services.launch.ports import InFlight


class Raises(Protocol):
    """What of the peers this needs."""

    async def raise_fences(
        self, service: str, request: fence_pb2.RaiseFencesRequest, *, deadline_ms: int | None = None
    ) -> fence_pb2.RaiseFencesResponse:
        """Raises at one point."""
        ...


class PointClients:
    """Asks all points of a batch of closings at the same time."""

    def __init__(self, peers: Raises) -> None:
        self._peers = peers

    async def raise_now(self, decided: Sequence[Decided], deadline_ms: int) -> tuple[list[Receipt], list[InFlight]]:
        """What was confirmed within the deadline, and effects that were unresolved then."""
        asked = {bit: [item for item in decided if item.head.points & bit] for bit in POINT_NAMES}
        answers = await asyncio.gather(*(self._ask(bit, items, deadline_ms) for bit, items in asked.items() if items))
        receipts = [receipt for confirmed, _ in answers for receipt in confirmed]
        return receipts, [effect for _, effects in answers for effect in effects]

    async def _ask(self, bit: int, items: Sequence[Decided], deadline_ms: int) -> tuple[list[Receipt], list[InFlight]]:
        name = POINT_NAMES[bit]
        request = fence_pb2.RaiseFencesRequest(service=name, gates=[gate_message(item) for item in items])
        try:
            response = await self._peers.raise_fences(name, request, deadline_ms=deadline_ms)
        except Refusal:
            return [], []
        receipts = [receipt_of(item.head.run_id, bit, answer) for item, answer in zip(items, response.gates, strict=True)]
        effects = [
            InFlight(item.head.run_id, effect.step_key, effect.slot, effect.state, effect.tool)
            for item, answer in zip(items, response.gates, strict=True)
            for effect in answer.unresolved
        ]
        return receipts, effects


def receipt_of(run_id: UUID, point: int, answer: fence_pb2.RaiseAnswer) -> Receipt:
    """A point's answer as a receipt; epoch 0 where it did not commit the raise, or holds another epoch than was raised."""
    return Receipt(run_id, point, answer.gate.epoch if answer.committed else 0, answer.quiesced)
