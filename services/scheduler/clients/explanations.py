"""Explanations of tickets, asked at any replica: by the leader of the run's shard, here or elsewhere, or by rows where none is.

Can go wrong: a leader that changed a moment ago. What the rows say is said then, and that nobody leads.
"""

from runway.internal.scheduler.v1 import scheduler_internal_pb2 as pb

from libs.kernel.ids import shard_of, uuid_from_bytes
from libs.kernel.refusal import Refusal
from libs.rpc.explained import at, blocker_to, estimate_to, position_to
from services.scheduler.app.explain_tickets import Explainer, Told
from services.scheduler.clients.leaders import Leaders
from services.scheduler.domain.asker import NOBODY
from services.scheduler.domain.ticket import TicketState

FORWARD_MS = 1_500
_STANDINGS = {
    TicketState.READY: pb.TICKET_STANDING_WAITING,
    TicketState.LEASED: pb.TICKET_STANDING_LEASED,
    TicketState.ENDING: pb.TICKET_STANDING_ENDING,
    TicketState.DONE: pb.TICKET_STANDING_OVER,
    TicketState.REVOKED: pb.TICKET_STANDING_OVER,
}


class Explanations:
    """Answers `ExplainTickets`."""

    def __init__(self, explainer: Explainer, leaders: Leaders) -> None:
        self._explainer = explainer
        self._leaders = leaders

    async def here(self, request: pb.ExplainTicketsRequest) -> pb.ExplainTicketsResponse:
        """As this process knows it."""
        run_id = uuid_from_bytes(request.run_id, "run_id")
        told = await self._explainer.explain(run_id, set(request.step_keys))
        return pb.ExplainTicketsResponse(tickets=[_told(item) for item in told])

    async def anywhere(self, request: pb.ExplainTicketsRequest) -> pb.ExplainTicketsResponse:
        """As the leader of the run's shard knows it."""
        shard = shard_of(uuid_from_bytes(request.run_id, "run_id"))
        for address in self._leaders.by_address([shard]):
            try:
                return await self._leaders.forward(
                    address, "explain", request, pb.ExplainTicketsResponse, [shard], NOBODY, deadline_ms=FORWARD_MS
                )
            except Refusal:
                break
        return await self.here(request)


def _told(told: Told) -> pb.TicketExplained:
    row = told.row
    since_ms = {TicketState.READY: row.enqueued_ms, TicketState.LEASED: row.leased_ms}.get(row.state, row.ended_ms)
    return pb.TicketExplained(
        step_key=row.step_key,
        standing=_STANDINGS[row.state],
        blockers=[blocker_to(found) for found in told.blockers],
        position=position_to(told.position),
        estimate=estimate_to(told.estimate),
        attempt_number=row.attempt_number,
        since=at(since_ms),
        worker_id=row.worker_id if row.state is TicketState.LEASED else "",
        handler=row.contract.handler,
    )
