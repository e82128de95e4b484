"""The enforcement points over the wire: raises asked for at once, beside the outbox that repeats them for ever.

Implements `ports.Points`. Can go wrong: a point that does not answer in time. Its receipt is then missing, not assumed.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol
from uuid import UUID

from runway.internal.fence.v1 import fence_pb2

from libs.fence.grants import revoked_of
from libs.kernel.epochs import Mode
from libs.kernel.refusal import Refusal
from services.launch.clients.notices import gate_message, moved_gate
from services.launch.domain.adopting import Held
from services.launch.domain.closing import Decided, Receipt
from services.launch.domain.facts import InFlight
from services.launch.domain.pausing import Moved
from services.launch.domain.run import RunHead
from services.launch.domain.scopes import Ack, Name, Scope
from services.launch.domain.workflow import POINT_NAMES


class Raises(Protocol):
    """What of the peers this needs."""

    async def raise_fences(
        self, service: str, request: fence_pb2.RaiseFencesRequest, *, deadline_ms: int | None = None
    ) -> fence_pb2.RaiseFencesResponse:
        """Raises at one point."""
        ...

    async def get_fences(
        self, service: str, request: fence_pb2.GetFencesRequest, *, deadline_ms: int | None = None
    ) -> fence_pb2.GetFencesResponse:
        """What one point holds."""
        ...


Raised = tuple[RunHead, fence_pb2.RunGate]
"""A run and the gate that it gets."""
HELD_DEADLINE_MS = 5_000
MOST_GATES = 500
"""Of one raise: more would hold its point's locks for long."""


class PointClients:
    """Asks all points of a batch of closings at the same time."""

    def __init__(self, peers: Raises) -> None:
        self._peers = peers

    async def raise_now(self, decided: Sequence[Decided], deadline_ms: int) -> tuple[list[Receipt], list[InFlight]]:
        """What was confirmed within the deadline, and effects that were unresolved then."""
        return await self._raise([(item.head, gate_message(item)) for item in decided], deadline_ms)

    async def raise_moved(self, moved: Sequence[Moved], deadline_ms: int) -> tuple[list[Receipt], list[InFlight]]:
        """The same of pauses and resumes."""
        return await self._raise([(item.head, moved_gate(item)) for item in moved], deadline_ms)

    async def _raise(self, gates: Sequence[Raised], deadline_ms: int) -> tuple[list[Receipt], list[InFlight]]:
        asked = {bit: [item for item in gates if item[0].points & bit] for bit in POINT_NAMES}
        parts = [(bit, items[at : at + MOST_GATES]) for bit, items in asked.items() for at in range(0, len(items), MOST_GATES)]
        answers = await asyncio.gather(*(self._ask(bit, items, deadline_ms) for bit, items in parts))
        receipts = [receipt for confirmed, _ in answers for receipt in confirmed]
        return receipts, [effect for _, effects in answers for effect in effects]

    async def held(self, run_ids: Sequence[UUID]) -> dict[UUID, Held]:
        """The greatest gate of each run; every point must answer."""
        raw = [run_id.bytes for run_id in run_ids]
        requests = [fence_pb2.GetFencesRequest(service=name, run_ids=raw) for name in POINT_NAMES.values()]
        answers = await asyncio.gather(*(self._held(request) for request in requests))
        greatest = {run_id: Held(run_id, 0, Mode.OPEN, "") for run_id in run_ids}
        for found in (item for answer in answers for item in answer):
            known = greatest[found.run_id]
            revoked = tuple({one.capability: one for one in (*known.revoked, *found.revoked)}.values())
            greater = max(known, found, key=lambda held: (held.epoch, held.mode))
            greatest[found.run_id] = replace(greater, revoked=revoked)
        return greatest

    async def open_runs(self, after: UUID, limit: int) -> tuple[list[Held], UUID | None]:
        """A page of what any point holds open. A point whose page is full may hold more, so nothing beyond its last is used."""
        page = fence_pb2.OpenRuns(after=after.bytes, limit=limit)
        requests = [fence_pb2.GetFencesRequest(service=name, open_runs=page) for name in POINT_NAMES.values()]
        answers = await asyncio.gather(*(self._held(request) for request in requests))
        full = [answer[-1].run_id for answer in answers if len(answer) == limit]
        end = min(full, default=None)
        greatest: dict[UUID, Held] = {}
        for found in (item for answer in answers for item in answer):
            known = greatest.get(found.run_id, found)
            if end is None or found.run_id <= end:
                greatest[found.run_id] = max(found, known, key=lambda held: (held.epoch, held.mode))
        return [greatest[run_id] for run_id in sorted(greatest)], end

    async def raise_scope(self, scope: Scope, deadline_ms: int) -> list[Ack]:
        """Points that committed the fence within the deadline."""
        answers = await asyncio.gather(*(self._raise_scope(name, scope, deadline_ms) for name in POINT_NAMES.values()))
        return [ack for ack in answers if ack is not None]

    async def _raise_scope(self, point: str, scope: Scope, deadline_ms: int) -> Ack | None:
        request = fence_pb2.RaiseFencesRequest(service=point, scopes=[scope_fence(scope)])
        try:
            response = await self._peers.raise_fences(point, request, deadline_ms=deadline_ms)
        except Refusal:
            return None
        return Ack(scope.name, point, scope.epoch) if response.scopes[0].committed else None

    async def held_scopes(self) -> list[Scope]:
        """What any point holds of scopes; every point must answer."""
        requests = [fence_pb2.GetFencesRequest(service=name) for name in POINT_NAMES.values()]
        answers = await asyncio.gather(*(self._peers.get_fences(r.service, r, deadline_ms=HELD_DEADLINE_MS) for r in requests))
        return [
            Scope(Name(found.kind, found.scope_id), found.epoch, Mode(found.mode))
            for answer in answers
            for found in answer.scopes
        ]

    async def _held(self, request: fence_pb2.GetFencesRequest) -> list[Held]:
        answer = await self._peers.get_fences(request.service, request, deadline_ms=HELD_DEADLINE_MS)
        return [
            Held(UUID(bytes=gate.run_id), gate.epoch, Mode(gate.mode), gate.outcome, tuple(revoked_of(gate.capabilities)))
            for gate in answer.gates
        ]

    async def _ask(self, bit: int, items: Sequence[Raised], deadline_ms: int) -> tuple[list[Receipt], list[InFlight]]:
        name = POINT_NAMES[bit]
        request = fence_pb2.RaiseFencesRequest(service=name, gates=[gate for _, gate in items])
        try:
            response = await self._peers.raise_fences(name, request, deadline_ms=deadline_ms)
        except Refusal:
            return [], []
        receipts = [receipt_of(head.run_id, bit, answer) for (head, _), answer in zip(items, response.gates, strict=True)]
        effects = [
            InFlight(head.run_id, effect.step_key, effect.slot, effect.state, effect.tool)
            for (head, _), answer in zip(items, response.gates, strict=True)
            for effect in answer.unresolved
        ]
        return receipts, effects


def scope_fence(scope: Scope) -> fence_pb2.ScopeFence:
    """A scope's fence on the wire."""
    mode = fence_pb2.Mode.ValueType(int(scope.mode))
    return fence_pb2.ScopeFence(kind=scope.name.kind, scope_id=scope.name.scope_id, epoch=scope.epoch, mode=mode)


def scope_raises(scope: Scope) -> dict[str, bytes]:
    """The raise of a scope's fence for each point."""
    fence = scope_fence(scope)
    return {
        point: fence_pb2.RaiseFencesRequest(service=point, scopes=[fence]).SerializeToString() for point in POINT_NAMES.values()
    }


def scope_ack(point: str, payload: bytes, answer: bytes) -> Ack | None:
    """What a point's answer says of a raised scope; None where it was no scope, or is not committed."""
    raised = fence_pb2.RaiseFencesRequest.FromString(payload).scopes
    if not raised or not fence_pb2.RaiseAnswer.FromString(answer).committed:
        return None
    return Ack(Name(raised[0].kind, raised[0].scope_id), point, raised[0].epoch)


def receipt_of(run_id: UUID, point: int, answer: fence_pb2.RaiseAnswer) -> Receipt:
    """A point's answer as a receipt; epoch 0 where it did not commit the raise, or holds another epoch than was raised."""
    used = (answer.used_micros, answer.used_tokens, answer.usage_sequence)
    epoch = answer.gate.epoch if answer.committed else 0
    return Receipt(run_id, point, epoch, answer.quiesced, *used, Mode(answer.gate.mode))
