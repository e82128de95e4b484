"""Which Values are taken."""

from typing import Any

import pytest
from google.protobuf import json_format, struct_pb2

from libs.kernel.refusal import Reason, Refusal
from libs.rpc.values import check_value


def value_of(data: Any) -> struct_pb2.Value:
    return json_format.ParseDict(data, struct_pb2.Value())


@pytest.mark.parametrize("data", [None, True, "x", 0, -(2**53), 2**53, 1.5, [], {}, {"a": [1, {"b": None}]}, 1e-300, 123456.75])
def test_json_that_survives_is_taken(data: object) -> None:
    check_value(value_of(data), "input")


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (2**53 + 2, "input"),
        (-(2**60), "input"),
        ({"a": [1, 2**54]}, "input.a[1]"),
        ({"a": {"b": 1e300}}, "input.a.b"),
    ],
)
def test_integers_above_two_to_the_53_are_refused_by_name(data: object, field: str) -> None:
    with pytest.raises(Refusal) as refused:
        check_value(value_of(data), "input")
    assert (refused.value.reason, refused.value.field) == (Reason.INVALID_FIELD, field)
    assert refused.value.remedy == "send it as text"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_refused(number: float) -> None:
    value = struct_pb2.Value(list_value=struct_pb2.ListValue(values=[struct_pb2.Value(number_value=number)]))
    with pytest.raises(Refusal) as refused:
        check_value(value, "input")
    assert refused.value.field == "input[0]"


def nested(depth: int) -> struct_pb2.Value:
    """Built from the outside in: copying one that is this deep is more than the library itself does."""
    value = root = struct_pb2.Value()
    for _ in range(depth - 1):
        value = value.list_value.values.add()
    value.string_value = "deep"
    return root


def test_nesting_ends_where_a_lease_could_not_carry_it() -> None:
    check_value(nested(40), "input")
    with pytest.raises(Refusal, match="nested too deeply"):
        check_value(nested(41), "input")
    objects: Any = 1
    for _ in range(26):
        objects = {"a": objects}
    check_value(value_of(objects), "input")
    with pytest.raises(Refusal, match="nested too deeply"):
        check_value(value_of({"a": objects}), "input")


def test_an_empty_value_inside_is_refused_but_an_absent_input_is_not() -> None:
    check_value(struct_pb2.Value(), "input")
    with pytest.raises(Refusal) as refused:
        check_value(struct_pb2.Value(list_value=struct_pb2.ListValue(values=[struct_pb2.Value()])), "input")
    assert refused.value.field == "input[0]"
