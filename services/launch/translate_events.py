"""What other services tell launch, from events into its domain.

Can go wrong: an end that nobody can read. It is refused by name, and its neighbours pass.
"""

import json
from uuid import UUID

from runway.events.v1 import events_pb2

from libs.kernel.ids import uuid_from_bytes
from libs.kernel.refusal import invalid_field
from services.launch.domain.closing import Closing
from services.launch.domain.facts import Usage
from services.launch.domain.run import FailureFacts, RunEventFacts

MOST_LEFT_OUT = 20
"""Of one warning; readiness names no more."""


def step_entry(step: events_pb2.StepFinished, run_id: UUID) -> RunEventFacts:
    """A terminal step as a log entry."""
    detail: dict[str, object] = {"attempts": step.attempts}
    if step.state == "warning":
        left = [{"step": one.step_key} | _failure(one.failure) for one in step.left_out[:MOST_LEFT_OUT]]
        detail = {"join": "best_effort", "failures": step.left_out_total, "failed": left}
    if step.HasField("failure"):
        detail["failure"] = _failure(step.failure)
    return RunEventFacts(run_id, 0, step.at_ms, f"step.{step.state}", 0, step.step_key, "readiness", json.dumps(detail))


def _failure(failure: events_pb2.Failure) -> dict[str, object]:
    return {"class": failure.failure_class, "message": failure.message, "type": failure.type}


def asked_entry(fact: events_pb2.InputAsked) -> RunEventFacts:
    """A child's question as an entry of its root's log."""
    run_id = uuid_from_bytes(fact.run_id, "input_asked.run_id")
    root = uuid_from_bytes(fact.root_run_id, "input_asked.root_run_id")
    detail = {"child_run_id": str(run_id), "child_step": fact.step_key, "slot": fact.slot, "prompt": fact.prompt}
    text = json.dumps(detail, ensure_ascii=False)
    return RunEventFacts(root, 0, fact.asked_ms, "child.input_requested", 0, "", f"run:{run_id}", text)


def graph_closing(fact: events_pb2.GraphFinished) -> Closing:
    """A finished graph as a closing."""
    if fact.outcome not in ("succeeded", "failed", "cancelled"):
        raise invalid_field("graph_finished.outcome", f"is {fact.outcome!r}", "send succeeded, failed or cancelled")
    failure = None
    if fact.HasField("failure"):
        text = f"step {fact.failed_step}: {fact.failure.message}" if fact.failed_step else fact.failure.message
        failure = FailureFacts(fact.failure.failure_class or "attempt", text[:2000], fact.failure.type)
    elif fact.outcome == "failed":
        failure = FailureFacts("attempt", "the graph failed", "")
    run_id = uuid_from_bytes(fact.run_id, "graph_finished.run_id")
    return Closing(run_id, fact.outcome, fact.output, failure, "readiness", failure.message if failure else "")


def usage_of(fact: events_pb2.UsageSettled) -> Usage:
    """A usage report."""
    return Usage(uuid_from_bytes(fact.run_id, "usage_settled.run_id"), fact.sequence, fact.used_micros, fact.used_tokens)
