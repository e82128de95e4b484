"""What attempts ask for, and what launch and the scheduler answer, from protobuf into readiness' domain.

Can go wrong: something that nobody can read. It becomes a wait that is over, so that the step's next attempt is told.
"""

import json
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format, struct_pb2
from google.protobuf.message import DecodeError
from runway.events.v1 import events_pb2

from libs.kernel.capacity import PROVIDER
from libs.kernel.refusal import invalid_field
from libs.rpc.schemas import flaws
from services.readiness.domain.waits import LONGEST_MS, Asked, Kind, Told

_TOLD: Mapping[int, Kind] = {
    events_pb2.COMMAND_KIND_APPROVAL: Kind.APPROVAL,
    events_pb2.COMMAND_KIND_JOIN: Kind.CHILDREN,
    events_pb2.COMMAND_KIND_BUDGET: Kind.BUDGET,
}
_ANSWERED: Mapping[int, Kind] = {**_TOLD, events_pb2.COMMAND_KIND_WAIT: Kind.CAPACITY}
"""The scheduler ends waits for capacity; all others of their kind are readiness' own."""
MOST_CALLS = 1_000_000
RESULT_BYTES = 262_144
"""Largest answer that launch may give: each further attempt of the step is given it again."""
_WAITED = frozenset({events_pb2.COMMAND_KIND_WAIT, events_pb2.COMMAND_KIND_INPUT, events_pb2.COMMAND_KIND_EXPAND, *_TOLD})


class _Unreadable(Exception):
    """What an attempt asks is nothing that can be waited for."""


def asked(fact: events_pb2.CommandRecorded) -> Asked:
    """What an attempt asks. What cannot be read is told to the next attempt: an event that was refused here would be
    nobody's."""
    if fact.kind not in _WAITED:
        raise invalid_field("command_recorded.kind", "is none of readiness'", "send waits, inputs, approvals and joins")
    if not fact.slot or not fact.step_key:
        raise invalid_field("command_recorded", "lacks a step or a slot", "send what the scheduler sends")
    if fact.kind in _TOLD:  # launch reads what is asked, and answers
        return Asked(fact.step_key, fact.slot, _TOLD[fact.kind], payload=fact.payload)
    if fact.kind == events_pb2.COMMAND_KIND_EXPAND:
        return _expansion(fact)
    try:
        said = json_format.MessageToDict(struct_pb2.Value.FromString(fact.payload))
        if not isinstance(said, dict):
            raise _Unreadable("its payload is no object")
        return _input(fact, said) if fact.kind == events_pb2.COMMAND_KIND_INPUT else _wait(fact, said)
    except (_Unreadable, DecodeError) as error:
        return Asked(fact.step_key, fact.slot, Kind.UNREADABLE, payload=fact.payload, problem=str(error)[:500])


def _expansion(fact: events_pb2.CommandRecorded) -> Asked:
    """Items, each for an instance. How many may be made is decided when its step has succeeded."""
    problem = ""
    try:
        said = struct_pb2.Value.FromString(fact.payload).struct_value.fields
        if said["items"].WhichOneof("kind") != "list_value" or set(said) - {"items", "template"}:
            problem = "its payload needs items, a list"
    except DecodeError:
        problem = "its payload cannot be read"
    return Asked(fact.step_key, fact.slot, Kind.EXPAND, payload=b"" if problem else fact.payload, problem=problem)


def _wait(fact: events_pb2.CommandRecorded, said: Mapping[str, Any]) -> Asked:
    forms = [name for name in ("for_ms", "until_ms", "event", "capacity") if name in said]
    if len(forms) != 1:
        raise _Unreadable("its payload needs one of for_ms, until_ms, event and capacity")
    if forms == ["capacity"]:
        return _capacity(fact, said)
    if forms == ["event"]:
        name, correlation = _text(said, "event"), _text(said, "correlation")
        if not name:
            raise _Unreadable("event must be a name")
        return Asked(fact.step_key, fact.slot, Kind.EVENT, name, correlation, _length(said, "timeout_ms"), payload=fact.payload)
    if forms == ["until_ms"]:
        return Asked(fact.step_key, fact.slot, Kind.TIMER, until_ms=_length(said, "until_ms", 2**52), payload=fact.payload)
    return Asked(fact.step_key, fact.slot, Kind.TIMER, for_ms=_length(said, "for_ms"), payload=fact.payload)


def _capacity(fact: events_pb2.CommandRecorded, said: Mapping[str, Any]) -> Asked:
    name, calls = _text(said, "capacity"), said.get("calls", 1)
    if not name:
        raise _Unreadable("capacity must be a tool's name, model:NAME or provider:NAME")
    if name.startswith(PROVIDER) and (name == PROVIDER or not name.isprintable()):
        raise _Unreadable("capacity must be provider: and a provider's name, as `runway bucket list` has it")
    if isinstance(calls, bool) or not isinstance(calls, int | float) or not 1 <= calls <= MOST_CALLS or calls != int(calls):
        raise _Unreadable(f"calls must be a whole number from 1 to {MOST_CALLS}")
    for_ms = _length(said, "timeout_ms")
    return Asked(fact.step_key, fact.slot, Kind.CAPACITY, name, for_ms=for_ms, payload=fact.payload, calls=int(calls))


def _input(fact: events_pb2.CommandRecorded, said: Mapping[str, Any]) -> Asked:
    if not isinstance(said.get("schema", {}), dict):
        raise _Unreadable("schema must be an object")
    if found := flaws(json.dumps(said.get("schema", {}))):
        raise _Unreadable(f"schema {found[0]}")
    _text(said, "prompt")
    return Asked(fact.step_key, fact.slot, Kind.INPUT, for_ms=_length(said, "timeout_ms"), payload=fact.payload)


def _text(said: Mapping[str, Any], name: str) -> str:
    text = said.get(name, "")
    if not isinstance(text, str) or "\0" in text or (name != "prompt" and len(text) > 200):
        raise _Unreadable(f"{name} must be text of at most 200 characters without NUL")
    return text


def _length(said: Mapping[str, Any], name: str, most: int = LONGEST_MS) -> int:
    """Milliseconds; -1 where none are said."""
    number = said.get(name)
    if number is None:
        return -1
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= most:
        raise _Unreadable(f"{name} must be a number of milliseconds from 0 to {most}")
    return int(number)


def told(fact: events_pb2.CommandAnswered) -> Told:
    """What launch or the scheduler has decided about a wait."""
    if fact.kind not in _ANSWERED:
        raise invalid_field("command_answered.kind", "is nothing that is decided elsewhere", "send approvals and joins")
    if not fact.slot or not fact.step_key:
        raise invalid_field("command_answered", "lacks a step or a slot", "send what was asked")
    if len(fact.result) > RESULT_BYTES or len(fact.by) > 500:
        raise invalid_field("command_answered", f"is larger than {RESULT_BYTES} bytes", "hand on less")
    try:
        struct_pb2.Value.FromString(fact.result)
    except DecodeError:
        raise invalid_field("command_answered.result", "is no google.protobuf.Value", "send one") from None
    return Told(fact.step_key, fact.slot, _ANSWERED[fact.kind], fact.refused, fact.result, fact.by, fact.timed_out)
