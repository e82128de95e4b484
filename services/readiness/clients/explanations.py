"""Explanations of steps for launch: read, decide, translate. Authoritative for nothing.

Can go wrong: a run that was launched a moment ago, or is forgotten. It is answered as not known.
"""

from uuid import UUID

from runway.internal.readiness.v1 import readiness_internal_pb2 as pb

from libs.kernel.refusal import not_found
from libs.rpc.explained import blocker_to
from services.readiness.domain.explain import explain
from services.readiness.domain.graph import Graph
from services.readiness.domain.steps import TERMINAL, Step
from services.readiness.ports import StepReads, Versions

DEFAULT_PAGE = 100


class Explanations:
    """Answers `ExplainSteps`."""

    def __init__(self, reads: StepReads, versions: Versions) -> None:
        self._reads = reads
        self._versions = versions

    async def steps(self, request: pb.ExplainStepsRequest) -> pb.ExplainStepsResponse:
        """A page of steps that are not over, or the one that is named."""
        found = await self._reads.read_steps(UUID(bytes=request.run_id))
        if found is None:
            return pb.ExplainStepsResponse(known=False)
        run, steps = found
        graph = (await self._versions.graphs([run.digest]))[run.digest]
        if request.step_key:
            if request.step_key not in steps:
                raise not_found("step")
            return pb.ExplainStepsResponse(known=True, steps=[_explained(graph, steps, request.step_key)])
        size = request.page_size or DEFAULT_PAGE
        open_ = [
            (place, key)
            for place, key in enumerate(graph.order, 1)
            if place > request.after and steps[key].state not in TERMINAL
        ]
        page = [_explained(graph, steps, key) for _, key in open_[:size]]
        return pb.ExplainStepsResponse(known=True, steps=page, next_after=open_[size - 1][0] if len(open_) > size else 0)


def _explained(graph: Graph, steps: dict[str, Step], key: str) -> pb.StepExplained:
    step = steps[key]
    return pb.StepExplained(
        step_key=key,
        state=step.state.name.lower(),
        blockers=[blocker_to(found) for found in explain(graph.nodes[key], steps)],
        attempts=step.attempts,
        ticket_sequence=step.ticket_sequence,
    )
