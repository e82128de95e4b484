"""Authoritative for whether a request is well formed: the rules in the protos, all of them at once, before any handler, and
one rule that holds everywhere: no text has a NUL, which PostgreSQL cannot store. Past this door it would fail the whole batch
that it meets others in.

Can go wrong: echoing a bad value. Violations name the field and the rule; never the content, which may be anything. Trees
of `google.protobuf.Value` are not looked into: they are stored as bytes. Nor are failures, which quote anything: whoever
stores one cleans it, so that it is reported whatever its words are.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import protovalidate
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from libs.kernel.refusal import Reason, Refusal, invalid_field

_MOST = 200
_FREE = "runway.common.v1.Failure"


def check_message(message: Message) -> None:
    """Refuses INVALID_FIELD with every violated rule of the message's proto."""
    spoilt = _nul_in(message)
    if spoilt:
        raise invalid_field(spoilt, "holds a NUL character", "leave it out")
    try:
        protovalidate.validate(message)
    except protovalidate.ValidationError as error:
        raise _refusal(error) from None


@dataclass(frozen=True, slots=True)
class _Texts:
    """Where a message may hold text."""

    own: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    maps: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()
    nested_lists: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.own or self.lists or self.maps or self.nested or self.nested_lists)


@cache
def _texts(kind: Descriptor, above: tuple[Descriptor, ...] = ()) -> _Texts:
    found: dict[str, list[str]] = {"own": [], "lists": [], "maps": [], "nested": [], "nested_lists": []}
    for field in kind.fields:
        inner = field.message_type
        if field.type == FieldDescriptor.TYPE_STRING:
            found["lists" if field.is_repeated else "own"].append(field.name)
        elif inner is None or inner.file.package.startswith("google.") or inner.full_name == _FREE:
            continue
        elif inner.GetOptions().map_entry:
            found["maps"].append(field.name)
        elif inner in above or inner is kind or _texts(inner, (*above, kind)):
            found["nested_lists" if field.is_repeated else "nested"].append(field.name)
    return _Texts(**{name: tuple(fields) for name, fields in found.items()})


def _nul_in(message: Any) -> str:
    """The path of the first text with a NUL; empty: there is none."""
    where = _texts(message.DESCRIPTOR)
    for name in where.own:
        if "\0" in getattr(message, name):
            return name
    for name in where.lists:
        for place, text in enumerate(getattr(message, name)):
            if "\0" in text:
                return f"{name}[{place}]"
    for name in where.maps:
        for key, value in getattr(message, name).items():
            if "\0" in str(key) or (isinstance(value, str) and "\0" in value):
                return name
    for name in where.nested:
        if message.HasField(name) and (inner := _nul_in(getattr(message, name))):
            return f"{name}.{inner}"
    for name in where.nested_lists:
        for place, item in enumerate(getattr(message, name)):
            if inner := _nul_in(item):
                return f"{name}[{place}].{inner}"
    return ""


def _refusal(error: protovalidate.ValidationError) -> Refusal:
    violations = []
    for violation in error.violations[:_MOST]:
        proto = violation.proto
        violations.append((_path(proto.field), proto.message or proto.rule_id))
    field, problem = violations[0]
    rest = len(error.violations) - 1
    return Refusal(
        Reason.INVALID_FIELD,
        f"{field} {problem}" + (f", and {rest} more" if rest else ""),
        field=field,
        remedy="correct each field named in the violations and send the request again",
        violations=tuple(violations),
    )


def _path(path: protovalidate.FieldPathPb | None) -> str:
    """`gates[0].run_id`, `labels["a"]`."""
    text = ""
    for element in path.elements if path is not None else ():
        text += ("." if text else "") + element.field_name
        subscript = element.subscript
        if subscript is not None:
            text += f"[{subscript.value!r}]"
    return text or "request"
