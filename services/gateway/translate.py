"""Protobuf ↔ the gateway's domain, both ways.

Can go wrong: text that PostgreSQL cannot store, or a slot's name that no terminal should print. Both are refused here.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast
from uuid import UUID

from google.protobuf import struct_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp
from jsonschema import Draft202012Validator
from runway.common.v1 import common_pb2
from runway.gateway.v1 import gateway_service_pb2 as pb
from runway.internal.fence.v1 import fence_pb2
from runway.internal.gateway.v1 import gateway_internal_pb2 as internal_pb

from libs.fence.certificates import Certificate, Signature, Standing, Subject
from libs.kernel.ids import uuid_from_bytes
from libs.kernel.refusal import Reason, Refusal, invalid_field
from libs.rpc.values import check_value, plain_value
from services.gateway.app.resolve_effects import Recorded
from services.gateway.domain.effect import Effect, EffectName, Failed, ReplayClass, Resolution, State, Try
from services.gateway.domain.lookup import Finding, Inspection
from services.gateway.ports import Held, Tool

MAX_HOLD_MICROS = 10**15
MAX_ARGUMENT_BYTES = 1_048_576
MAX_WAIT_MS = 60_000
MAX_VIOLATIONS = 20
_STATES: Mapping[State, int] = {state: pb.EffectState.Value(f"EFFECT_STATE_{state.name}") for state in State}
_CLASSES: Mapping[ReplayClass, int] = {kind: pb.ReplayClass.Value(f"REPLAY_CLASS_{kind.name}") for kind in ReplayClass}
_CLASS_OF = {number: kind for kind, number in _CLASSES.items()}
_FINDINGS: Mapping[Finding, int] = {f: internal_pb.Finding.Value(f"FINDING_{f.name}") for f in Finding}


def timestamp(ms: int) -> Timestamp | None:
    """Milliseconds since the Unix epoch; None for never."""
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000) if ms else None


def wait_ms(duration: Duration, given: bool, default_ms: int) -> int:
    """How long a call may wait."""
    if not given:
        return default_ms
    asked = duration.seconds * 1000 + duration.nanos // 1_000_000
    if asked < 0 or asked > MAX_WAIT_MS:
        raise invalid_field("wait", f"must be from 0 to {MAX_WAIT_MS // 1000} s", "wait again with WaitEffect")
    return asked


def to_value(data: Any) -> struct_pb2.Value:
    """JSON data as a Value."""
    value = struct_pb2.Value()
    _fill(value, data)
    return value


def _fill(value: struct_pb2.Value, data: Any) -> None:
    if data is None:
        value.null_value = struct_pb2.NULL_VALUE
    elif isinstance(data, bool):
        value.bool_value = data
    elif isinstance(data, int | float):
        value.number_value = data
    elif isinstance(data, str):
        value.string_value = data
    elif isinstance(data, dict):
        value.struct_value.SetInParent()
        for key, child in data.items():
            _fill(value.struct_value.fields[key], child)
    else:
        value.list_value.SetInParent()
        for child in data:
            _fill(value.list_value.values.add(), child)


def arguments(value: struct_pb2.Value, field: str, tool: Tool) -> Any:
    """Arguments that fit the tool's schema, or INVALID_FIELD with what does not."""
    if value.ByteSize() > MAX_ARGUMENT_BYTES:
        raise Refusal(
            Reason.TOO_LARGE,
            f"{field} has more than {MAX_ARGUMENT_BYTES} bytes",
            field=field,
            remedy="put large content into an artifact and name its digest",
        )
    check_value(value, field)
    data = plain_value(value)
    errors = sorted(Draft202012Validator(dict(tool.schema)).iter_errors(data), key=lambda error: list(map(str, error.path)))
    if errors:
        found = tuple(
            (".".join([field, *map(str, error.absolute_path)]), error.message[:200]) for error in errors[:MAX_VIOLATIONS]
        )
        raise Refusal(
            Reason.INVALID_FIELD,
            f"{found[0][0]}: {found[0][1]}",
            field=found[0][0],
            remedy="ListTools gives the schema",
            violations=found,
        )
    return data


def slot(text: str) -> str:
    """A slot's name: anything that can be printed."""
    if text and not text.isprintable():
        raise invalid_field("slot", "has characters that cannot be printed", "name slots in plain text")
    return text


def hold(micros: int) -> int:
    """Money to hold."""
    if micros > MAX_HOLD_MICROS:
        raise invalid_field("hold_micros", f"must be at most {MAX_HOLD_MICROS}", "hold what the call may cost")
    return micros


def replay_class(number: int) -> ReplayClass | None:
    """A class, None where it is left to the tool."""
    return _CLASS_OF.get(number)


def class_number(kind: ReplayClass) -> pb.ReplayClass.ValueType:
    """A class on the wire."""
    return cast("pb.ReplayClass.ValueType", _CLASSES[kind])


def effect_message(effect: Effect, tries: Sequence[Try] = ()) -> pb.Effect:
    """A slot on the wire."""
    return pb.Effect(
        run_id=str(effect.name.run_id),
        step_key=effect.name.step_key,
        slot=effect.name.slot,
        tool=effect.tool,
        state=cast("pb.EffectState.ValueType", _STATES[effect.state]),
        replay_class=class_number(effect.replay_class),
        result=None if effect.result is None else to_value(json.loads(effect.result)),
        failure=_failure(effect.failure),
        dispatches=effect.dispatches,
        proposal_digest=effect.proposal_digest.hex(),
        created_at=timestamp(effect.created_ms),
        resolved_at=timestamp(effect.resolved_ms),
        cost_micros=effect.held + effect.cost,
        tokens=effect.tokens,
        evidence=effect.evidence,
        tries=[_dispatch(one) for one in tries],
        version=effect.version,
    )


def _failure(failed: Failed | None) -> common_pb2.Failure | None:
    if failed is None:
        return None
    return common_pb2.Failure(failure_class=failed.failure_class, message=failed.message, type=failed.type)


def _dispatch(one: Try) -> pb.Dispatch:
    return pb.Dispatch(
        n=one.n,
        attempt_id=one.attempt_id.hex,
        lease_epoch=one.lease_epoch,
        state=one.state.value,
        requested_at=timestamp(one.requested_ms),
        received_at=timestamp(one.received_ms),
    )


def tool_message(tool: Tool) -> pb.Tool:
    """A tool on the wire."""
    schema = struct_pb2.Struct()
    schema.update(dict(tool.schema))
    return pb.Tool(
        name=tool.name.removeprefix("model:"),
        kind=tool.kind,
        replay_class=class_number(tool.replay_class),
        description=tool.description,
        arguments_schema=schema,
        abort=tool.abort.value,
    )


def after(token: str) -> int:
    """The ordinal that a page token names."""
    if token and not (token.isascii() and token.isdecimal() and len(token) <= 18):
        raise invalid_field("page_token", "is not one of ours", "send next_page_token as it was returned")
    return int(token or "0")


def name(message: internal_pb.EffectName) -> EffectName:
    """A slot's name off the wire."""
    return EffectName(uuid_from_bytes(message.run_id, "effects.run_id"), message.step_key, message.slot)


def run_id(raw: bytes) -> UUID:
    """A run's id off the wire."""
    return uuid_from_bytes(raw, "run_id")


def resolution(message: internal_pb.Resolution) -> Resolution:
    """A finding off the wire."""
    result: bytes | None = None
    if message.state == State.OBSERVED.value:
        try:
            value = struct_pb2.Value.FromString(message.result)
        except DecodeError:
            raise invalid_field("resolutions.result", "is no google.protobuf.Value", "serialize one") from None
        check_value(value, "resolutions.result")
        result = json.dumps(plain_value(value)).encode()
    return Resolution(
        name=name(message.effect),
        state=State(message.state),
        result=result,
        evidence=message.evidence.replace("\0", ""),
        expected_version=message.expected_version,
        actor=message.actor.replace("\0", "") or "lookup",
    )


def inspection(found: Inspection | None) -> internal_pb.Inspection:
    """A look-up on the wire; a slot that is not known has no state."""
    if found is None:
        return internal_pb.Inspection(finding=internal_pb.FINDING_UNDECIDABLE, evidence="the gateway knows no such effect")
    return internal_pb.Inspection(
        finding=cast("internal_pb.Finding.ValueType", _FINDINGS[found.finding]),
        result=b"" if found.result is None else to_value(json.loads(found.result)).SerializeToString(),
        evidence=found.evidence,
        settle_ms=found.settle_ms,
        version=found.version,
        state=found.state,
    )


def certificate(message: fence_pb2.ApprovalCertificate) -> Certificate:
    """An approval off the wire."""
    subject = Subject(
        approval_id=uuid_from_bytes(message.approval_id, "approvals.approval_id"),
        run_id=uuid_from_bytes(message.run_id, "approvals.run_id"),
        step_key=message.step_key,
        slot=message.slot,
        tool=message.tool,
        digest=message.digest,
        policy=message.policy,
        proposal_version=message.proposal_version,
        hold_micros=message.hold_micros,
        expires_ms=message.expires_ms,
        effect_class=message.effect_class,
        total_micros=message.total_micros,
    )
    signatures = [Signature(s.public_key, s.signature, s.approver, s.break_glass, s.reason) for s in message.signatures]
    return Certificate(subject, Standing(int(message.standing)), signatures)


def held(answer: Held | None) -> fence_pb2.ApprovalAnswer:
    """How an approval stands; None: it was not judged in time."""
    if answer is None:
        return fence_pb2.ApprovalAnswer(committed=False)
    standing = fence_pb2.ApprovalStanding.ValueType(int(answer.standing))
    return fence_pb2.ApprovalAnswer(
        committed=True, standing=standing, consumed_ms=answer.consumed_ms, problem=answer.problem[:500]
    )


def recorded(answer: Recorded) -> internal_pb.ResolutionResult:
    """A recorded finding on the wire."""
    return internal_pb.ResolutionResult(recorded=answer.recorded, state=answer.state, version=answer.version)
