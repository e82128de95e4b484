"""A published workflow version → readiness' graph. Authoritative for what the presets of joins mean here.

Can go wrong: a spec of a later version of this code. What is not known is not read; launch has refused what it did not know.
"""

import json

from google.protobuf import json_format
from google.protobuf.duration_pb2 import Duration
from runway.launch.v1 import workflow_pb2

from services.readiness.domain.graph import Contract, Graph, Join, Need, Node, OnFailure, Policy, Rest, Retry, When, build_graph

POINT_GATEWAY = 1
POINT_CHECKPOINT = 2


def _ms(duration: Duration) -> int:
    return duration.seconds * 1000 + duration.nanos // 1_000_000


def parse_graph(raw: bytes) -> Graph:
    """The graph of a published spec; defaults were filled in when it was published."""
    spec = workflow_pb2.WorkflowSpec.FromString(raw)
    return build_graph([_node(spec, step) for step in spec.steps], spec.output_step, spec.max_steps)


def _policy(step: workflow_pb2.StepSpec) -> Policy | None:
    if not step.HasField("join_policy"):
        return None
    said = step.join_policy
    return Policy(
        need=said.need,
        on_failure=OnFailure(said.on_failure or OnFailure.COUNT),
        rest=Rest(said.rest or Rest.AWAIT),
        majority=said.preset == "quorum" and not said.need,
        warns=said.preset == "best_effort",
    )


def _node(spec: workflow_pb2.WorkflowSpec, step: workflow_pb2.StepSpec) -> Node:
    gateway = POINT_GATEWAY if step.tools or step.models else 0
    schema = json.dumps(json_format.MessageToDict(step.output_schema)) if step.HasField("output_schema") else ""
    return Node(
        key=step.key,
        needs=tuple(Need(need.step, When(int(need.when)), need.condition) for need in step.needs),
        join=Join(int(step.join)),
        retry=Retry(
            step.retry.max_attempts,
            _ms(step.retry.initial_backoff),
            step.retry.multiplier,
            _ms(step.retry.max_backoff),
            frozenset(step.retry.retry_on),
        ),
        contract=Contract(
            handler=f"{spec.name}.{step.handler}@{spec.build}",
            timeout_ms=_ms(step.timeout),
            lease_ttl_ms=_ms(step.lease_ttl),
            tools=tuple(step.tools),
            models=tuple(step.models),
            checkpoints=step.checkpoints,
            requires=tuple(step.requires),
            points=gateway | (POINT_CHECKPOINT if step.checkpoints else 0),
            resources=tuple(step.resources.items()),
        ),
        output_schema=schema,
        policy=_policy(step),
        condition=step.condition,
        for_each=step.for_each,
        template=step.expand.template,
        max_instances=step.expand.max if step.expand.template else step.max_instances,
    )
