"""What a step's function is called with, from what its lease carries. Pure.

Can go wrong: an output that does not fit the type that the step declares for it. The attempt fails with what pydantic says.
"""

from collections.abc import Mapping
from typing import Any

from runway_sdk.workflow import RESERVED, Step, identifier


def arguments_of(found: Step, given: Any) -> dict[str, Any]:
    """The function's arguments from the ticket's input, each of its declared type."""
    outputs: Mapping[str, Any] = {identifier(key): value for key, value in (given.get("steps") or {}).items()}
    arguments: dict[str, Any] = {}
    for parameter in found.parameters:
        if parameter.name == "run":
            arguments["run"] = parameter.adapter.validate_python(given.get("run"))
        elif parameter.name in RESERVED and parameter.name not in outputs:
            arguments[parameter.name] = parameter.adapter.validate_python(given.get(parameter.name, RESERVED[parameter.name]))
        elif parameter.name in outputs:
            arguments[parameter.name] = parameter.adapter.validate_python(outputs[parameter.name])
        elif not parameter.optional:
            arguments[parameter.name] = parameter.adapter.validate_python(None)
    return arguments
