"""Searches and continuations of runs, from protobuf into launch's domain.

Can go wrong: a filter that looks as if it held and does not. What cannot be read is refused by name.
"""

import json

from google.protobuf.timestamp_pb2 import Timestamp
from runway.launch.v1 import launch_service_pb2 as pb

from libs.kernel.ids import digest, uuid_from_text
from libs.kernel.refusal import invalid_field, not_found
from libs.rpc.identity import Caller
from libs.telemetry.traces import traceparent
from services.launch.app.fork_runs import ForkAsk
from services.launch.domain.facts import RunFilter
from services.launch.translate import actor, check_text, to_ms

MAX_LABEL = 200
LAST_MS = 2**48 - 1
"""Ids of runs have no room for a later millisecond."""


def filter_of(caller: Caller, request: pb.ListRunsRequest) -> RunFilter:
    """Which runs are wanted, of those that the caller may see."""
    if caller.project and request.project and request.project != caller.project:
        raise not_found("project")
    if not set(request.states) <= set(pb.RunState.values()):
        raise invalid_field("states", "holds a number that is no state", "send values of RunState")
    if not set(request.classes) <= set(pb.RunClass.values()):
        raise invalid_field("classes", "holds a number that is no class", "send values of RunClass")
    for key, value in request.labels.items():
        check_label(key, value)
    return RunFilter(
        tenant=caller.tenant,
        project=caller.project or check_text(request.project, "project"),
        states=tuple(request.states),
        classes=tuple(request.classes),
        workflow=check_text(request.workflow, "workflow"),
        labels=json.dumps(dict(request.labels)) if request.labels else "",
        from_ms=_ms(request.created_from, "created_from") if request.HasField("created_from") else 0,
        before_ms=_ms(request.created_before, "created_before") if request.HasField("created_before") else 0,
        fork_of=uuid_from_text(request.forked_from, "forked_from") if request.forked_from else None,
    )


def _ms(at: Timestamp, field: str) -> int:
    found = at.seconds * 1000 + at.nanos // 1_000_000
    if not 0 < found <= LAST_MS or not 0 <= at.nanos < 1_000_000_000:
        raise invalid_field(field, "is no time after 1970 that a run can have", "send a time of this century")
    return found


def check_label(key: str, value: str) -> None:
    """Refuses what cannot be a label."""
    if not key or len(key) > MAX_LABEL or len(value) > MAX_LABEL or "\0" in key + value:
        raise invalid_field("labels", f"has an empty key, one or a value over {MAX_LABEL} characters, or a NUL", "shorten it")


def fork_of(caller: Caller, request: pb.ForkRunRequest) -> ForkAsk:
    """What was asked of an ended run."""
    for key, value in request.labels.items():
        check_label(key, value)
    canonical = pb.ForkRunRequest()
    canonical.CopyFrom(request)
    canonical.ClearField("request_id")
    return ForkAsk(
        actor=actor(caller),
        request_id=request.request_id,
        request_digest=digest(b"fork\0" + canonical.SerializeToString(deterministic=True)),
        from_steps=tuple(check_text(key, "from_steps") for key in request.from_steps),
        reason=request.reason,
        deadline_in_ms=to_ms(request.deadline),
        budget=(request.budget.micros, request.budget.tokens) if request.HasField("budget") else None,
        labels=dict(request.labels),
        traceparent=traceparent(),
    )
