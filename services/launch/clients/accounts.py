"""What readiness and the scheduler say of a run, over the wire. Implements `app.explain_run.Accounts`.

Can go wrong: one that is away. It is waited for no longer than a person would.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from runway.internal.readiness.v1 import readiness_internal_pb2, readiness_internal_pb2_grpc
from runway.internal.scheduler.v1 import scheduler_internal_pb2, scheduler_internal_pb2_grpc

from libs.rpc.explained import blocker_from, estimate_from, position_from
from libs.runtime.peers import Peers
from services.launch.app.explain_run import StepsSaid
from services.launch.domain.explain import StepSaid, TicketSaid

_READINESS_MS = 1_500
_SCHEDULER_MS = 2_500


class AccountClients:
    """A call each."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def steps(self, run_id: UUID, step_key: str, after: int, limit: int) -> StepsSaid:
        """Steps that are not over, or the one that is named."""
        stub = self._peers.stub("readiness", readiness_internal_pb2_grpc.ReadinessInternalServiceStub)
        request = readiness_internal_pb2.ExplainStepsRequest(
            run_id=run_id.bytes, step_key=step_key, page_size=limit, after=after
        )
        answer = await self._peers.ask(stub.ExplainSteps, request, deadline_ms=_READINESS_MS)
        steps = [
            StepSaid(step.step_key, step.state, [blocker_from(said) for said in step.blockers], step.attempts)
            for step in answer.steps
        ]
        return StepsSaid(answer.known, steps, answer.next_after, [blocker_from(said) for said in answer.below])

    async def tickets(self, run_id: UUID, step_keys: Sequence[str]) -> Mapping[str, TicketSaid]:
        """Tickets of these steps; of all with an open one where none is named."""
        stub = self._peers.stub("scheduler", scheduler_internal_pb2_grpc.SchedulerInternalServiceStub, "control")
        request = scheduler_internal_pb2.ExplainTicketsRequest(run_id=run_id.bytes, step_keys=step_keys)
        answer = await self._peers.ask(stub.ExplainTickets, request, deadline_ms=_SCHEDULER_MS)
        return {ticket.step_key: _ticket(ticket) for ticket in answer.tickets}


def _ticket(said: scheduler_internal_pb2.TicketExplained) -> TicketSaid:
    return TicketSaid(
        step_key=said.step_key,
        standing=int(said.standing),
        blockers=[blocker_from(found) for found in said.blockers],
        position=position_from(said.position) if said.HasField("position") else None,
        estimate=estimate_from(said.estimate) if said.HasField("estimate") else None,
        attempt_number=said.attempt_number,
        since_ms=said.since.ToMilliseconds(),
        worker_id=said.worker_id,
        handler=said.handler,
    )
