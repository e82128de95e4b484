"""Builds the events that the scheduler sends. Implements `ports.Notices`; every event carries the trace that caused it."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from google.protobuf import struct_pb2
from runway.events.v1 import events_pb2
from runway.internal.fence.v1 import fence_pb2

from libs.kernel.epochs import StepFence
from libs.kernel.ids import IdSource
from libs.outbox import RAISE_KIND
from libs.telemetry.traces import traceparent
from services.scheduler.domain.commits import Command, Holder, Notice
from services.scheduler.domain.ending import Finished
from services.scheduler.domain.ticket import OWN_POINT, POINT_NAMES, Key, Wanted

_NULL = struct_pb2.Value(null_value=struct_pb2.NULL_VALUE).SerializeToString()
_BOTH = ("launch", "readiness")
_RECEIVERS: Mapping[int, tuple[str, ...]] = {
    events_pb2.COMMAND_KIND_SPAWN: ("launch",),
    events_pb2.COMMAND_KIND_APPROVAL: _BOTH,
    events_pb2.COMMAND_KIND_JOIN: _BOTH,
    events_pb2.COMMAND_KIND_BUDGET: _BOTH,
}
"""Who acts on a command, where it is not readiness alone."""


class EventNotices:
    """Stateless but for where ids come from."""

    def __init__(self, ids: IdSource) -> None:
        self._ids = ids

    def _event(
        self, run_id: UUID, receiver: str, kind: str, event: events_pb2.Event, now_ms: int, *, patient: bool = False
    ) -> Notice:
        event.event_id = self._ids.random128().bytes
        event.at_ms = now_ms
        event.traceparent = traceparent()
        return Notice(receiver, kind, run_id, event.SerializeToString(), patient)

    def first_lease(self, run_id: UUID, now_ms: int) -> Notice:
        """FirstLease → launch. The run's state is written of it, and nothing waits for that: it is patient."""
        fact = events_pb2.FirstLease(run_id=run_id.bytes, leased_at_ms=now_ms)
        return self._event(run_id, "launch", "first_lease", events_pb2.Event(first_lease=fact), now_ms, patient=True)

    def capacity(self, key: Key, wanted: Wanted, leased_ms: int) -> Notice:
        """CommandAnswered → readiness."""
        run_id, step_key = key
        fact = events_pb2.CommandAnswered(
            run_id=run_id.bytes,
            step_key=step_key,
            slot=wanted.slot,
            kind=events_pb2.COMMAND_KIND_WAIT,
            by="scheduler",
            at_ms=leased_ms,
            timed_out=wanted.lapsed(leased_ms),
        )
        return self._event(run_id, "readiness", "command_answered", events_pb2.Event(command_answered=fact), leased_ms)

    def next_input(self, ticket_input: bytes, step_key: str, output: bytes) -> bytes:
        """The run's input stays, the outputs are of the one step that is needed."""
        value = struct_pb2.Value.FromString(ticket_input)
        fields = value.struct_value.fields
        fields.pop("waits", None)  # of the step before
        steps = fields["steps"].struct_value
        steps.Clear()
        steps.SetInParent()
        steps.fields[step_key].ParseFromString(output or _NULL)
        return value.SerializeToString()

    def finished(self, fact: Finished, now_ms: int, continued: Sequence[str] = (), *, patient: bool = False) -> Notice:
        """AttemptFinished → readiness."""
        failure = fact.failure
        said = events_pb2.AttemptFinished(
            run_id=fact.run_id.bytes,
            step_key=fact.step_key,
            ticket_sequence=fact.ticket_sequence,
            attempt_id=fact.attempt_id.bytes,
            lease_epoch=fact.lease_epoch,
            authority_epoch=fact.authority_epoch,
            end=events_pb2.AttemptEnd.ValueType(int(fact.end)),
            output=fact.output,
            failure=events_pb2.Failure(failure_class=failure.failure_class, message=failure.message, type=failure.type)
            if failure
            else None,
            unresolved_slots=list(fact.unresolved),
            unresolved_versions=list(fact.unresolved.values()),
            worker=fact.worker_id,
            ended_at_ms=fact.ended_ms,
            continued=continued,
            awaits=fact.awaits,
        )
        event = events_pb2.Event(attempt_finished=said)
        return self._event(fact.run_id, "readiness", "attempt_finished", event, now_ms, patient=patient)

    def raises(self, key: Key, fence: StepFence, points: int) -> list[Notice]:
        """One raise per point."""
        step = fence_pb2.StepFence(
            run_id=key[0].bytes,
            step_key=key[1],
            authority_epoch=fence.authority_epoch,
            lease_epoch=fence.lease_epoch,
            attempt_id=fence.attempt_id.bytes,
        )
        return [
            Notice(name, RAISE_KIND, key[0], fence_pb2.RaiseFencesRequest(service=name, steps=[step]).SerializeToString())
            for bit, name in POINT_NAMES.items()
            if points & bit
        ]

    def quiesced(self, run_id: UUID, epoch: int, incarnation: int, now_ms: int) -> Notice:
        """PointQuiesced → launch."""
        fact = events_pb2.PointQuiesced(run_id=run_id.bytes, point=OWN_POINT, epoch=epoch, incarnation=incarnation)
        return self._event(run_id, "launch", "point_quiesced", events_pb2.Event(point_quiesced=fact), now_ms)

    def command(self, holder: Holder, command: Command, now_ms: int) -> list[Notice]:
        """CommandRecorded → readiness, launch or both."""
        fact = events_pb2.CommandRecorded(
            run_id=holder.run_id.bytes,
            step_key=holder.step_key,
            slot=command.slot,
            kind=events_pb2.CommandKind.ValueType(command.kind),
            payload=command.payload,
            attempt_id=holder.fence.attempt_id.bytes,
            lease_epoch=holder.fence.lease_epoch,
        )
        return [
            self._event(holder.run_id, receiver, "command_recorded", events_pb2.Event(command_recorded=fact), now_ms)
            for receiver in _RECEIVERS.get(command.kind, ("readiness",))
        ]
