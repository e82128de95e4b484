"""Protobuf ↔ launch's domain, both ways. Authoritative for the canonical form of a workflow version: its digest is taken
over the bytes made here.

Can go wrong: two spellings of one spec with two digests. Defaults are filled in and sets are sorted before serializing.
"""

import json
from collections.abc import Sequence
from uuid import UUID

from google.protobuf import json_format, struct_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from runway.common.v1 import common_pb2
from runway.internal.fence.v1 import fence_pb2
from runway.launch.v1 import admin_service_pb2, launch_service_pb2

from libs.fence.grants import revoked_of
from libs.kernel.ids import digest, uuid_from_bytes
from libs.kernel.refusal import invalid_field
from libs.rpc.identity import Caller
from libs.telemetry.traces import traceparent
from services.launch.app.launch_runs import LaunchAsk
from services.launch.domain.admission import Account
from services.launch.domain.facts import GateFacts, InFlight, ScopeFacts, Version, Waiting
from services.launch.domain.run import FailureFacts, Run, RunEventFacts, RunState
from services.launch.domain.workflow import POINT_NAMES
from services.launch.ports import Limits


def to_ms(duration: Duration) -> int:
    """A duration in whole milliseconds."""
    return duration.seconds * 1000 + duration.nanos // 1_000_000


def duration(ms: int) -> Duration:
    """Milliseconds as a duration."""
    return Duration(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def timestamp(ms: int) -> Timestamp:
    """Milliseconds since the Unix epoch as a timestamp."""
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def check_text(text: str, field: str) -> str:
    """The text, or INVALID_FIELD where the database could not hold it."""
    if "\0" in text:
        raise invalid_field(field, "holds a NUL character", "leave it out")
    return text


def request_digest(request: launch_service_pb2.LaunchRunRequest, project: str) -> bytes:
    """Names the canonical request: everything but the request_id, with the project that it is for.

    The workflow stays as it was named: a repeat after a newer version was published is the same request.
    """
    canonical = launch_service_pb2.LaunchRunRequest()
    canonical.CopyFrom(request)
    canonical.project = project
    canonical.ClearField("request_id")
    canonical.ClearField("validate_only")
    return digest(canonical.SerializeToString(deterministic=True))


def failure_message(failure: FailureFacts) -> common_pb2.Failure:
    """A failure."""
    return common_pb2.Failure(failure_class=failure.failure_class, message=failure.message, type=failure.type)


def receipts(run: Run) -> list[launch_service_pb2.EnforcementReceipt]:
    """What each point of a closed or paused run has confirmed, or of one from which something is being taken."""
    if not (run.head.outcome or run.head.paused_ms or run.head.revoking) or run.head.state == RunState.DENIED:
        return []
    found = []
    for bit, name in POINT_NAMES.items():
        if run.head.points & bit:
            enforced = bool(run.head.enforced & bit)
            found.append(
                launch_service_pb2.EnforcementReceipt(
                    point=name,
                    enforced_epoch=run.head.epoch if enforced else 0,
                    enforced_at=timestamp(run.enforced_ms) if enforced and run.enforced_ms else None,
                    quiesced=bool(run.head.quiesced & bit),
                )
            )
    return found


def revoked_receipts(run: Run) -> list[launch_service_pb2.EnforcementReceipt]:
    """What each point has confirmed of what was taken last. Once all have, later epochs carry it."""
    if run.head.revoking:
        return receipts(run)
    return [
        launch_service_pb2.EnforcementReceipt(point=name, enforced_epoch=run.revoked_epoch)
        for bit, name in POINT_NAMES.items()
        if run.head.points & bit and run.revoked_epoch
    ]


def run_message(run: Run, *, payload: bool = True, waiting: Waiting | None = None) -> launch_service_pb2.Run:
    """A run; `payload` False leaves input and output out. A running one of which nothing can move is shown as waiting."""
    head = run.head
    state = RunState.WAITING if waiting and waiting.all_wait and head.state == RunState.RUNNING else head.state
    return launch_service_pb2.Run(
        run_id=str(head.run_id),
        tenant=head.tenant,
        project=head.project,
        workflow=launch_service_pb2.WorkflowPin(
            name=run.workflow_name, number=run.workflow_number, digest=run.digest.hex(), build=run.build
        ),
        state=launch_service_pb2.RunState.ValueType(int(state)),
        wait_reasons=waiting.reasons if waiting else (),
        outcome=head.outcome,
        cancel_extent=run.cancel_extent,
        run_class=launch_service_pb2.RunClass.ValueType(run.run_class),
        priority=run.priority,
        deadline=timestamp(run.deadline_ms),
        created_at=timestamp(run.created_ms),
        finished_at=timestamp(run.finished_ms) if run.finished_ms else None,
        version=head.version,
        epoch=head.epoch,
        input=struct_pb2.Value.FromString(run.input) if payload and run.input else None,
        output=struct_pb2.Value.FromString(run.output) if payload and run.output else None,
        failure=failure_message(run.failure) if run.failure else None,
        budget=common_pb2.Budget(micros=head.budget_micros, tokens=run.budget_tokens),
        used=common_pb2.Budget(micros=head.used_micros, tokens=run.used_tokens),
        labels=dict(run.labels),
        receipts=receipts(run),
        last_sequence=run.sequence,
        paused_at=timestamp(head.paused_ms) if head.paused_ms else None,
        paused_until=timestamp(run.pause_until_ms) if run.pause_until_ms else None,
        parent_id=str(head.parent_id or ""),
        root_id=str(head.root_id or ""),
        depth=head.depth,
        independent=head.independent,
        delegated=common_pb2.Budget(micros=head.delegated_micros) if head.children else None,
        children=head.children,
        forked_from=str(run.fork_of) if run.fork_of else "",
        start_by=timestamp(run.start_by_ms) if run.start_by_ms else None,
        revoked=[
            launch_service_pb2.RevokedCapability(capability=one.capability, at=timestamp(one.at_ms), by=one.by)
            for one in revoked_of(head.capabilities)
        ],
    )


def longest_pause_ms(request: launch_service_pb2.PauseRunRequest, limits: Limits) -> int:
    """How long a run may stay paused."""
    if not request.HasField("longest"):
        return limits.longest_pause_ms
    asked_ms = request.longest.seconds * 1000 + request.longest.nanos // 1_000_000
    if not 1_000 <= asked_ms <= limits.max_deadline_ms:
        raise invalid_field(
            "longest", f"must be between a second and {limits.max_deadline_ms // 1000} s", "choose hours or days, as a rule"
        )
    return asked_ms


def event_message(event: RunEventFacts) -> launch_service_pb2.RunEvent:
    """A log entry."""
    detail = struct_pb2.Struct()
    detail.update(json.loads(event.detail))
    return launch_service_pb2.RunEvent(
        sequence=event.sequence,
        at=timestamp(event.at_ms),
        kind=event.kind,
        state=launch_service_pb2.RunState.ValueType(event.state),
        step_key=event.step_key,
        actor=event.actor,
        detail=detail,
    )


def in_flight_message(effect: InFlight) -> launch_service_pb2.EffectInFlight:
    """An unresolved effect."""
    return launch_service_pb2.EffectInFlight(step_key=effect.step_key, slot=effect.slot, state=effect.state, tool=effect.tool)


def tenant_message(account: Account) -> admin_service_pb2.Tenant:
    """A tenant with its balances."""
    return admin_service_pb2.Tenant(
        tenant=account.tenant,
        limit_micros=account.limit_micros,
        reserved_micros=account.reserved_micros,
        spent_micros=account.spent_micros,
        max_active_runs=account.max_active_runs,
        active_runs=account.active_runs,
        version=account.version,
        max_active_descendants=account.max_active_descendants,
        active_descendants=account.active_descendants,
    )


def page_of(size: int, default: int) -> int:
    """A page size, the default where none was given."""
    return size or default


def ids_of(raw: Sequence[bytes], field: str) -> list[UUID]:
    """Ids in bytes."""
    return [uuid_from_bytes(item, field) for item in raw]


def plain(value: struct_pb2.Value) -> object:
    """A Value as Python data; whole numbers as integers."""
    return _whole(json_format.MessageToDict(value))


def _whole(node: object) -> object:
    if isinstance(node, dict):
        return {key: _whole(child) for key, child in node.items()}
    if isinstance(node, list):
        return [_whole(child) for child in node]
    return int(node) if isinstance(node, float) and node.is_integer() else node


def actor(caller: Caller) -> str:
    """How the log names a caller: never by the key."""
    return f"key:{caller.name or caller.key_id}"


def launch_ask(caller: Caller, project: str, version: Version, request: launch_service_pb2.LaunchRunRequest) -> LaunchAsk:
    """A launch, parsed."""
    return LaunchAsk(
        tenant=caller.tenant,
        project=project,
        actor=actor(caller),
        request_id=request.request_id,
        request_digest=request_digest(request, project),
        version=version,
        input=request.input.SerializeToString(deterministic=True) if request.HasField("input") else b"",
        run_class=request.run_class or launch_service_pb2.RUN_CLASS_AUTOMATION,
        priority=request.priority,
        deadline_in_ms=to_ms(request.deadline),
        start_within_ms=to_ms(request.start_within),
        budget_micros=request.budget.micros,
        budget_tokens=request.budget.tokens,
        budget_given=request.HasField("budget"),
        labels=json.dumps(dict(request.labels), sort_keys=True),
        traceparent=traceparent(),
    )


def gate_message(gate: GateFacts) -> fence_pb2.RunGate:
    """A run's gate for a cold read."""
    return fence_pb2.RunGate(
        run_id=gate.run_id.bytes,
        epoch=gate.epoch,
        mode=fence_pb2.Mode.ValueType(int(gate.mode)),
        outcome=gate.outcome,
        capabilities=gate.capabilities,
        granted_micros=gate.granted_micros,
        envelope_sequence=gate.budget_sequence,
        tenant=gate.tenant,
        project=gate.project,
    )


def scope_message(scope: ScopeFacts) -> fence_pb2.ScopeFence:
    """A scope that is not open."""
    mode = fence_pb2.Mode.ValueType(scope.mode)
    return fence_pb2.ScopeFence(kind=scope.kind, scope_id=scope.scope_id, epoch=scope.epoch, mode=mode)
