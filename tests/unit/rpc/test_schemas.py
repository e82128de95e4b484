"""A schema of somebody else's cannot hold the process: patterns, references that multiply, equal items."""

import json
import time

import pytest

from libs.rpc.schemas import Misfit, check, flaws


def problem(schema: dict, value: object) -> str:
    with pytest.raises(Misfit) as misfit:
        check(json.dumps(schema), value, "input")
    return f"{misfit.value.path}: {misfit.value.problem}"


def test_a_pattern_has_no_bad_case() -> None:
    began = time.process_time()
    assert "does not match" in problem({"type": "string", "pattern": "^(a+)+$"}, "a" * 5000 + "!")
    assert time.process_time() - began < 2, "RE2 is linear; a backtracking matcher would never end"


def test_references_that_multiply_end_in_a_refusal() -> None:
    levels = {f"l{n}": {"allOf": [{"$ref": f"#/$defs/l{n + 1}"}, {"$ref": f"#/$defs/l{n + 1}"}]} for n in range(40)}
    schema = {"$defs": {**levels, "l40": {"type": "integer"}}, "$ref": "#/$defs/l0"}
    assert flaws(json.dumps(schema)) == []
    assert "too long" in problem(schema, 1)


def test_recursion_without_end_is_refused() -> None:
    assert "schema" in problem({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, 1)


def test_equal_items_and_pattern_properties() -> None:
    many = [[number] for number in range(20_000)]
    check(json.dumps({"uniqueItems": True}), many, "input")
    assert "equal" in problem({"uniqueItems": True}, [*many, [5]])
    named = {"patternProperties": {"^n_": {"type": "integer"}}}
    check(json.dumps(named), {"n_a": 1, "other": "x"}, "input")
    assert problem(named, {"n_a": "x"}).startswith("input.n_a:")


@pytest.mark.parametrize(
    ("schema", "flaw"),
    [
        ({"type": "nonsense"}, "no JSON Schema"),
        ({"$ref": "http://127.0.0.1:1/x"}, "another document"),
        ({"properties": {"a": {"$dynamicRef": "https://x.invalid/y"}}}, "another document"),
        ({"pattern": "(?=look)"}, "RE2"),
        ({"patternProperties": {"[": {}}}, "RE2"),
        ({"description": "x" * 300_000}, "larger"),
    ],
)
def test_flaws_are_named_when_published(schema: dict, flaw: str) -> None:
    assert any(flaw in text for text in flaws(json.dumps(schema)))
