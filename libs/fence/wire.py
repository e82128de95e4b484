"""Authoritative for how fences look on the wire: values to messages and back.

Can go wrong: an id that is not 16 bytes or a mode out of range; both are refused as INVALID_FIELD.
"""

from typing import cast

from runway.internal.fence.v1 import fence_pb2

from libs.fence.values import GateValue, ScopeValue, StepValue
from libs.kernel.epochs import Mode, StepFence
from libs.kernel.ids import uuid_from_bytes
from libs.kernel.refusal import invalid_field


def mode_from(number: int) -> Mode:
    """A mode, or INVALID_FIELD."""
    try:
        return Mode(number)
    except ValueError:
        raise invalid_field("mode", f"is {number}, which is no mode", "send 0 open, 1 draining or 2 closed") from None


def _mode_to(mode: Mode) -> fence_pb2.Mode.ValueType:
    return cast("fence_pb2.Mode.ValueType", int(mode))


def gate_from(message: fence_pb2.RunGate) -> GateValue:
    """A gate out of a message."""
    return GateValue(
        run_id=uuid_from_bytes(message.run_id, "run_id"),
        epoch=message.epoch,
        mode=mode_from(message.mode),
        outcome=message.outcome,
        capabilities=tuple(message.capabilities),
        granted_micros=message.granted_micros,
        envelope_sequence=message.envelope_sequence,
        tenant=message.tenant,
        project=message.project,
    )


def gate_to(gate: GateValue) -> fence_pb2.RunGate:
    """A gate as a message."""
    return fence_pb2.RunGate(
        run_id=gate.run_id.bytes,
        epoch=gate.epoch,
        mode=_mode_to(gate.mode),
        outcome=gate.outcome,
        capabilities=gate.capabilities,
        granted_micros=gate.granted_micros,
        envelope_sequence=gate.envelope_sequence,
        tenant=gate.tenant,
        project=gate.project,
    )


def step_from(message: fence_pb2.StepFence) -> StepValue:
    """A step's fence out of a message."""
    attempt = uuid_from_bytes(message.attempt_id, "attempt_id")
    fence = StepFence(message.authority_epoch, message.lease_epoch, attempt)
    return StepValue(uuid_from_bytes(message.run_id, "run_id"), message.step_key, fence)


def step_to(step: StepValue, *, live_first_grant: bool = False) -> fence_pb2.StepFence:
    """A step's fence as a message."""
    return fence_pb2.StepFence(
        run_id=step.run_id.bytes,
        step_key=step.step_key,
        authority_epoch=step.fence.authority_epoch,
        lease_epoch=step.fence.lease_epoch,
        attempt_id=step.fence.attempt_id.bytes,
        live_first_grant=live_first_grant,
    )


def scope_from(message: fence_pb2.ScopeFence) -> ScopeValue:
    """A scope's fence out of a message."""
    return ScopeValue(message.kind, message.scope_id, message.epoch, mode_from(message.mode))


def scope_to(scope: ScopeValue) -> fence_pb2.ScopeFence:
    """A scope's fence as a message."""
    return fence_pb2.ScopeFence(kind=scope.kind, scope_id=scope.scope_id, epoch=scope.epoch, mode=_mode_to(scope.mode))
