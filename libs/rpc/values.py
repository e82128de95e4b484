"""Authoritative for which `google.protobuf.Value` the product takes: what JSON can carry to any language and back unchanged.

Can go wrong: a Value holds numbers as doubles, so an integer above 2^53 has already lost its last digits when it arrives;
it is refused, with text as the remedy. Or a Value that arrives and cannot be handed on: the wire takes 100 messages inside one
another, an object is three and a list two, and an output travels on inside a ticket's input inside a lease. So room is kept.
"""

import math
from typing import Any

from google.protobuf import struct_pb2

from libs.kernel.refusal import invalid_field

LARGEST = 2**53
DEEPEST = 80
"""Messages inside one another that a Value may have; what carries it may add up to 20."""


def check_value(value: struct_pb2.Value, field: str) -> None:
    """Refuses INVALID_FIELD, naming the place, what JSON could not carry exactly."""
    pending: list[tuple[struct_pb2.Value, str, int]] = [(value, field, 1)]
    while pending:
        current, path, depth = pending.pop()
        if depth > DEEPEST:
            text = "is nested too deeply: an object in an object counts 3, a list in a list 2, and 80 is the most"
            raise invalid_field(path, text, "send less nesting, or text that you parse yourself")
        kind = current.WhichOneof("kind")
        if kind == "number_value":
            _check_number(current.number_value, path)
        elif kind == "list_value":
            pending += [(item, f"{path}[{index}]", depth + 2) for index, item in enumerate(current.list_value.values)]
        elif kind == "struct_value":
            pending += [(item, f"{path}.{key}", depth + 3) for key, item in current.struct_value.fields.items()]
        elif kind is None and path != field:
            raise invalid_field(path, "has no kind", "send null_value for null")


def plain_value(value: struct_pb2.Value) -> Any:
    """A Value as JSON data; whole numbers that RFC 8785 writes as such come as integers. Digests are taken over this."""
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return {key: plain_value(child) for key, child in value.struct_value.fields.items()}
    if kind == "list_value":
        return [plain_value(child) for child in value.list_value.values]
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() and abs(number) < LARGEST else number
    if kind in (None, "null_value"):
        return None
    return getattr(value, kind)


def _check_number(number: float, path: str) -> None:
    if not math.isfinite(number):
        raise invalid_field(path, "is NaN or infinite", "send null or text")
    if abs(number) > LARGEST and number.is_integer():
        raise invalid_field(path, "is an integer above 2^53, which a Value cannot hold exactly", "send it as text")
