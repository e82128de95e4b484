"""What calls of a step give back. Authoritative for nothing but the shape."""

from dataclasses import dataclass
from typing import Any

from runway.gateway.v1 import gateway_service_pb2 as gw

from runway_sdk.errors import ToolFailed
from runway_sdk.values import from_value


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool's answer. `replayed`: from the ledger; `arguments_differ`: the ledger's call had other arguments."""

    value: Any
    slot: str
    state: str
    replayed: bool
    arguments_differ: bool
    tokens: int
    cost_micros: int


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    """An artifact that is committed. `digest`: SHA-256, hexadecimal."""

    name: str
    digest: str
    size_bytes: int
    media_type: str


@dataclass(frozen=True, slots=True)
class Restored:
    """A step's newest checkpoint that verified: its boundary, sequence and state."""

    boundary: str
    sequence: int
    digest: str
    state: Any


def result_of(answer: gw.InvokeToolResponse | gw.GenerateResponse) -> ToolResult:
    """The answer of a tool or model; raises where it said no."""
    effect = answer.effect
    if effect.state == gw.EFFECT_STATE_FAILED:
        raise ToolFailed(effect.failure.message, effect.failure.failure_class, effect.failure.type)
    return ToolResult(
        value=from_value(effect.result),
        slot=effect.slot,
        state=gw.EffectState.Name(effect.state).removeprefix("EFFECT_STATE_").lower(),
        replayed=answer.replayed,
        arguments_differ=answer.arguments_differ,
        tokens=effect.tokens,
        cost_micros=effect.cost_micros,
    )
