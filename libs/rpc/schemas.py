"""Authoritative for how a JSON Schema of somebody else's is held against a value: inside its document, in bounded time.

Can go wrong: a schema written, by mistake or on purpose, to take for ever. Patterns are matched by RE2, which has no bad case;
every keyword that is evaluated costs one of a budget, so that references that multiply end in a refusal; nothing is fetched.
"""

import json
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import re2
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable

MAX_SCHEMA_BYTES = 256 * 1024
MAX_EVALUATIONS = 100_000
"""Keywords evaluated for one value: some tens of milliseconds."""
_left: ContextVar[list[int]] = ContextVar("evaluations_left")


class TooCostly(Exception):
    """The schema takes more work for this value than anybody is granted."""


class Misfit(Exception):
    """A value that does not fit: where, and how."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]


def _counted(keyword: Keyword) -> Keyword:
    def evaluate(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        left = _left.get()
        left[0] -= 1
        if left[0] < 0:
            raise TooCostly
        yield from keyword(validator, value, instance, schema) or ()

    return evaluate


def _pattern(_validator: Any, pattern: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not compiled(pattern).search(instance):
        yield ValidationError(f"{instance[:100]!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    for pattern, subschema in patterns.items():
        matches = compiled(pattern).search
        for name, item in instance.items():
            if matches(name):
                yield from validator.descend(item, subschema, path=name, schema_path=pattern)


def _unique(_validator: Any, wanted: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if wanted and isinstance(instance, list):
        forms = {json.dumps(item, sort_keys=True) for item in instance}
        if len(forms) != len(instance):
            yield ValidationError("has items that are equal")


_OWN: dict[str, Keyword] = {"pattern": _pattern, "patternProperties": _pattern_properties, "uniqueItems": _unique}
_Bounded: Any = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {name: _counted(_OWN.get(name) or keyword) for name, keyword in Draft202012Validator.VALIDATORS.items() if keyword},
)


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> Any:
    """The pattern for RE2; raises re2.error where it is none (look-around and back-references are not)."""
    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern, options=options)


@lru_cache(maxsize=1000)
def _validator(schema: str) -> Any:
    return _Bounded(json.loads(schema), registry=Registry())  # the default registry would fetch


def flaws(schema: str) -> list[str]:
    """Everything for which a schema cannot be published; empty where it can."""
    if len(schema.encode()) > MAX_SCHEMA_BYTES:
        return [f"is larger than {MAX_SCHEMA_BYTES} bytes"]
    try:
        node = json.loads(schema)
        Draft202012Validator.check_schema(node)
    except SchemaError as error:
        return [f"is no JSON Schema (draft 2020-12): {error.message[:200]}", *_walk_once(schema)]
    except RecursionError:
        return ["is nested too deeply"]
    return _walk_once(schema)


def _walk_once(schema: str) -> list[str]:
    return list(dict.fromkeys(_walk(json.loads(schema))))


def _walk(node: Any) -> Iterator[str]:
    """What the schema of schemas does not find."""
    if isinstance(node, list):
        for child in node:
            yield from _walk(child)
    if not isinstance(node, dict):
        return
    for name in ("$ref", "$dynamicRef"):
        if isinstance(ref := node.get(name), str) and not ref.startswith("#"):
            yield "refers to another document; only references inside it ('#/…') are followed"
    patterns = node.get("patternProperties")
    for pattern in (node.get("pattern"), *(patterns if isinstance(patterns, dict) else ())):
        if isinstance(pattern, str) and not _compiles(pattern):
            yield f"has a pattern that RE2 does not take (no look-around, no back-references): {pattern[:60]!r}"
    for child in node.values():
        yield from _walk(child)


def _compiles(pattern: str) -> bool:
    try:
        compiled(pattern)
    except re2.error:
        return False
    return True


def check(schema: str, value: object, field: str) -> None:
    """Raises Misfit, naming the place, where a value does not fit, or cannot be held against its schema."""
    _left.set([MAX_EVALUATIONS])
    try:
        error = best_match(_validator(schema).iter_errors(value))
    except TooCostly:
        raise Misfit(field, "takes too long to hold against its schema: simplify its references") from None
    except (Unresolvable, RecursionError):
        raise Misfit(field, "cannot be held against its schema: references do not resolve") from None
    if isinstance(error, ValidationError):
        path = field + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
        raise Misfit(path, error.message[:300])
