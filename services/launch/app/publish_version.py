"""Publish a workflow version: every violation at once, else one immutable version per content."""

from libs.kernel.refusal import Reason, Refusal
from services.launch.app.check_expressions import expression_violations
from services.launch.app.check_schemas import schema_violations
from services.launch.domain.facts import Version
from services.launch.domain.graph_rules import graph_violations
from services.launch.domain.workflow import WorkflowSpec, violations
from services.launch.ports import Ports


def refuse_invalid(spec: WorkflowSpec) -> None:
    """WORKFLOW_INVALID listing everything that is wrong."""
    found = violations(spec) + graph_violations(spec) + schema_violations(spec) + expression_violations(spec)
    if found:
        text = "; ".join(f"{field} {problem}" for field, problem in found[:5])
        raise Refusal(
            Reason.WORKFLOW_INVALID,
            f"{len(found)} violation(s): {text}"[:2000],
            remedy="correct every violation listed and publish again",
            violations=tuple(found[:100]),
        )


async def publish_version(
    ports: Ports, tenant: str, project: str, spec: WorkflowSpec, raw: bytes, publisher: str
) -> tuple[Version, bool]:
    """The version, and whether this call made it. Equal content is the same version."""
    refuse_invalid(spec)
    now_ms = ports.clock.now_ms()
    await ports.projects.settle_project(tenant, project, now_ms, publisher)
    return await ports.catalogue.publish(tenant, project, spec, raw, publisher, now_ms)
