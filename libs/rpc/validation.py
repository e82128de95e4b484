"""Authoritative for whether a request is well formed: the rules in the protos, all of them at once, before any handler.

Can go wrong: echoing a bad value. Violations name the field and the rule; never the content, which may be anything.
"""

import protovalidate
from google.protobuf.message import Message

from libs.kernel.refusal import Reason, Refusal

_MOST = 200


def check_message(message: Message) -> None:
    """Refuses INVALID_FIELD with every violated rule of the message's proto."""
    try:
        protovalidate.validate(message)
    except protovalidate.ValidationError as error:
        raise _refusal(error) from None


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
