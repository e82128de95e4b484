"""Builds the events that the gateway sends. Implements `ports.Notices`; every event carries the trace that caused it."""

from collections.abc import Sequence
from uuid import UUID

from runway.events.v1 import events_pb2

from libs.kernel.ids import IdSource
from libs.telemetry.traces import traceparent
from services.gateway.domain.effect import Effect
from services.gateway.ports import Notice, Usage


class EventNotices:
    """Stateless but for where ids come from."""

    def __init__(self, ids: IdSource) -> None:
        self._ids = ids

    def _event(self, run_id: UUID, receiver: str, kind: str, event: events_pb2.Event, now_ms: int) -> Notice:
        event.event_id = self._ids.random128().bytes
        event.at_ms = now_ms
        event.traceparent = traceparent()
        return Notice(receiver, kind, run_id, event.SerializeToString())

    def unknown(self, effect: Effect, cause: str, now_ms: int) -> Sequence[Notice]:
        """EffectUnknown: the reconciler opens a case."""
        fact = events_pb2.EffectUnknown(
            run_id=effect.name.run_id.bytes,
            step_key=effect.name.step_key,
            slot=effect.name.slot,
            dispatch=effect.answered,
            tool=effect.tool,
            replay_class=effect.replay_class.value,
            tenant=effect.tenant,
            project=effect.project,
            since_ms=now_ms,
            cause=cause,
        )
        event = events_pb2.Event(effect_unknown=fact)
        return [self._event(effect.name.run_id, "reconciler", "effect_unknown", event, now_ms)]

    def resolved(self, effect: Effect, now_ms: int) -> Sequence[Notice]:
        """EffectResolved: readiness lets the step go on, the reconciler closes its case."""
        notices = []
        for receiver in ("readiness", "reconciler"):
            fact = events_pb2.EffectResolved(
                run_id=effect.name.run_id.bytes,
                step_key=effect.name.step_key,
                slot=effect.name.slot,
                dispatch=effect.answered,
                state=effect.state.value,
                version=effect.version,
            )
            event = events_pb2.Event(effect_resolved=fact)
            notices.append(self._event(effect.name.run_id, receiver, "effect_resolved", event, now_ms))
        return notices

    def quiesced(self, run_id: UUID, epoch: int, incarnation: int, usage: Usage | None, now_ms: int) -> Notice:
        """PointQuiesced, with what the run has used."""
        fact = events_pb2.PointQuiesced(run_id=run_id.bytes, point="gateway", epoch=epoch, incarnation=incarnation)
        if usage is not None:
            fact.usage_sequence, fact.used_micros, fact.used_tokens = usage.sequence, usage.micros, usage.tokens
        return self._event(run_id, "launch", "point_quiesced", events_pb2.Event(point_quiesced=fact), now_ms)

    def consumed(self, run_id: UUID, approval_id: UUID, now_ms: int) -> Notice:
        """ApprovalConsumed."""
        fact = events_pb2.ApprovalConsumed(run_id=run_id.bytes, approval_id=approval_id.bytes, at_ms=now_ms)
        return self._event(run_id, "launch", "approval_consumed", events_pb2.Event(approval_consumed=fact), now_ms)

    def usage(self, usage: Usage, now_ms: int) -> Notice:
        """UsageSettled."""
        fact = events_pb2.UsageSettled(
            run_id=usage.run_id.bytes, sequence=usage.sequence, used_micros=usage.micros, used_tokens=usage.tokens
        )
        return self._event(usage.run_id, "launch", "usage_settled", events_pb2.Event(usage_settled=fact), now_ms)
