"""JSON Schemas of inputs and outputs: whether they are schemas at all, and whether a value fits one.

Can go wrong: a schema that refers to the outside. References leave the document nowhere here: a remote one is a violation.
"""

import json
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from referencing.exceptions import Unresolvable

from libs.kernel.refusal import Refusal, invalid_field
from services.launch.domain.workflow import Violation, WorkflowSpec


@lru_cache(maxsize=1000)
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema))


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
        if _remote(json.loads(schema)):
            found.append((field, "refers to another document; only references inside it ('#/…') are followed"))
    return found


def _remote(node: Any) -> bool:
    if isinstance(node, dict):
        ref = node.get("$ref")
        return (isinstance(ref, str) and not ref.startswith("#")) or any(_remote(child) for child in node.values())
    return isinstance(node, list) and any(_remote(child) for child in node)


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
