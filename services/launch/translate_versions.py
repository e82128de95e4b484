"""Workflow versions between protobuf and launch's domain: what is left out is filled in before a version has its digest.

Can go wrong: a default that changes. Versions that were published before keep theirs: they were filled in then.
"""

import json

from google.protobuf import json_format, struct_pb2
from runway.launch.v1 import workflow_pb2

from libs.kernel.refusal import invalid_field
from libs.rpc.values import check_value
from services.launch.domain.facts import Version
from services.launch.domain.graph_rules import AWAIT, COUNT, PRESETS
from services.launch.domain.workflow import ApprovalRule, NeedSpec, PolicySpec, StepSpec, WorkflowSpec
from services.launch.translate import duration, timestamp, to_ms

DEFAULT_ATTEMPTS = 3


DEFAULT_INITIAL_BACKOFF_MS = 200


DEFAULT_MULTIPLIER = 2.0


DEFAULT_MAX_BACKOFF_MS = 60_000


DEFAULT_RETRY_ON = ("attempt", "infrastructure", "transient")


def check_spec(spec: workflow_pb2.WorkflowSpec) -> None:
    """Refuses schemas that hold what JSON could not carry."""
    given = [("spec.input_schema", spec.input_schema)] if spec.HasField("input_schema") else []
    if spec.HasField("output_schema"):
        given.append(("spec.output_schema", spec.output_schema))
    for number, step in enumerate(spec.steps):
        if step.HasField("input_schema"):
            given.append((f"spec.steps[{number}].input_schema", step.input_schema))
        if step.HasField("output_schema"):
            given.append((f"spec.steps[{number}].output_schema", step.output_schema))
    for field, schema in given:
        check_value(struct_pb2.Value(struct_value=schema), field)


def _schema(struct: struct_pb2.Struct, given: bool) -> str:
    return json.dumps(json_format.MessageToDict(struct), sort_keys=True) if given else ""


def canonical_spec(given: workflow_pb2.WorkflowSpec) -> workflow_pb2.WorkflowSpec:
    """The spec with defaults filled in and sets sorted: what is digested and stored."""
    spec = workflow_pb2.WorkflowSpec()
    spec.CopyFrom(given)
    for step in spec.steps:
        step.handler = step.handler or step.key
        step.join = step.join or workflow_pb2.JOIN_ALL
        for need in step.needs:
            need.when = need.when or workflow_pb2.CONDITION_SUCCESS
        _fill_policy(step)
        retry = step.retry
        retry.max_attempts = retry.max_attempts or DEFAULT_ATTEMPTS
        retry.multiplier = retry.multiplier or DEFAULT_MULTIPLIER
        if not retry.HasField("initial_backoff"):
            retry.initial_backoff.CopyFrom(duration(DEFAULT_INITIAL_BACKOFF_MS))
        if not retry.HasField("max_backoff"):
            retry.max_backoff.CopyFrom(duration(max(DEFAULT_MAX_BACKOFF_MS, to_ms(retry.initial_backoff))))
        classes = sorted(set(retry.retry_on or DEFAULT_RETRY_ON))
        for field, values in ((retry.retry_on, classes), (step.tools, set(step.tools)), (step.models, set(step.models))):
            ordered = sorted(values)
            del field[:]
            field.extend(ordered)
        for rule in step.approvals:
            rule.need = rule.need or 1
            for named in (rule.tools, rule.eligible, rule.effects):
                kept = sorted(set(named))
                del named[:]
                named.extend(kept)
        requires = sorted(set(step.requires))
        del step.requires[:]
        step.requires.extend(requires)
    return spec


def _fill_policy(step: workflow_pb2.StepSpec) -> None:
    """What a preset says, and what is taken where nothing is said."""
    if not step.HasField("join_policy"):
        return
    said = step.join_policy
    need, on_failure, rest = PRESETS.get(said.preset, (0, COUNT, AWAIT))
    said.need = said.need or max(need, 0)
    said.on_failure = said.on_failure or workflow_pb2.JoinFailure.ValueType(on_failure)
    said.rest = said.rest or workflow_pb2.JoinRest.ValueType(rest)


def spec_bytes(spec: workflow_pb2.WorkflowSpec) -> bytes:
    """Canonical bytes of a canonical spec."""
    return spec.SerializeToString(deterministic=True)


def spec_of(spec: workflow_pb2.WorkflowSpec) -> WorkflowSpec:
    """The domain's view of a canonical spec."""
    return WorkflowSpec(
        name=spec.name,
        build=spec.build,
        steps=tuple(_step(step) for step in spec.steps),
        output_step=spec.output_step,
        default_deadline_ms=to_ms(spec.default_deadline),
        input_schema=_schema(spec.input_schema, spec.HasField("input_schema")),
        max_steps=spec.max_steps,
        output_schema=_schema(spec.output_schema, spec.HasField("output_schema")),
        allow_independent_children=spec.allow_independent_children,
        max_children=spec.max_children,
        max_child_depth=spec.max_child_depth,
    )


def _policy(step: workflow_pb2.StepSpec) -> PolicySpec | None:
    said = step.join_policy
    return PolicySpec(said.preset, said.need, said.on_failure, said.rest) if step.HasField("join_policy") else None


def _step(step: workflow_pb2.StepSpec) -> StepSpec:
    return StepSpec(
        key=step.key,
        handler=step.handler,
        needs=tuple(NeedSpec(need.step, int(need.when), need.condition) for need in step.needs),
        max_attempts=step.retry.max_attempts,
        initial_backoff_ms=to_ms(step.retry.initial_backoff),
        multiplier=step.retry.multiplier,
        max_backoff_ms=to_ms(step.retry.max_backoff),
        retry_on=tuple(step.retry.retry_on),
        timeout_ms=to_ms(step.timeout),
        lease_ttl_ms=to_ms(step.lease_ttl),
        tools=tuple(step.tools),
        models=tuple(step.models),
        checkpoints=step.checkpoints,
        requires=tuple(step.requires),
        resources=tuple(sorted(step.resources.items())),
        input_schema=_schema(step.input_schema, step.HasField("input_schema")),
        output_schema=_schema(step.output_schema, step.HasField("output_schema")),
        join=int(step.join),
        policy=_policy(step),
        condition=step.condition,
        for_each=step.for_each,
        max_instances=step.max_instances,
        template=step.expand.template,
        max_expanded=step.expand.max,
        approvals=tuple(_rule(rule) for rule in step.approvals),
    )


def _rule(rule: workflow_pb2.ApprovalRule) -> ApprovalRule:
    return ApprovalRule(
        tools=tuple(rule.tools),
        need=rule.need,
        eligible=tuple(rule.eligible),
        expires_in_ms=to_ms(rule.expires_in),
        above_micros=rule.above_micros,
        effects=tuple(rule.effects),
        above_total_micros=rule.above_total_micros,
    )


def parse_spec(raw: bytes) -> WorkflowSpec:
    """The domain's view of stored bytes."""
    return spec_of(workflow_pb2.WorkflowSpec.FromString(raw))


def version_message(version: Version) -> workflow_pb2.WorkflowVersion:
    """A published version."""
    return workflow_pb2.WorkflowVersion(
        name=version.name,
        number=version.number,
        digest=version.digest.hex(),
        spec=workflow_pb2.WorkflowSpec.FromString(version.raw),
        published_at=timestamp(version.published_ms),
        project=version.project,
    )


def parse_version_token(token: str) -> tuple[str, int] | None:
    """A page token of versions: `name@number`."""
    if not token:
        return None
    name, at, number = token.rpartition("@")
    if not at or not number.isdecimal() or len(number) > 9 or "\0" in name:
        raise invalid_field("page_token", "is not one of ours", "send next_page_token as it was returned")
    return name, int(number)
