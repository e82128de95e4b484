"""Authoritative for what a valid workflow version is. Pure: a spec goes in, every violation comes out at once.

Can go wrong: a graph that can never finish, or a contract nobody can keep. Both are found here, before anything is stored.
"""

import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

from libs.fence.rules import ANY, BY_CLASS, CLASSES, rule_text
from libs.kernel.values import value

POINT_GATEWAY = 1
POINT_CHECKPOINT = 2
POINT_SCHEDULER = 4
POINT_NAMES: Mapping[int, str] = {POINT_SCHEDULER: "scheduler", POINT_GATEWAY: "gateway", POINT_CHECKPOINT: "checkpoint"}

NAME = re.compile(r"^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?\Z")
DEFAULT_PROJECT = "default"
"""A project that every tenant has."""
KEY = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
BUILD = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,62}\Z")
LABEL = re.compile(r"^[a-zA-Z0-9][a-zA-Z0-9._:/-]{0,99}\Z")
FAILURE_CLASSES = frozenset({"transient", "validation", "budget", "attempt", "infrastructure", "deadline"})
MAX_STEPS = 1000
MOST_APPROVERS = 16
MOST_RULES = 128
ROLES = frozenset({"reviewer", "operator", "admin"})
MOST_AMOUNT = 2**53
MAX_TIMEOUT_MS = 30 * 24 * 3600 * 1000
MIN_TTL_MS = 1000
MAX_TTL_MS = 3600 * 1000

Violation = tuple[str, str]
"""(field path, what is wrong and what would be right)."""


@value(frozen=True, slots=True)
class NeedSpec:
    """One edge into a step."""

    step: str
    when: int
    condition: str = ""


@value(frozen=True, slots=True)
class PolicySpec:
    """How needs join; the numbers are those of the contract, 0 where unset."""

    preset: str
    need: int
    on_failure: int
    rest: int


@value(frozen=True, slots=True)
class ApprovalRule:
    """Calls of a step that need an approval, by tool or by the class of their effect; `expires_in_ms` 0: the installation's
    default; `above_total_micros` 0: not by the run's total."""

    tools: tuple[str, ...]
    need: int
    eligible: tuple[str, ...]
    expires_in_ms: int
    above_micros: int
    effects: tuple[str, ...] = ()
    above_total_micros: int = 0

    @property
    def named(self) -> tuple[str, ...]:
        """What it names, as entries of a grant do."""
        return (*self.tools, *(BY_CLASS + effect for effect in self.effects))


@value(frozen=True, slots=True)
class StepSpec:
    """One step as its author wrote it; durations in milliseconds, 0 where unset; schemas as JSON text, empty where unset."""

    key: str
    handler: str
    needs: tuple[NeedSpec, ...]
    max_attempts: int
    initial_backoff_ms: int
    multiplier: float
    max_backoff_ms: int
    retry_on: tuple[str, ...]
    timeout_ms: int
    lease_ttl_ms: int
    tools: tuple[str, ...]
    models: tuple[str, ...]
    checkpoints: bool
    requires: tuple[str, ...]
    input_schema: str = ""
    output_schema: str = ""
    resources: tuple[tuple[str, int], ...] = ()
    """What an attempt takes of its worker besides a slot, by name."""
    join: int = 1
    policy: PolicySpec | None = None
    condition: str = ""
    for_each: str = ""
    max_instances: int = 0
    template: str = ""
    """The step that this one makes many."""
    max_expanded: int = 0
    approvals: tuple[ApprovalRule, ...] = ()

    @property
    def points(self) -> int:
        """Points that attempts of the step may touch, besides the scheduler."""
        gateway = POINT_GATEWAY if self.tools or self.models else 0
        return gateway | (POINT_CHECKPOINT if self.checkpoints else 0)


@value(frozen=True, slots=True)
class WorkflowSpec:
    """A workflow as its author wrote it."""

    name: str
    build: str
    steps: tuple[StepSpec, ...]
    output_step: str
    default_deadline_ms: int
    input_schema: str = ""
    max_steps: int = 0
    output_schema: str = ""
    allow_independent_children: bool = False
    max_children: int = 0
    max_child_depth: int = 0

    @property
    def points(self) -> int:
        """Every point that some step may touch; the scheduler always."""
        found = POINT_SCHEDULER
        for step in self.steps:
            found |= step.points
        return found

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What runs of it are granted: exactly what its steps declare."""
        tools = {f"tool:{tool}" for step in self.steps for tool in step.tools}
        models = {f"model:{model}" for step in self.steps for model in step.models}
        return tuple(sorted(tools | models))

    def rules(self, policy: str) -> tuple[str, ...]:
        """Rules of approval as entries of a grant, beside the capabilities: they take away, so nobody may leave them out."""
        found = {
            rule_text(step.key, named, rule.need, rule.above_micros, policy, rule.above_total_micros)
            for step in self.steps
            for rule in step.approvals
            for named in rule.named
        }
        return tuple(sorted(found))


def violations(spec: WorkflowSpec) -> list[Violation]:
    """Everything that is wrong with a spec, in the order of its fields; empty when it may be published."""
    found = list(_names(spec))
    keys = {step.key for step in spec.steps}
    for number, step in enumerate(spec.steps):
        found.extend(_step(f"spec.steps[{number}]", step, keys))
    if spec.output_step and spec.output_step not in keys:
        found.append(("spec.output_step", f"names no step: {spec.output_step!r}; use one of the steps' keys or leave it empty"))
    if not any("duplicate" in text or "names no step" in text for _, text in found):
        found.extend(_cycle(spec))
    return found


def _names(spec: WorkflowSpec) -> Iterator[Violation]:
    if not NAME.match(spec.name):
        yield "spec.name", "must be 1 to 63 of a-z, 0-9, '-', '_', beginning and ending with a letter or digit"
    if not BUILD.match(spec.build):
        yield "spec.build", "must be 1 to 63 of letters, digits, '.', '_', '+', '-'"
    if not spec.steps:
        yield "spec.steps", "is empty; a workflow has at least one step"
    if len(spec.steps) > MAX_STEPS:
        yield "spec.steps", f"has {len(spec.steps)} steps; at most {MAX_STEPS}"
    if len(spec.rules("")) > MOST_RULES:
        yield "spec.steps", f"have {len(spec.rules(''))} rules of approval, a tool of a step each; at most {MOST_RULES}"
    if not 0 <= spec.default_deadline_ms <= MAX_TIMEOUT_MS:
        yield "spec.default_deadline", "must be between 0 and 30 days"
    seen: set[str] = set()
    for number, step in enumerate(spec.steps):
        if step.key in seen:
            yield f"spec.steps[{number}].key", f"is a duplicate of another step: {step.key!r}; keys are unique"
        seen.add(step.key)


def _step(at: str, step: StepSpec, keys: set[str]) -> Iterator[Violation]:
    if not KEY.match(step.key):
        yield f"{at}.key", "must be 1 to 100 of letters, digits, '.', '_', '-', beginning with a letter or digit"
    if step.handler and not KEY.match(step.handler):
        yield f"{at}.handler", "must be 1 to 100 of letters, digits, '.', '_', '-'"
    named: set[str] = set()
    for number, need in enumerate(step.needs):
        if need.step not in keys:
            yield f"{at}.needs[{number}].step", f"names no step: {need.step!r}; use the key of a step of this workflow"
        if need.step in named:
            yield f"{at}.needs[{number}].step", f"needs {need.step!r} twice; one edge from each predecessor"
        named.add(need.step)
    yield from _retry(at, step)
    yield from _approvals(at, step)
    if not 0 <= step.timeout_ms <= MAX_TIMEOUT_MS:
        yield f"{at}.timeout", "must be between 0 and 30 days"
    if step.lease_ttl_ms and not MIN_TTL_MS <= step.lease_ttl_ms <= MAX_TTL_MS:
        yield f"{at}.lease_ttl", "must be between 1 s and 1 h"
    for field, labels in (("tools", step.tools), ("models", step.models), ("requires", step.requires)):
        for number, label in enumerate(labels):
            if not LABEL.match(label):
                yield f"{at}.{field}[{number}]", "must be 1 to 100 of letters, digits, '.', '_', ':', '/', '-'"
    for name, amount in step.resources:
        if not LABEL.match(name):
            yield (
                f"{at}.resources",
                f"names {name!r}: must be 1 to 100 of letters, digits, '.', '_', ':', '/', '-'",
            )
        if not 1 <= amount <= MOST_AMOUNT:
            yield f"{at}.resources[{name}]", f"must be between 1 and {MOST_AMOUNT}"


def _approvals(at: str, step: StepSpec) -> Iterator[Violation]:
    calls = {*step.tools, *(f"model:{model}" for model in step.models)}
    for number, rule in enumerate(step.approvals):
        here = f"{at}.approvals[{number}]"
        if not rule.named:
            yield f"{here}.tools", "is empty; name tools, models as model:NAME, or *, or classes of effects"
        for place, tool in enumerate(rule.tools):
            if tool != ANY and tool not in calls and not {"*", "model:*"} & calls:
                yield f"{here}.tools[{place}]", f"{tool!r} is nothing that the step may call; name one of its tools or models"
        if not 1 <= rule.need <= MOST_APPROVERS:
            yield f"{here}.need", f"must be between 1 and {MOST_APPROVERS}"
        if rule.eligible and rule.need > len(rule.eligible) and not ROLES & set(rule.eligible):
            yield f"{here}.need", f"is {rule.need}, and only {len(rule.eligible)} may approve"
        for place, name in enumerate(rule.eligible):
            if not name or len(name) > 200 or not name.isprintable():
                yield f"{here}.eligible[{place}]", "must be 1 to 200 printable characters"
        if rule.expires_in_ms and not MIN_TTL_MS <= rule.expires_in_ms <= MAX_TIMEOUT_MS:
            yield f"{here}.expires_in", "must be between 1 s and 30 days"
        for place, effect in enumerate(rule.effects):
            if effect not in CLASSES:
                yield f"{here}.effects[{place}]", f"{effect!r} is no class of effects; use {', '.join(CLASSES)}"
        for field, micros in (("above_micros", rule.above_micros), ("above_total_micros", rule.above_total_micros)):
            if micros < 0:
                yield f"{here}.{field}", "is negative"
        if rule.above_micros and rule.above_total_micros:
            yield f"{here}.above_total_micros", "is set beside above_micros; make two rules of it"


def _retry(at: str, step: StepSpec) -> Iterator[Violation]:
    if not 0 <= step.initial_backoff_ms <= MAX_TIMEOUT_MS or not 0 <= step.max_backoff_ms <= MAX_TIMEOUT_MS:
        yield f"{at}.retry", "has a backoff that is negative or above 30 days"
    if step.max_backoff_ms and step.initial_backoff_ms > step.max_backoff_ms:
        yield f"{at}.retry.initial_backoff", "is longer than max_backoff"
    if step.multiplier and not 1 <= step.multiplier <= 100:
        yield f"{at}.retry.multiplier", "must be between 1 and 100"
    for number, name in enumerate(step.retry_on):
        if name not in FAILURE_CLASSES:
            known = ", ".join(sorted(FAILURE_CLASSES))
            yield f"{at}.retry.retry_on[{number}]", f"{name!r} cannot be retried; known classes: {known} (policy never is)"


def _cycle(spec: WorkflowSpec) -> Iterator[Violation]:
    graph = {step.key: [need.step for need in step.needs] for step in spec.steps}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield "spec.steps", "form a cycle: " + " → ".join(error.args[1]) + "; remove one of these needs"
