"""Authoritative for which joins, conditions and steps that are many may be published. Pure; expressions themselves are read
elsewhere (`app/check_expressions.py`).

Can go wrong: a graph in which the order of two facts would decide. A join that fails at the first failure therefore needs all,
and the instances of a step that another one asks for are made when that one has succeeded, and by nothing else.
"""

from collections.abc import Iterator, Mapping

from services.launch.domain.workflow import PolicySpec, StepSpec, Violation, WorkflowSpec

FAIL, COUNT, IGNORE = 1, 2, 3
AWAIT, CANCEL, LEAVE = 1, 2, 3
SUCCESS = 1
ANY = 2
FREE = -1
"""Of a preset: the author says how many."""
PRESETS: Mapping[str, tuple[int, int, int]] = {
    "all": (0, COUNT, AWAIT),
    "fail_fast": (0, FAIL, CANCEL),
    "any": (1, COUNT, CANCEL),
    "k_of_n": (FREE, COUNT, AWAIT),
    "quorum": (FREE, COUNT, CANCEL),
    "collect_partial": (0, IGNORE, AWAIT),
    "best_effort": (0, IGNORE, AWAIT),
}
"""`need`, `on_failure` and `rest` of each name."""
MAX_STEPS = 1_000_000
MAX_INSTANCES = 100_000


def graph_violations(spec: WorkflowSpec) -> list[Violation]:
    """Everything that is wrong with how steps join and multiply."""
    steps = {step.key: step for step in spec.steps}
    many = {step.key for step in spec.steps if step.for_each} | {step.template for step in spec.steps if step.template}
    asked: dict[str, str] = {}
    found: list[Violation] = []
    for number, step in enumerate(spec.steps):
        at = f"spec.steps[{number}]"
        if step.policy is not None:
            found += _policy(f"{at}.join_policy", step, step.policy, many)
        found += _edges(at, step, many)
        found += _many(at, step, steps, many, asked)
    if not 0 <= spec.max_steps <= MAX_STEPS:
        found.append(("spec.max_steps", f"must be between 0 and {MAX_STEPS}"))
    if 0 < spec.max_steps < len(spec.steps):
        found.append(("spec.max_steps", f"is {spec.max_steps}, and the workflow has {len(spec.steps)} steps"))
    return found


def _policy(at: str, step: StepSpec, policy: PolicySpec, many: set[str]) -> Iterator[Violation]:
    if not step.needs:
        yield at, "says how needs join, and the step has none"
    if step.join == ANY:
        yield at, "and join ANY say two things: leave one out"
    if policy.preset:
        if policy.preset not in PRESETS:
            yield f"{at}.preset", f"is {policy.preset!r}; known: {', '.join(PRESETS)}"
            return
        need, on_failure, rest = PRESETS[policy.preset]
        if (policy.on_failure, policy.rest) != (on_failure, rest) or (need != FREE and policy.need != need):
            yield at, f"says something else than its preset {policy.preset!r}: leave its other fields out"
    if policy.preset == "k_of_n" and not policy.need:
        yield f"{at}.need", "is missing: k_of_n needs the number k"
    if policy.on_failure == FAIL and policy.need:
        yield f"{at}.need", "with on_failure FAIL the order of two facts would decide: need all (0), or count failures"
    if not any(need.step in many for need in step.needs) and policy.need > len(step.needs):
        yield f"{at}.need", f"is {policy.need}, and the step has {len(step.needs)} needs"


def _edges(at: str, step: StepSpec, many: set[str]) -> Iterator[Violation]:
    for number, need in enumerate(step.needs):
        if need.condition and need.step in many:
            yield (
                f"{at}.needs[{number}].condition",
                f"is on an edge from {need.step!r}, which is many: use the step's own condition, over the list of outputs",
            )


def _many(at: str, step: StepSpec, steps: Mapping[str, StepSpec], many: set[str], asked: dict[str, str]) -> Iterator[Violation]:
    if not 0 <= step.max_instances <= MAX_INSTANCES or not 0 <= step.max_expanded <= MAX_INSTANCES:
        yield at, f"may have at most {MAX_INSTANCES} instances of a step"
    if step.max_instances and not step.for_each:
        yield f"{at}.max_instances", "is for steps with for_each"
    if not step.template:
        return
    template = steps.get(step.template)
    if template is None or template.key == step.key:
        yield f"{at}.expand.template", f"names no other step of this workflow: {step.template!r}"
        return
    if step.key in many:
        yield f"{at}.expand", "is of a step that is many itself: ask for instances in a step of its own"
    if template.key in asked:
        yield f"{at}.expand.template", f"{template.key!r} is asked for by {asked[template.key]!r} already"
    asked[template.key] = step.key
    alone = [need.step for need in template.needs] == [step.key] and template.needs[0].when == SUCCESS
    if not alone or template.policy is not None or template.needs[0].condition or template.for_each:
        yield (
            f"{at}.expand.template",
            f"{template.key!r} must need the success of {step.key!r} and nothing else, without for_each and join_policy",
        )
