"""What steps ask about children, and what they and callers are told: protobuf ↔ launch's domain.

Can go wrong: a command that nobody can read. It becomes a spawn or a join that is refused with what is wrong, so that the
step is told; an event that was refused here would be nobody's.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from google.protobuf import json_format, struct_pb2
from google.protobuf.message import DecodeError
from runway.common.v1 import common_pb2
from runway.events.v1 import events_pb2
from runway.launch.v1 import launch_service_pb2, tree_service_pb2

from libs.kernel.ids import NIL, uuid_from_bytes, uuid_from_text
from libs.kernel.refusal import Refusal, invalid_field
from libs.rpc.values import check_value
from services.launch import translate
from services.launch.domain.children import BudgetWait, ChildRow, Envelope, JoinedChild, JoinedFacts, TreeCounts
from services.launch.domain.joining import Join, JoinAsk, OnFailure, Rest
from services.launch.domain.run import TERMINAL_OF, Run, RunState
from services.launch.domain.spawning import MOST_CHILDREN, ChildAsk, SpawnAsk

MOST_INPUT_BYTES = 1_048_576
LONGEST_MS = 30 * 24 * 3_600_000
_ON_FAILURE = {"fail": OnFailure.FAIL, "count": OnFailure.COUNT, "ignore": OnFailure.IGNORE}
_REST = {"await": Rest.AWAIT, "cancel": Rest.CANCEL}
_OUTCOMES = {int(state): outcome for outcome, state in TERMINAL_OF.items()}
_CHILD_FIELDS = frozenset({"name", "workflow", "input", "budget", "capabilities", "priority", "deadline_ms"})
_NULL = struct_pb2.Value(null_value=struct_pb2.NULL_VALUE).SerializeToString()


class _Unreadable(Exception):
    """What is wrong with a command."""


def _said(payload: bytes) -> tuple[struct_pb2.Value, Mapping[str, Any]]:
    try:
        value = struct_pb2.Value.FromString(payload)
        check_value(value, "payload")
        said = translate.plain(value)
    except (DecodeError, Refusal) as error:
        raise _Unreadable(f"its payload cannot be read: {error}") from None
    if not isinstance(said, dict):
        raise _Unreadable("its payload is no object")
    return value, said


def _name(command: events_pb2.CommandRecorded) -> tuple[UUID, str, str]:
    if not command.slot or not command.step_key:
        raise invalid_field("command_recorded", "lacks a step or a slot", "send what the scheduler sends")
    return uuid_from_bytes(command.run_id, "command_recorded.run_id"), command.step_key, command.slot


def spawn_ask(command: events_pb2.CommandRecorded) -> SpawnAsk:
    """Children to make."""
    run_id, step_key, slot = _name(command)
    group = slot
    try:
        value, said = _said(command.payload)
        group = _text(said, "group", slot) or slot
        independent = said.get("independent", False)
        if not isinstance(independent, bool):
            raise _Unreadable("independent must be true or false")
        waits = said.get("wait_for_budget", False)
        if not isinstance(waits, bool):
            raise _Unreadable("wait_for_budget must be true or false")
        raw = said.get("children")
        if not isinstance(raw, list) or not 0 < len(raw) <= MOST_CHILDREN:
            raise _Unreadable(f"children must be a list of 1 to {MOST_CHILDREN}")
        inputs = value.struct_value.fields["children"].list_value.values
        children = tuple(_child(place, one, inputs[place]) for place, one in enumerate(raw))
        names = [child.name or str(place) for place, child in enumerate(children)]
        if len(set(names)) < len(names):
            raise _Unreadable("two children have one name")
    except _Unreadable as error:
        return SpawnAsk(run_id, step_key, slot, group, False, (ChildAsk("", "", _NULL),), str(error)[:500])
    return SpawnAsk(run_id, step_key, slot, group, independent, children, waits=waits, payload=command.payload)


def _child(place: int, said: Any, value: struct_pb2.Value) -> ChildAsk:
    at = f"children[{place}]"
    if not isinstance(said, dict):
        raise _Unreadable(f"{at} must be an object")
    if unknown := sorted(said.keys() - _CHILD_FIELDS):
        raise _Unreadable(f"{at} has a field that nobody knows: {unknown[0][:50]!r}")
    workflow = _text(said, "workflow", "", at, 130)
    if not workflow:
        raise _Unreadable(f"{at}.workflow must name a workflow")
    budget = said.get("budget") or {}
    if not isinstance(budget, dict) or budget.keys() - {"micros", "tokens"}:
        raise _Unreadable(f"{at}.budget must be an object of micros and tokens")
    capabilities = said.get("capabilities")
    if capabilities is not None and (not isinstance(capabilities, list) or not all(_is_text(one) for one in capabilities)):
        raise _Unreadable(f"{at}.capabilities must be a list of at most 256 texts")
    fields = value.struct_value.fields
    given = fields["input"].SerializeToString(deterministic=True) if "input" in fields else b""
    if len(given) > MOST_INPUT_BYTES:
        raise _Unreadable(f"{at}.input has {len(given)} bytes, and {MOST_INPUT_BYTES} are the most")
    priority = said.get("priority")
    return ChildAsk(
        name=_text(said, "name", "", at),
        workflow=workflow,
        input=given,
        budget_micros=_number(budget, "micros", 10**15, f"{at}.budget"),
        budget_tokens=_number(budget, "tokens", 10**15, f"{at}.budget"),
        capabilities=None if capabilities is None else tuple(capabilities),
        priority=None if priority is None else _number(said, "priority", 1000, at, -1000),
        deadline_in_ms=_number(said, "deadline_ms", LONGEST_MS, at),
    )


def _is_text(one: object) -> bool:
    return isinstance(one, str) and 0 < len(one) <= 200 and one.isprintable() and " " not in one


def _text(said: Mapping[str, Any], field: str, default: str, at: str = "", most: int = 200) -> str:
    text = said.get(field, default)
    if not isinstance(text, str) or len(text) > most or (text and not text.isprintable()):
        raise _Unreadable(f"{at}{'.' if at else ''}{field} must be printable text of at most {most} characters")
    return text


def _number(said: Mapping[str, Any], field: str, most: int, at: str = "", least: int = 0) -> int:
    number = said.get(field, 0)
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        raise _Unreadable(f"{at}{'.' if at else ''}{field} must be a whole number from {least} to {most}")
    return number


def join_ask(command: events_pb2.CommandRecorded) -> JoinAsk:
    """Children to wait for."""
    run_id, step_key, slot = _name(command)
    try:
        _, said = _said(command.payload)
        groups = _names(said, "groups") or ((_text(said, "group", ""),) if said.get("group") else ())
        if not groups:
            raise _Unreadable("groups must name at least one group of children")
        need = said.get("need", "all")
        count = 0 if need == "all" else _number(said, "need", 1_000_000, "", 1)
        on_failure, rest = said.get("on_failure", "count"), said.get("rest", "await")
        if on_failure not in _ON_FAILURE or rest not in _REST:
            raise _Unreadable("on_failure must be fail, count or ignore, and rest await or cancel")
        slots, warns = _names(said, "slots"), said.get("warns", False)
        if not isinstance(warns, bool):
            raise _Unreadable("warns must be true or false")
        join = Join(run_id, step_key, slot, groups, slots, count, _ON_FAILURE[on_failure], _REST[rest], warns=warns)
        return JoinAsk(join)
    except _Unreadable as error:
        return JoinAsk(Join(run_id, step_key, slot, (), (), 0, OnFailure.COUNT, Rest.AWAIT), str(error)[:500])


def _names(said: Mapping[str, Any], field: str) -> tuple[str, ...]:
    names = said.get(field) or []
    if not isinstance(names, list) or len(names) > 20_000:
        raise _Unreadable(f"{field} must be a list of names")
    if not all(isinstance(name, str) and 0 < len(name) <= 200 and name.isprintable() for name in names):
        raise _Unreadable(f"{field} must be printable names of at most 200 characters")
    return tuple(dict.fromkeys(names))


def budget_wait(command: events_pb2.CommandRecorded) -> BudgetWait:
    """A budget to wait for; what cannot be read waits for the next raise."""
    run_id, step_key, slot = _name(command)
    try:
        sequence = _said(command.payload)[1].get("sequence")
    except _Unreadable:
        sequence = None
    known = isinstance(sequence, str) and sequence.isascii() and sequence.isdecimal() and len(sequence) <= 18
    return BudgetWait(run_id, step_key, slot, int(sequence) if known and sequence is not None else 2**62)


def join_result(facts: JoinedFacts) -> bytes:
    """What the step that waited is told, as a serialized Value."""
    counts = facts.counts
    value = struct_pb2.Value()
    fields = value.struct_value.fields
    fields["met"].bool_value = facts.join.met
    for name in ("total", "succeeded", "failed", "cancelled", "denied"):
        fields[name].number_value = getattr(counts, name)
    fields["whole"].bool_value = facts.whole
    children = fields["children"].list_value
    children.SetInParent()
    for child in facts.children:
        _joined(children.values.add(), child)
    refused = fields["refused"].list_value
    refused.SetInParent()
    for denied in facts.denied:
        told = refused.values.add().struct_value.fields
        told["slot"].string_value = denied.slot
        told["children"].number_value = denied.children
        told["class"].string_value = denied.failure.failure_class
        told["type"].string_value = denied.failure.type
        told["message"].string_value = denied.failure.message[:500]
    return value.SerializeToString()


def _joined(value: struct_pb2.Value, child: JoinedChild) -> None:
    told = value.struct_value.fields
    told["name"].string_value = child.name
    told["run_id"].string_value = str(child.run_id)
    told["outcome"].string_value = _OUTCOMES.get(child.state, "")
    told["output"].ParseFromString(child.output or _NULL)
    if child.failure is not None:
        failure = told["failure"].struct_value.fields
        failure["class"].string_value = child.failure.failure_class
        failure["type"].string_value = child.failure.type
        failure["message"].string_value = child.failure.message[:500]


def budget_result(micros: int, sequence: int) -> bytes:
    """What a step that waited for a greater budget is told."""
    value = struct_pb2.Value()
    value.struct_value.fields["granted_micros"].number_value = micros
    value.struct_value.fields["sequence"].string_value = str(sequence)
    return value.SerializeToString()


def child_message(child: ChildRow, *, outputs: bool) -> tree_service_pb2.Child:
    """A child and what its parent calls it."""
    run = translate.run_message(child.run, payload=outputs)
    run.ClearField("input")
    return tree_service_pb2.Child(name=child.name, step_key=child.step_key, slot=child.slot, group=child.group, run=run)


def node_message(name: str, run: Run, returned: int, envelope: Envelope | None) -> tree_service_pb2.TreeNode:
    """A run of a tree. What it uses is the gateway's account where that is newer."""
    head = run.head
    node = tree_service_pb2.TreeNode(
        run_id=str(head.run_id),
        parent_id=str(head.parent_id or ""),
        depth=head.depth,
        name=name,
        workflow=run.workflow_name,
        state=launch_service_pb2.RunState.ValueType(int(head.state)),
        outcome=head.outcome,
        independent=head.independent,
        children=head.children,
        granted_micros=head.budget_micros,
        used_micros=head.used_micros,
        delegated_micros=head.delegated_micros + returned,
        returned_micros=returned,
        free_micros=max(0, head.budget_micros - head.delegated_micros - head.used_micros),
        enforced=head.state >= RunState.CLOSING,
        quiesced=head.state >= RunState.SUCCEEDED,
    )
    if envelope is not None and not run.finished_ms:
        node.used_micros = max(head.used_micros, envelope.used)
        node.held_micros = envelope.held
        node.free_micros = max(0, envelope.free)
    if run.finished_ms:
        node.free_micros = 0
    return node


def descendants_message(counts: TreeCounts | None) -> launch_service_pb2.DescendantReceipts | None:
    """How far the children of a cancelled run have come."""
    if counts is None:
        return None
    return launch_service_pb2.DescendantReceipts(
        total=counts.total, accepted=counts.accepted, enforced=counts.enforced, quiesced=counts.quiesced
    )


def parse_after(token: str) -> UUID:
    """Where a page of children or of a tree begins."""
    return uuid_from_text(token, "page_token") if token else NIL


def next_token(runs: Sequence[Run], size: int) -> str:
    """Where the next page begins; empty: there is none."""
    return str(runs[size - 1].head.run_id) if len(runs) > size else ""


def money(micros: int) -> common_pb2.Budget:
    """An amount."""
    return common_pb2.Budget(micros=micros)


def plain_bytes(raw: bytes) -> object:
    """A serialized Value as Python data; nothing is null."""
    return json_format.MessageToDict(struct_pb2.Value.FromString(raw or _NULL))
