"""Authors' expressions over what runs carry: bytes of protobuf become plain data, and what comes out becomes bytes again.
Implements `domain.state.Expressions`.

Whole numbers are integers here, since JSON does not tell them apart and `run.count + 1` is what an author writes.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format, struct_pb2
from google.protobuf.message import DecodeError

from libs.rpc import expressions
from services.readiness.domain.state import Output, Unusable


class CelExpressions:
    """Stateless."""

    def holds(self, expression: str, run_input: bytes, outputs: Mapping[str, Output], step: Mapping[str, object]) -> bool:
        """A condition."""
        found = _evaluate(expression, run_input, outputs, step)
        if not isinstance(found, bool):
            raise Unusable(f"it gives {_kind(found)}, neither true nor false")
        return found

    def items(
        self, expression: str, run_input: bytes, outputs: Mapping[str, Output], step: Mapping[str, object]
    ) -> list[bytes]:
        """The items of a list."""
        found = _evaluate(expression, run_input, outputs, step)
        if not isinstance(found, list):
            raise Unusable(f"it gives {_kind(found)}, and no list")
        try:
            return [json_format.ParseDict(item, struct_pb2.Value()).SerializeToString(deterministic=True) for item in found]
        except (json_format.ParseError, TypeError, ValueError):
            raise Unusable("it gives a list of what JSON cannot say") from None

    def asked(self, payload: bytes) -> list[bytes]:
        """The items that an attempt asked for; they were looked at when they came."""
        fields = struct_pb2.Value.FromString(payload).struct_value.fields
        return [item.SerializeToString(deterministic=True) for item in fields["items"].list_value.values]


def _evaluate(expression: str, run_input: bytes, outputs: Mapping[str, Output], step: Mapping[str, object]) -> Any:
    try:
        steps = {
            key: _plain(given) if isinstance(given, bytes) else [_plain(one) for one in given] for key, given in outputs.items()
        }
        data = {"run": _plain(run_input), "steps": steps, "step": dict(step)}
        return expressions.evaluate(expression, data)
    except DecodeError:
        raise Unusable("its data cannot be read") from None
    except expressions.Unusable as error:
        raise Unusable(str(error)) from None


def _plain(raw: bytes) -> Any:
    return _whole(json_format.MessageToDict(struct_pb2.Value.FromString(raw))) if raw else None


def _whole(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _whole(child) for key, child in node.items()}
    if isinstance(node, list):
        return [_whole(child) for child in node]
    return int(node) if isinstance(node, float) and node.is_integer() and abs(node) < 2**53 else node


def _kind(found: object) -> str:
    names = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object", type(None): "nothing"}
    return names.get(type(found), f"a {type(found).__name__}")
