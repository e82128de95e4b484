"""CEL expressions of conditions and lists: whether they may be published, and whether what they name is there."""

from collections.abc import Iterator

from libs.rpc.expressions import flaws, steps_named
from services.launch.domain.workflow import StepSpec, Violation, WorkflowSpec


def expression_violations(spec: WorkflowSpec) -> list[Violation]:
    """Every expression of the spec that cannot be published."""
    return [violation for number, step in enumerate(spec.steps) for violation in _of_step(f"spec.steps[{number}]", step)]


def _of_step(at: str, step: StepSpec) -> Iterator[Violation]:
    named = [(f"{at}.needs[{n}].condition", need.condition, {need.step}) for n, need in enumerate(step.needs)]
    needed = {need.step for need in step.needs}
    named += [(f"{at}.condition", step.condition, needed), (f"{at}.for_each", step.for_each, needed)]
    for field, expression, known in named:
        if not expression:
            continue
        found = flaws(expression)
        for flaw in found:
            yield field, flaw
        for key in sorted((steps_named(expression) or frozenset()) - known) if not found else ():
            yield field, f"names the output of {key!r}, which is not known here: only of steps that it needs"
