"""Protobuf ↔ the reconciler's domain, both ways."""

from collections.abc import Sequence
from typing import cast
from uuid import UUID

from google.protobuf.timestamp_pb2 import Timestamp
from runway.events.v1 import events_pb2
from runway.internal.gateway.v1 import gateway_internal_pb2
from runway.internal.inbox.v1 import inbox_pb2
from runway.reconciler.v1 import reconciler_service_pb2 as pb

from libs.kernel.ids import uuid_from_bytes
from libs.kernel.refusal import invalid_field
from services.reconciler.domain.cases import Case, CaseState, Finding, Inspection, Name, Opening, Resolved
from services.reconciler.ports import Stuck

_NAME_LIMIT = 200
_UNKNOWN_KINDS = ("unknown_effect", "effect_needs_reconciliation")


def _name(kind: str, run_id: bytes, step_key: str, slot: str) -> Name:
    for field, text in (("step_key", step_key), ("slot", slot)):
        if not 0 < len(text) <= _NAME_LIMIT:
            raise invalid_field(f"{kind}.{field}", f"must have 1 to {_NAME_LIMIT} characters", "send the effect's own name")
    return Name(uuid_from_bytes(run_id, f"{kind}.run_id"), step_key, slot)


def opening(fact: events_pb2.EffectUnknown) -> Opening:
    """An effect whose outcome became unknown."""
    name = _name("effect_unknown", fact.run_id, fact.step_key, fact.slot)
    if fact.dispatch < 1:
        raise invalid_field("effect_unknown.dispatch", "must be above 0", "send the number of the try")
    return Opening(name, fact.dispatch, fact.tenant, fact.project, fact.tool, fact.replay_class, fact.cause, fact.since_ms)


def resolved(fact: events_pb2.EffectResolved) -> Resolved:
    """A slot's outcome."""
    name = _name("effect_resolved", fact.run_id, fact.step_key, fact.slot)
    if not fact.state:
        raise invalid_field("effect_resolved.state", "is empty", "send the effect's state")
    return Resolved(name, fact.dispatch, fact.state, fact.version)


def stuck_opening(item: inbox_pb2.StuckItem) -> Opening | None:
    """An unknown effect by the gateway's account; None for anything else that is stuck there."""
    if item.kind not in _UNKNOWN_KINDS or not (item.step_key and item.slot) or len(item.run_id) != 16:
        return None
    name = Name(UUID(bytes=item.run_id), item.step_key, item.slot)
    return Opening(name, item.dispatch, "", "", item.tool, "", "found by sweep", item.since_ms)


def stuck(service: str, item: inbox_pb2.StuckItem) -> Stuck:
    """One thing that does not move."""
    run_id = UUID(bytes=item.run_id) if len(item.run_id) == 16 else None
    return Stuck(service, item.kind, run_id, item.since_ms, item.detail)


def effect_name(name: Name) -> gateway_internal_pb2.EffectName:
    """A slot."""
    return gateway_internal_pb2.EffectName(run_id=name.run_id.bytes, step_key=name.step_key, slot=name.slot)


def inspection(one: gateway_internal_pb2.Inspection) -> Inspection:
    """A look-up's answer; a finding that is not known here judges nothing."""
    known = one.finding in Finding._value2member_map_
    finding = Finding(int(one.finding)) if known else Finding.UNSPECIFIED
    return Inspection(finding, one.result, one.evidence, one.settle_ms, one.version, one.state)


def timestamp(ms: int) -> Timestamp | None:
    """Milliseconds as a Timestamp; never happened: None."""
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000) if ms else None


def case_message(case: Case) -> pb.Case:
    """A case."""
    return pb.Case(
        case_id=str(case.case_id),
        run_id=str(case.run_id),
        step_key=case.step_key,
        slot=case.slot,
        tool=case.tool,
        state=cast("pb.CaseState.ValueType", int(case.state)),
        lookups=case.lookups,
        evidence=case.evidence,
        opened_at=timestamp(case.opened_ms),
        decided_at=timestamp(case.decided_ms),
        decided_by=case.decided_by,
        reason=case.reason,
        next_lookup_at=timestamp(case.next_ms) if case.state is CaseState.OPEN else None,
        version=case.version,
    )


def stuck_message(one: Stuck) -> pb.StuckWork:
    """One thing that does not move."""
    return pb.StuckWork(
        service=one.service,
        kind=one.kind,
        run_id=str(one.run_id) if one.run_id else "",
        since=timestamp(one.since_ms),
        detail=one.detail,
    )


def place_of(token: str) -> int:
    """Where a page begins."""
    if token and not (token.isascii() and token.isdecimal() and len(token) <= 18):
        raise invalid_field("page_token", "is not one of ours", "send next_page_token as it was returned")
    return int(token or "0")


def states_of(states: Sequence[int]) -> list[int]:
    """States to list."""
    for state in states:
        if state not in CaseState._value2member_map_:
            raise invalid_field("states", f"holds {state}, which is no state of a case", "name states of the contract")
    return list(dict.fromkeys(states))
