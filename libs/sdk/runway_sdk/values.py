"""Python data ↔ google.protobuf.Value, both ways; the form in which inputs and outputs travel.

Can go wrong: an integer above 2^53, which a Value cannot hold exactly, or more nesting than the wire carries. Both are refused
here, before they are sent.
"""

import math
from typing import Any

from google.protobuf import struct_pb2
from pydantic import BaseModel

from runway_sdk.errors import InvalidRequest

LARGEST_INTEGER = 2**53
DEEPEST = 80
"""Nesting: an object in an object counts 3, a list in a list 2."""


def to_value(data: Any, field: str = "value") -> struct_pb2.Value:
    """JSON-like data (None, bool, int, float, str, list, dict, and pydantic models anywhere in it) as a Value."""
    value = struct_pb2.Value()
    _fill(value, data, field)
    return value


def _fill(value: struct_pb2.Value, data: Any, field: str, depth: int = 1) -> None:
    if depth > DEEPEST:
        raise InvalidRequest(f"{field} is nested too deeply", field=field, remedy="give less nesting, or text")
    if data is None:
        value.null_value = struct_pb2.NULL_VALUE
    elif isinstance(data, bool):
        value.bool_value = data
    elif isinstance(data, int):
        if abs(data) > LARGEST_INTEGER:
            raise InvalidRequest(f"{field} is an integer above 2^53", field=field, remedy="send it as text")
        value.number_value = data
    elif isinstance(data, float):
        if not math.isfinite(data):
            raise InvalidRequest(f"{field} is not finite", field=field, remedy="send None or text")
        value.number_value = data
    elif isinstance(data, str):
        value.string_value = data
    elif isinstance(data, dict):
        value.struct_value.SetInParent()
        for key, child in data.items():
            _fill(value.struct_value.fields[str(key)], child, f"{field}.{key}", depth + 3)
    elif isinstance(data, list | tuple):
        value.list_value.SetInParent()
        for number, child in enumerate(data):
            _fill(value.list_value.values.add(), child, f"{field}[{number}]", depth + 2)
    elif isinstance(data, BaseModel):
        _fill(value, data.model_dump(mode="json"), field, depth)
    else:
        text = f"{field} is a {type(data).__name__}, which JSON has no form for"
        raise InvalidRequest(text, field=field, remedy="give plain data or a pydantic model")


def from_value(value: struct_pb2.Value) -> Any:
    """A Value as Python data; whole numbers come as int."""
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return {key: from_value(child) for key, child in value.struct_value.fields.items()}
    if kind == "list_value":
        return [from_value(child) for child in value.list_value.values]
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() and abs(number) <= LARGEST_INTEGER else number
    if kind == "string_value":
        return value.string_value
    return value.bool_value if kind == "bool_value" else None
