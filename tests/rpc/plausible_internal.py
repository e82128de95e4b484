"""Requests between services that would pass, one or more for each internal RPC, and one event of every kind, to be spoilt in
one place.

Authoritative for nothing. Can go wrong: a new internal RPC or event that is missing here; `test_garbage_internal` counts.
"""

from uuid import uuid4

from google.protobuf.message import Message
from runway.events.v1 import events_pb2 as ev
from runway.internal.checkpoint.v1 import checkpoint_internal_pb2 as cp
from runway.internal.fence.v1 import fence_pb2 as fe
from runway.internal.gateway.v1 import gateway_internal_pb2 as gw
from runway.internal.inbox.v1 import inbox_pb2 as ib
from runway.internal.launch.v1 import launch_internal_pb2 as la
from runway.internal.readiness.v1 import readiness_internal_pb2 as rd
from runway.internal.scheduler.v1 import scheduler_internal_pb2 as sc
from runway.scheduler.v1 import worker_service_pb2 as wk

from libs.kernel.ids import digest

POINTS = ("gateway", "checkpoint", "scheduler")


def good_events(run: bytes, attempt: bytes) -> list[ev.Event]:
    """An event of every kind, about a real run."""
    contract = ev.StepContract(handler="work.act@1", timeout_ms=1000, lease_ttl_ms=9000, points=1)
    facts: dict[str, Message] = {
        "run_launched": ev.RunLaunched(
            run_id=run, tenant="t", workflow_digest=digest(b"w"), build="1", run_class=1, epoch=1 << 40
        ),
        "run_closing": ev.RunClosing(run_id=run, epoch=1 << 41, outcome="failed"),
        "step_ready": ev.StepReady(
            run_id=run,
            step_key="other",
            ticket_sequence=1,
            tenant="t",
            run_class=1,
            contract=contract,
            attempt_number=1,
            epoch=1,
        ),
        "step_revoked": ev.StepRevoked(run_id=run, step_key="other", ticket_sequence=1),
        "first_lease": ev.FirstLease(run_id=run),
        "point_quiesced": ev.PointQuiesced(run_id=run, point="gateway", epoch=1, incarnation=256),
        "attempt_finished": ev.AttemptFinished(
            run_id=run, step_key="act", attempt_id=attempt, ticket_sequence=9, end=ev.ATTEMPT_END_FAILED
        ),
        "command_recorded": ev.CommandRecorded(run_id=run, step_key="act"),
        "command_answered": ev.CommandAnswered(run_id=run, step_key="act", slot="s", kind=ev.COMMAND_KIND_APPROVAL),
        "effect_unknown": ev.EffectUnknown(run_id=run, step_key="act", slot="s", tool="http.request"),
        "effect_resolved": ev.EffectResolved(run_id=run, step_key="act", slot="s", state="observed"),
        "step_finished": ev.StepFinished(run_id=run, step_key="act"),
        "steps_finished": ev.StepsFinished(steps=[ev.StepFinished(run_id=run, step_key="act")]),
        "graph_finished": ev.GraphFinished(run_id=run),
        "approval_consumed": ev.ApprovalConsumed(run_id=run, approval_id=attempt, at_ms=1),
        "slice_returned": ev.SliceReturned(run_id=run, delegation=digest(b"d"), spent_micros=1),
        "input_asked": ev.InputAsked(run_id=run, root_run_id=run, step_key="act", slot="s", prompt="?", asked_ms=1),
        "usage_settled": ev.UsageSettled(run_id=run, sequence=1, used_micros=1, used_tokens=1),
    }
    events = []
    for name, fact in facts.items():
        event = ev.Event(event_id=uuid4().bytes, at_ms=1)
        getattr(event, name).CopyFrom(fact)
        events.append(event)
    return events


def good_internal(run: bytes, attempt: bytes, lease: bytes) -> dict[str, list[Message]]:
    """Requests by method."""
    gate = fe.RunGate(run_id=uuid4().bytes, epoch=1 << 40, mode=fe.MODE_CLOSED, outcome="failed", capabilities=["a:b"])
    step = fe.StepFence(run_id=uuid4().bytes, step_key="act", authority_epoch=1, lease_epoch=2, attempt_id=bytes(16))
    scope = fe.ScopeFence(kind="tool", scope_id="a-tool", epoch=1 << 40, mode=fe.MODE_DRAINING)
    approval = fe.ApprovalCertificate(
        approval_id=uuid4().bytes,
        run_id=uuid4().bytes,
        step_key="act",
        slot="s",
        tool="http.request",
        digest=digest(b"x"),
        policy="ab" * 32,
        proposal_version=1,
        expires_ms=1,
        standing=fe.APPROVAL_STANDING_ISSUED,
        signatures=[fe.ApprovalSignature(public_key=bytes(32), signature=bytes(64), approver="r")],
    )
    name = gw.EffectName(run_id=run, step_key="act", slot="s")
    inner = wk.CompleteAttemptsRequest(completions=[wk.Completion(lease_token=lease)])
    beats = wk.HeartbeatAttemptsRequest(worker_id="w", heartbeats=[wk.Heartbeat(run_id=str(uuid4()), attempt_id=attempt)])
    found: list[tuple[str, Message]] = [
        ("InspectEffects", gw.InspectEffectsRequest(effects=[name])),
        ("ResolveEffects", gw.ResolveEffectsRequest(resolutions=[gw.Resolution(effect=name, state="observed", actor="x")])),
        ("ReadBuckets", gw.ReadBucketsRequest()),
        (
            "TakeSlices",
            gw.TakeSlicesRequest(
                asks=[gw.SliceAsk(gate=gate, slices=[gw.Slice(delegation=digest(b"d"), micros=5, sequence=1)])]
            ),
        ),
        ("ReadEnvelopes", gw.ReadEnvelopesRequest(run_ids=[run])),
        ("GetSigningKeys", sc.GetSigningKeysRequest(key_ids=[b"x" * 8])),
        ("GetWaits", rd.GetWaitsRequest(run_ids=[run])),
        ("ExplainSteps", rd.ExplainStepsRequest(run_id=run, step_key="act", page_size=2, after=1)),
        ("ExplainSteps", rd.ExplainStepsRequest(run_id=run)),
        ("ExplainTickets", sc.ExplainTicketsRequest(run_id=run, step_keys=["act"])),
        ("ExplainTickets", sc.ExplainTicketsRequest(run_id=run)),
        ("ReadArtifact", cp.ReadArtifactRequest(run_id=run, digest=digest(b"x"))),
        ("ResolveCallers", la.ResolveCallersRequest(key_digests=[digest(b"x")])),
        ("GetVersions", la.GetVersionsRequest(digests=[digest(b"x")])),
        ("GetOwners", la.GetOwnersRequest(run_ids=[run])),
        ("Forward", sc.ForwardRequest(verb="complete", request=inner.SerializeToString(), tenant="acme", shards=[1])),
        ("Forward", sc.ForwardRequest(verb="heartbeat", request=beats.SerializeToString(), tenant="acme")),
        ("Forward", sc.ForwardRequest(verb="renew", request=b"\xff", tenant="acme", shards=[0, 63])),
        ("Forward", sc.ForwardRequest(verb="deliver", request=b"\x0a\x01x", tenant="acme")),
    ]
    for service in ("launch", "readiness", "scheduler", "gateway", "checkpoint", "reconciler"):
        found.append(("ListStuck", ib.ListStuckRequest(service=service, older_than_ms=1, limit=2)))
        found.append(("Deliver", ib.DeliverRequest(service=service, events=[b"\x08\x01"])))
        found.append(("GetFences", fe.GetFencesRequest(service=service, run_ids=[run])))
    for point in POINTS:
        steps = [] if point == "scheduler" else [step]
        approvals = [approval] if point == "gateway" else []
        request = fe.RaiseFencesRequest(service=point, gates=[gate], steps=steps, scopes=[scope], approvals=approvals)
        found.append(("RaiseFences", request))
    requests: dict[str, list[Message]] = {}
    for method, request in found:
        requests.setdefault(method, []).append(request)
    return requests
