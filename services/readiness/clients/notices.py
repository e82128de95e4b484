"""Builds the events that readiness sends. Implements `ports.Notices`; every event carries its run's trace."""

from collections.abc import Mapping, Sequence

from runway.events.v1 import events_pb2

from libs.kernel.ids import IdSource
from services.readiness import translate
from services.readiness.domain.graph import Graph
from services.readiness.domain.steps import GraphEnd, Step, StepState
from services.readiness.ports import Notice, RunFacts


class EventNotices:
    """Stateless but for where ids come from."""

    def __init__(self, ids: IdSource) -> None:
        self._ids = ids

    def _event(self, run: RunFacts, receiver: str, kind: str, event: events_pb2.Event, now_ms: int) -> Notice:
        event.event_id = self._ids.random128().bytes
        event.at_ms = now_ms
        event.traceparent = run.traceparent
        return Notice(receiver, kind, run.run_id, event.SerializeToString())

    def ready(self, run: RunFacts, graph: Graph, step: Step, steps: Mapping[str, Step], now_ms: int) -> Notice:
        """StepReady."""
        node = graph.nodes[step.key]
        needed = [steps[need.step] for need in node.needs]
        outputs = {before.key: before.output for before in needed if before.state == StepState.SUCCEEDED}
        contract = node.contract
        fact = events_pb2.StepReady(
            run_id=run.run_id.bytes,
            step_key=step.key,
            ticket_sequence=step.ticket_sequence,
            tenant=run.tenant,
            project=run.project,
            run_class=run.run_class,
            priority=run.priority,
            deadline_ms=run.deadline_ms,
            contract=events_pb2.StepContract(
                handler=contract.handler,
                timeout_ms=contract.timeout_ms,
                lease_ttl_ms=contract.lease_ttl_ms,
                tools=contract.tools,
                models=contract.models,
                checkpoints=contract.checkpoints,
                requires=contract.requires,
                points=contract.points,
            ),
            input=translate.ticket_input(run.input, outputs),
            attempt_number=step.attempts + 1,
            epoch=run.epoch,
            workflow_digest=run.digest,
        )
        return self._event(run, "scheduler", "step_ready", events_pb2.Event(step_ready=fact), now_ms)

    def finished(self, run: RunFacts, step: Step, now_ms: int) -> Notice:
        """StepFinished."""
        fact = translate.finished_event(run, step, now_ms)
        return self._event(run, "launch", "step_finished", events_pb2.Event(step_finished=fact), now_ms)

    def graph_finished(
        self, run: RunFacts, graph: Graph, end: GraphEnd, steps: Mapping[str, Step], told: Sequence[Step], now_ms: int
    ) -> Notice:
        """GraphFinished."""
        fact = events_pb2.GraphFinished(
            run_id=run.run_id.bytes,
            outcome=end.outcome,
            output=translate.graph_output(graph, steps) if end.outcome == "succeeded" else b"",
            failure=translate.failure_event(end.failure) if end.failure else None,
            failed_step=end.failed_step,
            steps=[translate.finished_event(run, step, now_ms) for step in told],
        )
        return self._event(run, "launch", "graph_finished", events_pb2.Event(graph_finished=fact), now_ms)
