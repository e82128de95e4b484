"""Requests that would pass, one or more for each RPC of the six services, to be spoilt in one place.

Authoritative for nothing. Can go wrong: a new RPC that is missing here; `test_garbage` counts.
"""

from uuid import uuid4

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from runway.checkpoint.v1 import checkpoint_service_pb2 as cp
from runway.common.v1 import common_pb2
from runway.gateway.v1 import bucket_service_pb2 as bu
from runway.gateway.v1 import gateway_service_pb2 as gw
from runway.gateway.v1 import meter_service_pb2 as me
from runway.launch.v1 import admin_service_pb2 as ad
from runway.launch.v1 import approval_service_pb2 as ap
from runway.launch.v1 import key_service_pb2 as ke
from runway.launch.v1 import launch_service_pb2 as la
from runway.launch.v1 import project_service_pb2 as pr
from runway.launch.v1 import scope_service_pb2 as so
from runway.launch.v1 import tree_service_pb2 as tr
from runway.launch.v1 import workflow_pb2 as wf
from runway.readiness.v1 import readiness_service_pb2 as rd
from runway.reconciler.v1 import reconciler_service_pb2 as rc
from runway.scheduler.v1 import control_service_pb2 as ct
from runway.scheduler.v1 import scheduler_service_pb2 as sc
from runway.scheduler.v1 import share_service_pb2 as sh
from runway.scheduler.v1 import worker_service_pb2 as wk
from runway_sdk.values import to_value

from libs.kernel.ids import digest

SPEC = wf.WorkflowSpec(
    name="work", build="1", steps=[wf.StepSpec(key="act", tools=["http.request"], checkpoints=True, models=["m"])]
)

NOBODYS = "01900000-0000-7000-8000-000000000001"
"""A run that is not there: forks of one that is would queue a run for every mutation that is still a request."""


def good_requests(lease: wk.Lease, other_run: str) -> dict[str, list[Message]]:
    """Requests that would pass, by method, to be spoilt in one place."""
    bucket = bu.BucketName(kind=bu.BUCKET_KIND_TOOL, name="http.request", unit=bu.BUCKET_UNIT_CALLS)
    run, token, attempt = lease.run_id, lease.lease_token, lease.attempt_id
    launch = la.LaunchRunRequest(
        request_id="r", workflow="work", input=to_value({"a": [1, "x"]}, "input"), labels={"a": "b"}, priority=1
    )
    launch.budget.CopyFrom(common_pb2.Budget(micros=1, tokens=1))
    launch.deadline.FromSeconds(60)
    spec = wf.WorkflowSpec()
    spec.CopyFrom(SPEC)
    spec.steps[0].retry.SetInParent()
    spec.steps[0].retry.initial_backoff.FromSeconds(1)
    spec.steps[0].timeout.FromSeconds(5)
    spec.steps[0].input_schema.update({"type": "object", "properties": {"a": {"type": "integer"}}})
    spec.steps[0].approvals.add(tools=["*"], need=2, eligible=["r"], above_micros=1).expires_in.FromSeconds(60)
    spec.steps.add(key="then", needs=[wf.Need(step="act")])
    chunk = cp.Chunk(digest=digest(b"x"), data=b"x")
    completion = wk.Completion(lease_token=token, failure=common_pb2.Failure(failure_class="nonsense", message="m", type="t"))
    command = wk.CommandItem(slot="s", type=wk.COMMAND_TYPE_WAIT, payload=to_value({"a": 1}, "payload"))
    tool = gw.InvokeToolRequest(slot="s", tool="http.request", arguments=to_value({"target": "t", "method": "GET"}, "a"))
    found: list[tuple[str, Message]] = [
        ("LaunchRun", launch),
        ("LaunchRuns", la.LaunchRunsRequest(launches=[launch, launch])),
        ("PublishWorkflowVersion", la.PublishWorkflowVersionRequest(spec=spec)),
        ("GetWorkflowVersion", la.GetWorkflowVersionRequest(workflow="work@1")),
        ("ListRuns", la.ListRunsRequest(states=[la.RUN_STATE_RUNNING], workflow="work", page_size=5, page_token="x")),
        (
            "ForkRun",
            la.ForkRunRequest(run_id=NOBODYS, request_id="again", from_steps=["work"], reason="r", labels={"a": "b"}),
        ),
        ("PauseRun", la.PauseRunRequest(run_id=other_run, reason="r", expected_version=1)),
        ("ResumeRun", la.ResumeRunRequest(run_id=other_run, reason="r", expected_version=1)),
        (
            "RevokeCapabilities",
            la.RevokeCapabilitiesRequest(
                run_id=other_run, capabilities=["tool:http.request"], reason="r", request_id="taken", expected_version=1
            ),
        ),
        ("CancelRun", la.CancelRunRequest(run_id=other_run, reason="r", expected_version=1)),
        ("GetRun", la.GetRunRequest(run_id=run)),
        ("WatchRun", la.WatchRunRequest(run_id=run, after_sequence=1)),
        ("WaitRun", la.WaitRunRequest(run_id=run, until=la.WAIT_UNTIL_DECIDED)),
        ("WaitRuns", la.WaitRunsRequest(run_ids=[run, other_run], until=la.WAIT_UNTIL_SETTLED)),
        ("ListRunEvents", la.ListRunEventsRequest(run_id=run, after_sequence=1, page_size=3)),
        ("ExplainRun", la.ExplainRunRequest(run_id=run, step_key="act", page_size=2, page_token="1")),
        ("ExplainRun", la.ExplainRunRequest(run_id=run)),
        ("ListSteps", rd.ListStepsRequest(run_id=run, page_size=2, page_token="act")),
        ("ListSteps", rd.ListStepsRequest(run_id=run, page_size=2, page_token="9" * 190)),
        (
            "SignalEvent",
            rd.SignalEventRequest(run_id=run, name="e", correlation="c", event_id="i", payload=to_value({"a": 1}, "p")),
        ),
        ("SignalEvent", rd.SignalEventRequest(name="e", correlation="c", project="p")),
        ("SubmitInput", rd.SubmitInputRequest(run_id=run, step_key="act", slot="s", answer=to_value({"a": 1}, "answer"))),
        ("ListInputs", rd.ListInputsRequest(run_id=run, page_size=2, page_token=f"{'0' * 32}:3:acts")),
        ("ListInputs", rd.ListInputsRequest(page_size=2, page_token=f"{'f' * 32}:3:acts")),
        ("ListAttempts", sc.ListAttemptsRequest(run_id=run, page_size=2, page_token="act")),
        ("ListAttempts", sc.ListAttemptsRequest(run_id=run, page_size=2, page_token=f"{'9' * 19}:{'0' * 32}")),
        ("ListAttempts", sc.ListAttemptsRequest(run_id=run, page_size=2, page_token=f"{'9' * 150}:{'0' * 32}")),
        ("ListWorkers", sc.ListWorkersRequest(page_size=2, page_token="w")),
        ("ClaimAttempts", wk.ClaimAttemptsRequest(claim_id=attempt, worker_id="w", slots=1, handlers=["other.act@1"])),
        (
            "HeartbeatAttempts",
            wk.HeartbeatAttemptsRequest(
                worker_id="w", heartbeats=[wk.Heartbeat(run_id=run, attempt_id=attempt, lease_epoch=1, step_key="act")]
            ),
        ),
        ("CompleteAttempts", wk.CompleteAttemptsRequest(completions=[completion])),
        (
            "RecordCommands",
            wk.RecordCommandsRequest(attempts=[wk.AttemptCommands(lease_token=token, commands=[command])]),
        ),
        ("RenewLeases", wk.RenewLeasesRequest(renewals=[wk.Renewal(lease_token=token, refused_epoch=1)])),
        ("InvokeTool", tool),
        ("Generate", gw.GenerateRequest(slot="s", model="m", body=to_value({"messages": []}, "body"))),
        ("WaitEffect", gw.WaitEffectRequest(slot="s")),
        ("ListEffects", gw.ListEffectsRequest(run_id=run, page_size=2, page_token="1")),
        ("PutChunks", cp.PutChunksRequest(chunks=[chunk])),
        ("FindMissingChunks", cp.FindMissingChunksRequest(digests=[digest(b"x")])),
        (
            "CommitCheckpoint",
            cp.CommitCheckpointRequest(
                boundary_sequence=1, boundary="b", chunk_digests=[digest(b"absent")], size_bytes=1, versions={"a": "b"}
            ),
        ),
        ("ListCheckpoints", cp.ListCheckpointsRequest(run_id=run, page_size=2, page_token="1")),
        ("ListArtifacts", cp.ListArtifactsRequest(run_id=run, page_size=2, page_token="1")),
        ("GetArtifact", cp.GetArtifactRequest(run_id=run, digest="a" * 64)),
        (
            "PutArtifact",
            cp.PutArtifactRequest(
                header=cp.ArtifactHeader(name="n", media_type="text/plain", digest=digest(b"y"), size_bytes=3)
            ),
        ),
        ("StopScope", so.StopScopeRequest(kind=1, name="stranger", mode=1, reason="r", actor="me", unseen=True)),
        ("ReleaseScope", so.ReleaseScopeRequest(kind=1, name="stranger", reason="r", actor="me", expected_epoch=9)),
        ("ListScopes", so.ListScopesRequest(released=True, page_size=2, page_token="tenant\na")),
        ("ListScopeChanges", so.ListScopeChangesRequest(page_size=2, before=9)),
        ("ListApprovals", ap.ListApprovalsRequest(run_id=run, states=[1, 2], page_size=2, page_token=str(uuid4()))),
        ("ListApprovals", ap.ListApprovalsRequest(project="p")),
        ("GetApproval", ap.GetApprovalRequest(approval_id=str(uuid4()))),
        (
            "DecideApproval",
            ap.DecideApprovalRequest(approval_id=str(uuid4()), decision=1, key_id="k", signature=bytes(64), reason="r"),
        ),
        ("WithdrawApproval", ap.WithdrawApprovalRequest(approval_id=str(uuid4()), reason="r")),
        ("RegisterApproverKey", ap.RegisterApproverKeyRequest(public_key=bytes(32))),
        ("ListApproverKeys", ap.ListApproverKeysRequest(page_size=2, page_token="a")),
        ("RevokeApproverKey", ap.RevokeApproverKeyRequest(key_id="k")),
        ("PutTenant", ad.PutTenantRequest(tenant="stranger", limit_micros=10**12, max_active_runs=1000)),
        ("ListChildren", tr.ListChildrenRequest(run_id=run, step_key="act", group="g", page_size=2, page_token=run)),
        ("GetTree", tr.GetTreeRequest(run_id=run, page_size=2, page_token=run)),
        ("RaiseBudget", tr.RaiseBudgetRequest(request_id="r", run_id=run, micros=5, reason="r", expected_version=99)),
        ("GetTenantBudget", tr.GetTenantBudgetRequest()),
        ("GetTenant", ad.GetTenantRequest(tenant="stranger")),
        ("CreateApiKey", ad.CreateApiKeyRequest(tenant="stranger", project="p", scopes=["worker"], name="n")),
        ("RevokeApiKey", ad.RevokeApiKeyRequest(key_id=str(uuid4()))),
        ("CreateKey", ke.CreateKeyRequest(roles=["auditor"], project="p", name="n", lasts=Duration(seconds=60))),
        ("ListKeys", ke.ListKeysRequest(ended=True, page_size=2, page_token=str(uuid4()))),
        ("RevokeKey", ke.RevokeKeyRequest(key_id=str(uuid4()))),
        ("CreateProject", pr.CreateProjectRequest(project="p")),
        ("ListProjects", pr.ListProjectsRequest(page_size=2, page_token="p")),
        ("SuspendProject", pr.SuspendProjectRequest(project="p", reason="r", expected_version=1)),
        ("ResumeProject", pr.ResumeProjectRequest(project="p", expected_version=1)),
        ("ListWorkflowVersions", la.ListWorkflowVersionsRequest(name="work", page_size=2, page_token="1")),
        ("ListShards", sc.ListShardsRequest()),
        (
            "PutHold",
            ct.PutHoldRequest(
                kind=ct.HOLD_KIND_QUEUE, name="no.one@1", mode=ct.HOLD_MODE_HOLD, reason="r", actor="me", unseen=True
            ),
        ),
        ("ReleaseHold", ct.ReleaseHoldRequest(kind=ct.HOLD_KIND_QUEUE, name="no.one@1", reason="r", actor="me")),
        ("ListHolds", ct.ListHoldsRequest(kind=ct.HOLD_KIND_QUEUE, released=True, page_size=2, page_token="9")),
        ("ResetShards", ct.ResetShardsRequest(reason="r", actor="me")),
        ("DrainShards", ct.DrainShardsRequest(shards=[1, 2], to="nobody", reason="r", actor="me")),
        ("ReturnShards", ct.ReturnShardsRequest(shards=[1], reason="r", actor="me")),
        ("ListQueues", ct.ListQueuesRequest(name="acme/p", page_size=2, page_token="a\nb\nc")),
        ("ExportTickets", ct.ExportTicketsRequest(tenant="acme", page_size=2, page_token=f"{'0' * 32}:act")),
        ("ExportTickets", ct.ExportTicketsRequest(page_token=f"{'f' * 32}:")),
        ("GetShares", sh.GetSharesRequest()),
        (
            "PutShare",
            sh.PutShareRequest(tenant="stranger", weight=3, most_leases=9, expected_version=0, actor="me", reason="r"),
        ),
        ("PutSharePolicy", sh.PutSharePolicyRequest(policy=sh.SharePolicy(reserve_permille=1), actor="me", reason="r")),
        ("ListShareChanges", sh.ListShareChangesRequest(page_size=2, before_version=9)),
        ("ListBuckets", bu.ListBucketsRequest()),
        ("PutBucket", bu.PutBucketRequest(name=bucket, capacity=9, per_minute=9, actor="me", reason="r")),
        ("RemoveBucket", bu.RemoveBucketRequest(name=bucket, expected_version=1, actor="me", reason="r")),
        ("PutBucketWeight", bu.PutBucketWeightRequest(name=bucket, tenant="a", weight=2, actor="me", reason="r")),
        ("ListBucketChanges", bu.ListBucketChangesRequest(page_size=2, before_version=9)),
        ("ListMeterEvents", me.ListMeterEventsRequest(run_id=run, page_size=2, page_token="1")),
        ("ListTools", gw.ListToolsRequest()),
        ("RestoreCheckpoint", cp.RestoreCheckpointRequest()),
        ("ListCases", rc.ListCasesRequest(run_id=run, page_size=2, page_token="1")),
        ("ResolveCase", rc.ResolveCaseRequest(case_id=str(uuid4()), state=rc.CASE_STATE_OBSERVED, reason="r")),
        ("ListStuckWork", rc.ListStuckWorkRequest(older_than_ms=1)),
    ]
    requests: dict[str, list[Message]] = {}
    for name, request in found:
        requests.setdefault(name, []).append(request)
    return requests
