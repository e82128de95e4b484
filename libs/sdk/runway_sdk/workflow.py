"""Steps and workflows as Python functions. Authoritative for how a function's signature becomes a step's contract.

A parameter named `run` gets the run's input, one of type `Context` the attempt's context, and any other is named after the
step whose output it takes (`audit-links` as `audit_links`): that is also the edge between them. The output of a step that is
many is the list of its instances' outputs. An instance gets `item` and `index`; a step that goes on without some of its
predecessors may look at `failures`, by step. Can go wrong: a parameter
that names no step. `workflow(...)` says so when the module is imported, not when a run fails.
"""

import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import Any, overload

from google.protobuf import json_format
from google.protobuf.duration_pb2 import Duration
from pydantic import TypeAdapter
from runway.launch.v1 import workflow_pb2

from runway_sdk.approvals import ApprovalRule
from runway_sdk.context import Context
from runway_sdk.policies import Edge as Edge
from runway_sdk.policies import Join as Join
from runway_sdk.policies import Retry as Retry
from runway_sdk.policies import When as When
from runway_sdk.sync_context import SyncContext

_CONDITIONS = {
    "success": workflow_pb2.CONDITION_SUCCESS,
    "failure": workflow_pb2.CONDITION_FAILURE,
    "always": workflow_pb2.CONDITION_ALWAYS,
}


RESERVED: Mapping[str, Any] = {"item": None, "index": None, "failures": {}}
"""Parameters that name no step, with what they are where there is nothing: see above."""


class WorkflowError(Exception):
    """A workflow that cannot be: said when it is defined."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a step: where its value comes from and what type it must have."""

    name: str
    source: str
    adapter: TypeAdapter[Any]
    optional: bool


@dataclass(slots=True)
class Step:
    """A function with its contract. Calling it calls the function, so steps are tested like any other."""

    function: Callable[..., Any]
    key: str
    needs: Mapping[str, Edge]
    any_need: bool
    retry: Retry
    timeout: timedelta | None
    lease_ttl: timedelta | None
    tools: Sequence[str]
    models: Sequence[str]
    checkpoints: bool
    requires: Sequence[str]
    resources: Mapping[str, int] = field(default_factory=dict)
    join: "str | Join" = ""
    need: int = 0
    condition: str = ""
    for_each: str = ""
    max_instances: int = 0
    expands: str = ""
    approvals: Sequence[ApprovalRule] = ()
    parameters: Sequence[Parameter] = field(default_factory=tuple)
    context_name: str = ""
    output: TypeAdapter[Any] = field(default_factory=lambda: TypeAdapter(Any))
    is_async: bool = False

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(self.function)
        found = []
        for name, parameter in inspect.signature(self.function).parameters.items():
            hint = hints.get(name, Any)
            if hint in (Context, SyncContext) or (hint is Any and name == "ctx"):
                self.context_name = name
                continue
            optional = parameter.default is not inspect.Parameter.empty
            found.append(Parameter(name, name, TypeAdapter(hint), optional))
        self.parameters = tuple(found)
        self.output = TypeAdapter(hints.get("return", Any))
        self.is_async = inspect.iscoroutinefunction(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""
        return self.function(*args, **kwargs)


@overload
def step(function: Callable[..., Any], /) -> Step: ...


@overload
def step(
    *,
    key: str = "",
    needs: Sequence[str] | Mapping[str, When | Edge] = (),
    any_need: bool = False,
    retry: Retry | None = None,
    timeout: timedelta | None = None,
    lease_ttl: timedelta | None = None,
    tools: Sequence[str] = (),
    models: Sequence[str] = (),
    checkpoints: bool = False,
    requires: Sequence[str] = (),
    region: str = "",
    resources: Mapping[str, int] | None = None,
    join: str | Join = "",
    need: int = 0,
    when: str = "",
    for_each: str = "",
    max_instances: int = 0,
    expands: str = "",
    approvals: Sequence[ApprovalRule] = (),
) -> Callable[[Callable[..., Any]], Step]: ...


def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    key: str = "",
    needs: Sequence[str] | Mapping[str, When | Edge] = (),
    any_need: bool = False,
    retry: Retry | None = None,
    timeout: timedelta | None = None,
    lease_ttl: timedelta | None = None,
    tools: Sequence[str] = (),
    models: Sequence[str] = (),
    checkpoints: bool = False,
    requires: Sequence[str] = (),
    region: str = "",
    resources: Mapping[str, int] | None = None,
    join: str | Join = "",
    need: int = 0,
    when: str = "",
    for_each: str = "",
    max_instances: int = 0,
    expands: str = "",
    approvals: Sequence[ApprovalRule] = (),
) -> Step | Callable[[Callable[..., Any]], Step]:
    """Makes a function a step.

    `key` defaults to the function's name. `needs` adds edges that no parameter names, or other conditions than success
    (`{"publish": "failure"}`). `tools` and `models` are what the step may call, `checkpoints` whether it commits
    checkpoints or artifacts: anything not declared is denied. `requires` are labels of a worker, `region` is where it
    must stand (the label `region:NAME`); `resources` what an attempt takes of it while it runs, by name (`{"gpu": 1,
    "memory_mb": 2048}`). `approvals` name calls that people must approve first.

    `join` says how its needs join: `all`, `fail_fast`, `any`, `k_of_n`, `quorum` (these two with `need`), `collect_partial`,
    `best_effort`, or a `Join`. `when` is a CEL condition: where it is false, the step is skipped. `for_each` is a CEL list: the
    step becomes one instance an item. `expands` names the step that this one makes many with `ctx.expand`. At most
    `max_instances` are made.
    """

    def make(function: Callable[..., Any]) -> Step:
        named: Mapping[str, When | Edge] = needs if isinstance(needs, Mapping) else dict.fromkeys(needs, Edge())
        edges = {to: edge if isinstance(edge, Edge) else Edge(edge) for to, edge in named.items()}
        return Step(
            function=function,
            key=key or function.__name__,
            needs=edges,
            any_need=any_need,
            retry=retry or Retry(),
            timeout=timeout,
            lease_ttl=lease_ttl,
            tools=tuple(tools),
            models=tuple(models),
            checkpoints=checkpoints,
            requires=(*requires, *region_label(region)),
            resources=dict(resources or {}),
            join=join,
            need=need,
            condition=when,
            for_each=for_each,
            max_instances=max_instances,
            expands=expands,
            approvals=tuple(approvals),
        )

    return make(function) if function is not None else make


def region_label(region: str) -> tuple[str, ...]:
    """The label that a worker of this region has, and a step there requires; nothing for no region."""
    return (f"region:{region}",) if region else ()


@lru_cache(maxsize=10_000)
def identifier(key: str) -> str:
    """A step's key as a parameter name."""
    return re.sub(r"[^0-9a-zA-Z_]", "_", key)


@dataclass(slots=True)
class Workflow:
    """Steps under a name and a build; what is published, and what a worker carries."""

    name: str
    build: str
    steps: Mapping[str, Step]
    output_step: str
    input: TypeAdapter[Any] | None
    deadline: timedelta | None
    description: str
    max_steps: int = 0
    promised: TypeAdapter[Any] | None = None
    independent_children: bool = False
    max_children: int = 0
    max_child_depth: int = 0

    @property
    def handlers(self) -> Mapping[str, Step]:
        """`workflow.step@build` → the step."""
        return {f"{self.name}.{key}@{self.build}": found for key, found in self.steps.items()}

    def edges(self, found: Step) -> dict[str, Edge]:
        """Predecessors of a step with their conditions: named by parameters, and declared."""
        by_name = {identifier(key): key for key in self.steps}
        edges: dict[str, Edge] = {}
        for parameter in found.parameters:
            if parameter.name in by_name:
                edges[by_name[parameter.name]] = Edge()
        edges.update(found.needs)
        return edges

    def spec(self) -> workflow_pb2.WorkflowSpec:
        """What PublishWorkflowVersion takes."""
        spec = workflow_pb2.WorkflowSpec(
            name=self.name,
            build=self.build,
            output_step=self.output_step,
            description=self.description,
            max_steps=self.max_steps,
            steps=[self._step(found) for found in self.steps.values()],
        )
        if self.deadline is not None:
            spec.default_deadline.FromTimedelta(self.deadline)
        if self.input is not None:
            json_format.ParseDict(self.input.json_schema(), spec.input_schema)
        if self.promised is not None:
            json_format.ParseDict(self.promised.json_schema(mode="serialization"), spec.output_schema)
        spec.allow_independent_children = self.independent_children
        spec.max_children, spec.max_child_depth = self.max_children, self.max_child_depth
        return spec

    def _step(self, found: Step) -> workflow_pb2.StepSpec:
        spec = workflow_pb2.StepSpec(
            key=found.key,
            needs=[
                workflow_pb2.Need(step=key, when=_CONDITIONS[edge.when], condition=edge.condition)
                for key, edge in self.edges(found).items()
            ],
            join=workflow_pb2.JOIN_ANY if found.any_need else workflow_pb2.JOIN_ALL,
            retry=workflow_pb2.RetryPolicy(
                max_attempts=found.retry.max_attempts,
                multiplier=found.retry.multiplier,
                initial_backoff=_duration(found.retry.initial),
                max_backoff=_duration(found.retry.longest),
                retry_on=found.retry.on,
            ),
            tools=found.tools,
            models=found.models,
            checkpoints=found.checkpoints,
            requires=found.requires,
            resources=found.resources,
            approvals=[_rule(rule) for rule in found.approvals],
            description=(inspect.getdoc(found.function) or "")[:2000],
            join_policy=_policy(found),
            condition=found.condition,
            for_each=found.for_each,
            max_instances=found.max_instances if found.for_each else 0,
            expand=workflow_pb2.Expand(template=found.expands, max=found.max_instances) if found.expands else None,
        )
        if found.timeout is not None:
            spec.timeout.CopyFrom(_duration(found.timeout))
        if found.lease_ttl is not None:
            spec.lease_ttl.CopyFrom(_duration(found.lease_ttl))
        return spec


def _policy(found: Step) -> workflow_pb2.JoinPolicy | None:
    if isinstance(found.join, Join):
        return workflow_pb2.JoinPolicy(
            need=found.join.need,
            on_failure=workflow_pb2.JoinFailure.Value(f"JOIN_FAILURE_{found.join.on_failure.upper()}"),
            rest=workflow_pb2.JoinRest.Value(f"JOIN_REST_{found.join.rest.upper()}"),
        )
    return workflow_pb2.JoinPolicy(preset=found.join, need=found.need) if found.join else None


def _rule(rule: ApprovalRule) -> workflow_pb2.ApprovalRule:
    return workflow_pb2.ApprovalRule(
        tools=rule.tools,
        need=rule.need,
        eligible=rule.eligible,
        expires_in=None if rule.expires_in is None else _duration(rule.expires_in),
        above_micros=rule.above_micros,
        effects=rule.effects,
        above_total_micros=rule.above_total_micros,
    )


def _duration(delta: timedelta) -> Duration:
    duration = Duration()
    duration.FromTimedelta(delta)
    return duration


def workflow(
    name: str,
    *,
    steps: Sequence[Step],
    build: str = "1",
    output: Step | None = None,
    input: Any = None,
    deadline: timedelta | None = None,
    description: str = "",
    max_steps: int = 0,
    promises: Any = None,
    independent_children: bool = False,
    max_children: int = 0,
    max_child_depth: int = 0,
) -> Workflow:
    """A workflow of these steps. `build` names the code: change it when a run in flight must not get the new code.

    `input` is the type of the run's input (its JSON Schema is checked at launch); `output` the step whose result is the
    run's, the single last step where it is not given. `max_steps`: most steps of a run, instances counted. `promises` is the
    type of the run's output, by which a child's is checked before its parent sees it. `independent_children`: its runs may
    spawn children that outlive them; `max_children` and `max_child_depth` bound how many and how deep, 0 as the installation
    does.
    """
    keys = [found.key for found in steps]
    if len(set(keys)) != len(keys):
        raise WorkflowError(
            f"workflow {name!r}: two steps have one key: {sorted({key for key in keys if keys.count(key) > 1})}"
        )
    made = Workflow(
        name=name,
        build=build,
        steps={found.key: found for found in steps},
        output_step=output.key if output else "",
        input=TypeAdapter(input) if input is not None else None,
        deadline=deadline,
        description=description,
        max_steps=max_steps,
        promised=TypeAdapter(promises) if promises is not None else None,
        independent_children=independent_children,
        max_children=max_children,
        max_child_depth=max_child_depth,
    )
    by_name: dict[str, str] = {"run": "the run's input"}
    for key in keys:
        if taken := by_name.get(identifier(key)):
            raise WorkflowError(f"workflow {name!r}: step {key!r} and {taken!r} would be one parameter: name one differently")
        by_name[identifier(key)] = key
    for found in steps:
        known = set(by_name) | _reserved(made, found)
        for parameter in found.parameters:
            if parameter.name not in known:
                names = ", ".join(sorted(known))
                raise WorkflowError(f"step {found.key!r}: parameter {parameter.name!r} names no step; known: {names}")
        for key in found.needs:
            if key not in made.steps:
                raise WorkflowError(f"step {found.key!r} needs {key!r}, which is no step of {name!r}")
        if found.expands and found.expands not in made.steps:
            raise WorkflowError(f"step {found.key!r} expands {found.expands!r}, which is no step of {name!r}")
    return made


def _reserved(made: Workflow, found: Step) -> set[str]:
    """Parameters of a step that name no other step."""
    many = found.for_each or any(other.expands == found.key for other in made.steps.values())
    return {"item", "index", "failures"} if many else {"failures"}
