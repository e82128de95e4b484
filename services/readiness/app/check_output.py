"""Whether an attempt's output is what its step promised: a misfit is a failure of class validation, told as such.

Can go wrong: trusting the worker to check. It may be another build, or not our SDK at all.
"""

import json
from dataclasses import replace
from functools import lru_cache

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry
from referencing.exceptions import Unresolvable

from services.readiness.domain.graph import Node
from services.readiness.domain.steps import AttemptFact, End, FailureFacts


@lru_cache(maxsize=1000)
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema), registry=Registry())  # the default one would fetch


def as_promised(node: Node, fact: AttemptFact) -> AttemptFact:
    """The fact as it came; where a success does not fit the step's schema, the failure that it is."""
    if fact.end != End.SUCCEEDED or not node.output_schema or fact.read is None:
        return fact
    try:
        error = best_match(_validator(node.output_schema).iter_errors(fact.read()))
    except (Unresolvable, RecursionError):
        failure = FailureFacts("validation", "the output cannot be checked: the schema's references do not resolve", "SCHEMA")
        return replace(fact, end=End.FAILED, output=b"", failure=failure)
    if error is None:
        return fact
    path = "output" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    failure = FailureFacts("validation", f"{path} does not fit the step's schema: {error.message[:300]}", "OUTPUT_MISFIT")
    return replace(fact, end=End.FAILED, output=b"", failure=failure)
