"""Launching over real gRPC: once, pinned, denied, typed refusals."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from google.protobuf import struct_pb2
from runway.common.v1 import common_pb2
from runway.launch.v1 import admin_service_pb2, admin_service_pb2_grpc, workflow_pb2
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk import Client, InvalidRequest, NotFound, RequestIdReused, Retry, Target, Unauthenticated, step, workflow
from runway_sdk.values import to_value

from libs.runtime.host import Host
from libs.testkit.fixtures import StackDatabase
from libs.testkit.hosts import Peer, make_key, running_host, service_channel


@step
async def only(run: dict[str, int]) -> int:
    return run["x"]


SIMPLE = workflow("simple", steps=[only])


@dataclass
class Bench:
    host: Host
    client: Client
    readiness: Peer
    points: dict[str, Peer]


@pytest.fixture
async def bench(stack_db: StackDatabase) -> AsyncIterator[Bench]:
    urls = await stack_db(["launch"])
    readiness = Peer("readiness")
    points = {name: Peer(name) for name in ("scheduler", "gateway", "checkpoint")}
    async with running_host(["launch"], urls, peers=[readiness, *points.values()]) as host:
        key = await make_key(host)
        async with Client(Target(host.addresses.public, key)) as client:
            await client.publish(SIMPLE)
            yield Bench(host, client, readiness, points)


def ask(request_id: str = "", **changes: object) -> pb.LaunchRunRequest:
    return pb.LaunchRunRequest(request_id=request_id, workflow="simple", input=to_value({"x": 1}), **changes)  # type: ignore[arg-type]


@pytest.mark.requirement("launch.once")
async def test_the_same_request_id_is_one_run_under_concurrency(bench: Bench) -> None:
    results = await asyncio.gather(*(bench.client.launch_many([ask("one")] * 5) for _ in range(20)))
    runs = {result.run.run_id for batch in results for result in batch}
    assert len(runs) == 1
    assert sum(not result.replayed for batch in results for result in batch) == 1
    launched = await bench.readiness.wait_for("run_launched")
    assert len(launched) == 1
    async with service_channel(bench.host) as channel:
        admin = admin_service_pb2_grpc.AdminServiceStub(channel)
        tenant = (await admin.GetTenant(admin_service_pb2.GetTenantRequest(tenant="acme"))).tenant
    assert (tenant.active_runs, tenant.reserved_micros) == (1, 1_000_000)


@pytest.mark.requirement("launch.once")
async def test_another_request_under_the_id_is_refused_with_its_digest(bench: Bench) -> None:
    first = await bench.client.launch("simple", {"x": 1}, request_id="two")
    with pytest.raises(RequestIdReused) as refused:
        await bench.client.launch("simple", {"x": 2}, request_id="two")
    assert refused.value.detail["run_id"] == first.run_id
    assert len(refused.value.detail["digest"]) == 64


@pytest.mark.requirement("wf.pin")
async def test_a_run_pins_version_digest_and_build(bench: Bench) -> None:
    before = await bench.client.launch("simple", {"x": 1})
    published = await bench.client.publish(workflow("simple", build="2", steps=[only]))
    after = await bench.client.launch("simple", {"x": 1})
    assert (before.workflow.number, before.workflow.build) == (1, "1")
    assert (after.workflow.number, after.workflow.build) == (2, "2")
    assert after.workflow.digest == published.version.digest
    assert (await bench.client.get(before.run_id)).workflow == before.workflow
    by_number = await bench.client.launch("simple@1", {"x": 1})
    assert by_number.workflow.digest == before.workflow.digest


@pytest.mark.requirement("launch.denied")
async def test_a_budget_that_does_not_fit_is_a_stored_denied_run(bench: Bench) -> None:
    key = await make_key(bench.host, tenant="poor", limit_micros=100, max_active_runs=1)
    async with Client(Target(bench.host.addresses.public, key)) as poor:
        await poor.publish(SIMPLE)
        denied = await poor.launch("simple", {"x": 1}, budget_micros=101, request_id="too-much")
        assert denied.state == pb.RUN_STATE_DENIED
        assert denied.failure.type == "BUDGET_EXHAUSTED"
        assert "new request_id" in denied.failure.message
        again = await poor.launch("simple", {"x": 1}, budget_micros=101, request_id="too-much")
        assert again.run_id == denied.run_id
        fits = await poor.launch("simple", {"x": 1}, budget_micros=100)
        assert fits.state == pb.RUN_STATE_ACCEPTED
        crowded = await poor.launch("simple", {"x": 1}, budget_micros=0)
        assert crowded.failure.type == "QUOTA_EXCEEDED"
    launched = await bench.readiness.wait_for("run_launched")
    assert [event.run_launched.tenant for event in launched] == ["poor"]


@pytest.mark.requirement("launch.after-commit")
async def test_what_was_answered_is_told_to_readiness(bench: Bench) -> None:
    run = await bench.client.launch("simple", {"x": 7})
    (event,) = await bench.readiness.wait_for("run_launched")
    fact = event.run_launched
    assert fact.run_id.hex() == run.run_id.replace("-", "")
    assert struct_pb2.Value.FromString(fact.input).struct_value.fields["x"].number_value == 7
    assert (fact.tenant, fact.build, fact.epoch) == ("acme", "1", run.epoch)


@pytest.mark.requirement("wf.validate")
async def test_every_violation_is_listed(bench: Bench) -> None:
    spec = workflow_pb2.WorkflowSpec(name="Bad Name", build="1", output_step="nowhere")
    spec.steps.add(key="a", needs=[workflow_pb2.Need(step="b")])
    spec.steps.add(key="b", needs=[workflow_pb2.Need(step="a"), workflow_pb2.Need(step="ghost")])
    spec.steps.add(key="b")
    stub = bench.client._launch
    with pytest.raises(InvalidRequest) as refused:
        await bench.client._call(stub.PublishWorkflowVersion, pb.PublishWorkflowVersionRequest(spec=spec))
    assert refused.value.reason == "WORKFLOW_INVALID"
    fields = {field for field, _ in refused.value.violations}
    assert {"spec.name", "spec.output_step", "spec.steps[1].needs[1].step", "spec.steps[2].key"} <= fields


@pytest.mark.requirement("wf.validate")
async def test_a_cycle_and_a_bad_schema_are_refused_and_nothing_is_stored(bench: Bench) -> None:
    spec = workflow_pb2.WorkflowSpec(name="loop", build="1")
    spec.steps.add(key="a", needs=[workflow_pb2.Need(step="b")])
    spec.steps.add(key="b", needs=[workflow_pb2.Need(step="a")])
    spec.input_schema.update({"type": "no-such-type"})
    with pytest.raises(InvalidRequest) as refused:
        await bench.client._call(bench.client._launch.PublishWorkflowVersion, pb.PublishWorkflowVersionRequest(spec=spec))
    texts = dict(refused.value.violations)
    assert "cycle" in texts["spec.steps"]
    assert "JSON Schema" in texts["spec.input_schema"]
    assert [version.name for version in await bench.client.versions()] == ["simple"]


@pytest.mark.requirement("wf.validate")
async def test_equal_content_is_one_version_and_validate_only_stores_nothing(bench: Bench) -> None:
    again = await bench.client.publish(SIMPLE)
    assert (again.created, again.version.number) == (False, 1)
    other = workflow("other", steps=[only])
    checked = await bench.client.publish(other, validate_only=True)
    assert checked.version.number == 0
    with pytest.raises(NotFound):
        await bench.client.launch("other", {"x": 1})


@pytest.mark.requirement("wf.validate")
async def test_an_input_that_does_not_fit_names_the_place(bench: Bench) -> None:
    typed = workflow("typed", steps=[only], input=dict[str, int])
    await bench.client.publish(typed)
    with pytest.raises(InvalidRequest) as refused:
        await bench.client.launch("typed", {"x": "seven"})
    assert refused.value.field == "input.x"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"priority": 5000}, "priority"),
        ({"workflow": ""}, "workflow"),
        ({"workflow": "x" * 5000}, "workflow"),
        ({"budget": common_pb2.Budget(micros=-1)}, "budget.micros"),
        ({"project": "'; DROP TABLE run; --"}, "project"),
        ({"input": struct_pb2.Value(number_value=float(2**60))}, "input"),
        ({"labels": {"k": "v" * 300}}, "labels"),
        ({"input": struct_pb2.Value(string_value="x" * 1_100_000)}, "input"),
    ],
)
async def test_bad_fields_are_named_and_nothing_is_stored(bench: Bench, changes: dict[str, object], field: str) -> None:
    request = pb.LaunchRunRequest(workflow="simple", input=to_value({"x": 1}))
    request.MergeFrom(pb.LaunchRunRequest(**{key: value for key, value in changes.items() if value != ""}))  # type: ignore[arg-type]
    if changes.get("workflow") == "":
        request.ClearField("workflow")
    with pytest.raises(InvalidRequest) as refused:
        await bench.client._call(bench.client._launch.LaunchRun, request)
    assert refused.value.field == field
    assert refused.value.remedy or refused.value.violations
    assert not (await bench.client.list_runs()).runs
    assert (await bench.client.launch("simple", {"x": 1})).state == pb.RUN_STATE_ACCEPTED


async def test_other_tenants_and_other_keys_see_nothing(bench: Bench) -> None:
    run = await bench.client.launch("simple", {"x": 1})
    key = await make_key(bench.host, tenant="rival")
    async with Client(Target(bench.host.addresses.public, key)) as rival:
        for call in (rival.get(run.run_id), rival.cancel(run.run_id), rival.events(run.run_id), rival.wait(run.run_id)):
            with pytest.raises(NotFound):
                await call
        assert not (await rival.list_runs()).runs
    async with Client(Target(bench.host.addresses.public, "rk_forged")) as stranger:
        with pytest.raises(Unauthenticated):
            await stranger.get(run.run_id)


async def test_retries_of_a_step_are_kept_in_the_version(bench: Bench) -> None:
    @step(retry=Retry(max_attempts=7))
    async def often(run: dict[str, int]) -> int:
        return 1

    version = (await bench.client.publish(workflow("often", steps=[often]))).version
    assert version.spec.steps[0].retry.max_attempts == 7
    assert version.spec.steps[0].handler == "often"


async def test_a_repeat_is_the_same_run_after_a_newer_version_that_would_refuse_it(bench: Bench) -> None:
    first = await bench.client.launch("simple", {"x": 1}, request_id="early")
    await bench.client.publish(workflow("simple", steps=[only], input=dict[str, str]))
    assert (await bench.client.launch("simple", {"x": 1}, request_id="early")).run_id == first.run_id
    with pytest.raises(InvalidRequest):
        await bench.client.launch("simple", {"x": 2}, request_id="early")


async def test_a_request_id_does_not_reach_into_another_project(bench: Bench) -> None:
    answers: list[object] = []
    for project in ("one", "two"):
        key = await make_key(bench.host, project=project)
        async with Client(Target(bench.host.addresses.public, key)) as client:
            await client.publish(SIMPLE)
            answers += await asyncio.gather(client.launch("simple", {"x": 1}, request_id="shared"), return_exceptions=True)
    made, refused = answers
    assert isinstance(made, pb.Run)
    assert made.project == "one"
    assert isinstance(refused, RequestIdReused)
