"""JSON Schemas of inputs and outputs: whether they are schemas at all, and whether a value fits one.

Can go wrong: a schema that refers to the outside. References leave the document nowhere here: a remote one is a violation, and
nothing is ever fetched. Or a pattern that is no expression, which would be found only with the first value: a violation too.
"""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from referencing import Registry
from referencing.exceptions import Unresolvable

from libs.kernel.refusal import Refusal, invalid_field
from services.launch.domain.workflow import Violation, WorkflowSpec


@lru_cache(maxsize=1000)
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema), registry=Registry())  # the default one would fetch


def schema_violations(spec: WorkflowSpec) -> list[Violation]:
    """Every schema of the spec that is none."""
    found: list[Violation] = []
    named = [("spec.input_schema", spec.input_schema)]
    for number, step in enumerate(spec.steps):
        named.append((f"spec.steps[{number}].input_schema", step.input_schema))
        named.append((f"spec.steps[{number}].output_schema", step.output_schema))
    for field, schema in named:
        if not schema:
            continue
        try:
            Draft202012Validator.check_schema(json.loads(schema))
        except SchemaError as error:
            found.append((field, f"is no JSON Schema (draft 2020-12): {error.message[:200]}"))
        for text in dict.fromkeys(_flaws(json.loads(schema))):
            found.append((field, text))
    return found


def _flaws(node: Any) -> Iterator[str]:
    """What the schema of schemas does not find."""
    if isinstance(node, list):
        for child in node:
            yield from _flaws(child)
    if not isinstance(node, dict):
        return
    for name in ("$ref", "$dynamicRef"):
        if isinstance(ref := node.get(name), str) and not ref.startswith("#"):
            yield "refers to another document; only references inside it ('#/…') are followed"
    patterns = node.get("patternProperties")
    for pattern in (node.get("pattern"), *(patterns if isinstance(patterns, dict) else ())):
        if isinstance(pattern, str) and not _compiles(pattern):
            yield f"has a pattern that is no regular expression: {pattern[:60]!r}"
    for child in node.values():
        yield from _flaws(child)


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def refuse_misfit(schema: str, value: object, field: str) -> None:
    """INVALID_FIELD where the value does not fit the schema, naming the place."""
    try:
        error = best_match(_validator(schema).iter_errors(value))
    except (Unresolvable, RecursionError):
        raise invalid_field(
            field, "cannot be checked: the schema's references do not resolve", "publish a new version"
        ) from None
    if isinstance(error, ValidationError):
        raise misfit(field, error)


def misfit(field: str, error: ValidationError) -> Refusal:
    """The refusal for one validation error."""
    path = field + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    return invalid_field(path, f"does not fit the workflow's schema: {error.message[:300]}", "send what the schema describes")
