"""Builds the events that readiness sends. Implements `ports.Notices`; every event carries its run's trace."""

from collections import OrderedDict
from collections.abc import Sequence

from runway.events.v1 import events_pb2

from libs.kernel.ids import IdSource
from services.readiness import translate
from services.readiness.domain.graph import Graph, base_of
from services.readiness.domain.state import RunView, Step
from services.readiness.domain.steps import GraphEnd
from services.readiness.domain.waits import Wait, class_of
from services.readiness.ports import Notice, RunFacts

REMEMBERED_BYTES = 8_388_608
"""What templates of tickets may weigh on the wire; in memory it is a few times that."""


class EventNotices:
    """Stateless but for where ids come from, and for what is the same in every run of a version."""

    def __init__(self, ids: IdSource, ticket_limit_bytes: int) -> None:
        self._ids = ids
        self._ticket_limit_bytes = ticket_limit_bytes
        self._same: OrderedDict[tuple[bytes, str], tuple[events_pb2.StepReady, int]] = OrderedDict()
        self._bytes = 0

    def _template(self, digest: bytes, graph: Graph, key: str) -> events_pb2.StepReady:
        """What every ticket of a step says."""
        kept = self._same.get((digest, key))
        if kept is None:
            successors = translate.successors_event(graph, key, self._ticket_limit_bytes)
            told = 0 < successors.ByteSize() <= translate.SUCCESSORS_BYTES and successors.steps
            made = events_pb2.StepReady(
                step_key=key,
                contract=translate.contract_event(graph.nodes[key].contract),
                workflow_digest=digest,
                successors=successors if told else None,
            )
            kept = self._same[(digest, key)] = (made, made.ByteSize())
            self._bytes += kept[1]
            while self._bytes > REMEMBERED_BYTES and len(self._same) > 1:
                self._bytes -= self._same.popitem(last=False)[1][1]
        self._same.move_to_end((digest, key))
        return kept[0]

    def _event(
        self, run: RunFacts, receiver: str, kind: str, event: events_pb2.Event, now_ms: int, *, patient: bool = False
    ) -> Notice:
        event.event_id = self._ids.random128().bytes
        event.at_ms = now_ms
        event.traceparent = run.traceparent
        return Notice(receiver, kind, run.run_id, event.SerializeToString(), patient)

    def ready(self, run: RunFacts, view: RunView, step: Step, waited: Sequence[Wait], now_ms: int) -> Notice:
        """StepReady."""
        event = events_pb2.Event()
        fact = event.step_ready
        fact.MergeFrom(self._template(run.digest, view.graph, base_of(step.key)))
        fact.step_key = step.key
        fact.run_id = run.run_id.bytes
        fact.ticket_sequence = step.ticket_sequence
        fact.tenant = run.tenant
        fact.project = run.project
        fact.run_class = class_of(run.run_class, waited)
        fact.priority = run.priority
        fact.deadline_ms = run.deadline_ms
        fact.input = translate.ticket_input(run.input, view, step, waited)
        fact.attempt_number = step.attempts + 1
        fact.epoch = run.epoch
        fact.launched_by = run.launched_by
        wanted = view.capacity_of(step)
        if wanted is not None:
            fact.capacity.slot, fact.capacity.call = wanted.slot, wanted.name
            fact.capacity.calls, fact.capacity.until_ms = wanted.calls, wanted.due_ms
        return self._event(run, "scheduler", "step_ready", event, now_ms)

    def finished(self, run: RunFacts, view: RunView, steps: Sequence[Step], warned: Sequence[Step], now_ms: int) -> Notice:
        """StepsFinished. Only the run's log is written of it, and people read that: it is patient."""
        fact = events_pb2.StepsFinished(steps=_told(run, view, steps, warned, now_ms))
        return self._event(run, "launch", "steps_finished", events_pb2.Event(steps_finished=fact), now_ms, patient=True)

    def asked(self, run: RunFacts, wait: Wait, now_ms: int) -> Notice:
        """InputAsked. Only the root's log is written of it."""
        event = events_pb2.Event(input_asked=translate.asked_event(run, wait))
        return self._event(run, "launch", "input_asked", event, now_ms)

    def revoked(self, run: RunFacts, step_key: str, sequence: int, now_ms: int) -> Notice:
        """StepRevoked."""
        fact = events_pb2.StepRevoked(
            run_id=run.run_id.bytes, step_key=step_key, ticket_sequence=sequence, reason="a join was decided without it"
        )
        return self._event(run, "scheduler", "step_revoked", events_pb2.Event(step_revoked=fact), now_ms)

    def graph_finished(
        self, run: RunFacts, view: RunView, end: GraphEnd, told: Sequence[Step], warned: Sequence[Step], now_ms: int
    ) -> Notice:
        """GraphFinished."""
        fact = events_pb2.GraphFinished(
            run_id=run.run_id.bytes,
            outcome=end.outcome,
            output=translate.graph_output(view) if end.outcome == "succeeded" else b"",
            failure=translate.failure_event(end.failure) if end.failure else None,
            failed_step=end.failed_step,
            steps=_told(run, view, told, warned, now_ms),
        )
        return self._event(run, "launch", "graph_finished", events_pb2.Event(graph_finished=fact), now_ms)


def _told(
    run: RunFacts, view: RunView, steps: Sequence[Step], warned: Sequence[Step], now_ms: int
) -> list[events_pb2.StepFinished]:
    """Steps that ended, then what others warn of."""
    ended = [translate.finished_event(run, step, now_ms) for step in steps]
    return ended + [translate.warning_event(run, view, step, now_ms) for step in warned]
