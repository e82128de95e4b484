"""JSON Schemas of inputs and outputs: whether they may be published, and whether an input fits (see `libs.rpc.schemas`)."""

from libs.kernel.refusal import invalid_field
from libs.rpc.schemas import Misfit, check, flaws
from services.launch.domain.workflow import Violation, WorkflowSpec


def schema_violations(spec: WorkflowSpec) -> list[Violation]:
    """Every schema of the spec that cannot be published."""
    named = [("spec.input_schema", spec.input_schema), ("spec.output_schema", spec.output_schema)]
    for number, step in enumerate(spec.steps):
        named.append((f"spec.steps[{number}].input_schema", step.input_schema))
        named.append((f"spec.steps[{number}].output_schema", step.output_schema))
    return [(field, flaw) for field, schema in named if schema for flaw in flaws(schema)]


def refuse_misfit(schema: str, value: object, field: str) -> None:
    """INVALID_FIELD where the value does not fit the schema, naming the place."""
    try:
        check(schema, value, field)
    except Misfit as misfit:
        text = f"does not fit the workflow's schema: {misfit.problem}"
        raise invalid_field(misfit.path, text, "send what the schema describes") from None
