"""gRPC of the scheduler for operators: parse → app → translate. Holds, hand-over of shards, queues.

Can go wrong: taking an actor for proved. Whoever has the installation's secret may write any name; it is kept for people.
"""

from collections.abc import Sequence
from typing import Any, Protocol
from uuid import UUID

from runway.scheduler.v1 import control_service_pb2 as pb
from runway.scheduler.v1 import control_service_pb2_grpc

from libs.kernel.clock import Clock
from libs.kernel.ids import NIL
from libs.kernel.refusal import invalid_field
from services.scheduler import translate, translate_operators
from services.scheduler.app.hand_over import HandOver, MoveAsk
from services.scheduler.app.hold_desk import HoldAsk, HoldDesk
from services.scheduler.app.reset_shards import ResetOrders, reset_shards
from services.scheduler.domain.holds import HoldKind, HoldMode
from services.scheduler.domain.ticket import Key, Recorded

DEFAULT_HOLDS = 100
DEFAULT_QUEUES = 100
DEFAULT_TICKETS = 1_000
LAST_ID = UUID(int=2**128 - 1)


class RecordedReads(Protocol):
    """Tickets as they were."""

    async def recorded(
        self, first: UUID, before: UUID, after: Key, tenant: str, limit: int
    ) -> tuple[Sequence[Recorded], Key | None]:
        """Tickets of so many steps of runs from an id to before another, after a step; the last step, where there are more."""
        ...


class ControlServicer(control_service_pb2_grpc.ControlServiceServicer):
    """What operators hold, drain and hand over."""

    def __init__(
        self, holds: HoldDesk, hand_over: HandOver, recorded: RecordedReads, orders: ResetOrders, clock: Clock
    ) -> None:
        self._holds = holds
        self._orders = orders
        self._clock = clock
        self._recorded = recorded
        self._hand_over = hand_over

    async def PutHold(self, request: pb.PutHoldRequest, context: Any) -> pb.PutHoldResponse:
        """See the contract."""
        done = await self._holds.put(_ask(request), HoldMode(request.mode), unseen=request.unseen)
        return pb.PutHoldResponse(
            hold=translate_operators.hold(done.hold),
            extent=translate_operators.extent(done.extent),
            replicas=[translate_operators.replica(one) for one in done.acting],
            changed=done.changed,
        )

    async def ReleaseHold(self, request: pb.ReleaseHoldRequest, context: Any) -> pb.ReleaseHoldResponse:
        """See the contract."""
        done = await self._holds.release(_ask(request), request.hold_id)
        replicas = [translate_operators.replica(one) for one in done.acting]
        return pb.ReleaseHoldResponse(
            hold=translate_operators.hold(done.hold), extent=translate_operators.extent(done.extent), replicas=replicas
        )

    async def ListHolds(self, request: pb.ListHoldsRequest, context: Any) -> pb.ListHoldsResponse:
        """See the contract."""
        size = request.page_size or DEFAULT_HOLDS
        below = translate_operators.parse_holds_token(request.page_token)
        found, acting = await self._holds.listed(int(request.kind), request.released, below, size + 1)
        token = str(found[size - 1].hold_id) if len(found) > size else ""
        holds = [translate_operators.hold(item) for item in found[:size]]
        return pb.ListHoldsResponse(
            holds=holds, replicas=[translate_operators.replica(one) for one in acting], next_page_token=token
        )

    async def DrainShards(self, request: pb.DrainShardsRequest, context: Any) -> pb.DrainShardsResponse:
        """See the contract."""
        ask = MoveAsk(
            frozenset(request.shards),
            request.member,
            request.to,
            request.reason,
            translate.name(request.actor, "actor"),
            request.dry_run,
        )
        return pb.DrainShardsResponse(moves=[translate_operators.move(item) for item in await self._hand_over.drain(ask)])

    async def ReturnShards(self, request: pb.ReturnShardsRequest, context: Any) -> pb.ReturnShardsResponse:
        """See the contract."""
        actor = translate.name(request.actor, "actor")
        return pb.ReturnShardsResponse(shards=await self._hand_over.take_back(list(request.shards), request.reason, actor))

    async def ResetShards(self, request: pb.ResetShardsRequest, context: Any) -> pb.ResetShardsResponse:
        """See the contract."""
        actor = translate.name(request.actor, "actor")
        until_ms = await reset_shards(self._orders, self._clock, actor, request.reason, etcd_lost=request.etcd_lost)
        return pb.ResetShardsResponse(until=translate.timestamp(until_ms))

    async def ExportTickets(self, request: pb.ExportTicketsRequest, context: Any) -> pb.ExportTicketsResponse:
        """See the contract."""
        size = request.page_size or DEFAULT_TICKETS
        first = translate_operators.first_id(request, "from", NIL)
        before = translate_operators.first_id(request, "until", LAST_ID)
        after = translate_operators.parse_tickets_token(request.page_token)
        found, last = await self._recorded.recorded(first, before, after, request.tenant, size)
        token = translate_operators.tickets_token(last) if last is not None else ""
        return pb.ExportTicketsResponse(
            tickets=[translate_operators.recorded(ticket) for ticket in found], next_page_token=token
        )

    async def ListQueues(self, request: pb.ListQueuesRequest, context: Any) -> pb.ListQueuesResponse:
        """See the contract."""
        size = request.page_size or DEFAULT_QUEUES
        after = ("", "", "")
        if request.page_token:
            parts = request.page_token.split("\n")
            if len(parts) != 3:
                raise invalid_field("page_token", "is of no page of this list", "send the token of the page before")
            after = (parts[0], parts[1], parts[2])
        found = await self._holds.queues(request.name, after, size + 1)
        last = found[size - 1].row if len(found) > size else None
        token = f"{last.tenant}\n{last.project}\n{last.handler}" if last is not None else ""
        return pb.ListQueuesResponse(queues=[translate_operators.queue(item) for item in found[:size]], next_page_token=token)


def _ask(request: pb.PutHoldRequest | pb.ReleaseHoldRequest) -> HoldAsk:
    kind, actor = HoldKind(request.kind), translate.name(request.actor, "actor")
    return HoldAsk(kind, translate.name(request.name, "name"), request.reason, actor, request.dry_run)
