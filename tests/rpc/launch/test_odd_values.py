"""Odd values over real gRPC: each gets a typed refusal or a plain answer, and the next call is fine. Never INTERNAL."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf import json_format, struct_pb2
from google.protobuf.duration_pb2 import Duration
from runway.common.v1 import common_pb2
from runway.launch.v1 import launch_service_pb2 as pb
from runway.launch.v1 import workflow_pb2
from runway.readiness.v1 import readiness_service_pb2 as rd
from runway_sdk import Client, Target, step, workflow
from runway_sdk.errors import RunwayError
from runway_sdk.values import to_value

from libs.testkit.fixtures import StackDatabase
from libs.testkit.hosts import Peer, make_key, running_host

UNKNOWN_RUN = "00000000-0000-7000-8000-000000000000"


@step
async def only(run: dict[str, int]) -> int:
    return run["x"]


@pytest.fixture
async def client(stack_db: StackDatabase) -> AsyncIterator[Client]:
    urls = await stack_db(["launch", "readiness"])
    peers = [Peer(name) for name in ("scheduler", "gateway", "checkpoint")]
    async with running_host(["launch", "readiness"], urls, peers=peers) as host:
        client = Client(Target(host.addresses.public, await make_key(host), host.addresses.control))
        async with client:
            await client.publish(workflow("simple", steps=[only]))
            yield client


def launch(**fields: object) -> pb.LaunchRunRequest:
    return pb.LaunchRunRequest(**{"workflow": "simple", "input": to_value({"x": 1}), **fields})  # type: ignore[arg-type]


def spec(**fields: object) -> workflow_pb2.WorkflowSpec:
    found = workflow_pb2.WorkflowSpec(name="odd", build="1")
    if "steps" not in fields:
        found.steps.add(key="a")
    found.MergeFrom(workflow_pb2.WorkflowSpec(**fields))  # type: ignore[arg-type]
    return found


def step_of(**fields: object) -> workflow_pb2.WorkflowSpec:
    return spec(steps=[workflow_pb2.StepSpec(**{"key": "a", **fields})])  # type: ignore[arg-type]


def schema(**fields: Any) -> struct_pb2.Struct:
    found = struct_pb2.Struct()
    found.update(fields)
    return found


def deep(levels: int) -> struct_pb2.Value:
    data: Any = 1
    for _ in range(levels):
        data = {"a": data}
    return json_format.ParseDict(data, struct_pb2.Value())


NAN = struct_pb2.Struct(fields={"minimum": struct_pb2.Value(number_value=float("nan"))})
NO_KIND = struct_pb2.Struct(fields={"minimum": struct_pb2.Value()})
LONG = Duration(seconds=315_576_000_000)

SPECS = {
    "empty": workflow_pb2.WorkflowSpec(),
    "newline name": spec(name="odd\n"),
    "nul name": spec(name="od\0d"),
    "newline key": step_of(key="a\n"),
    "newline build": spec(build="1\n"),
    "newline tool": step_of(tools=["x\n"]),
    "no amount": step_of(resources={"gpu": 0}),
    "negative amount": step_of(resources={"gpu": -1}),
    "huge amount": step_of(resources={"gpu": 2**62}),
    "newline resource": step_of(resources={"gpu\n": 1}),
    "empty resource": step_of(resources={"": 1}),
    "largest amounts": step_of(resources={str(n): 2**53 for n in range(16)}),
    "many resources": step_of(resources={str(n): 1 for n in range(17)}),
    "nul description": spec(description="\0"),
    "nan multiplier": step_of(retry=workflow_pb2.RetryPolicy(multiplier=float("nan"))),
    "inf multiplier": step_of(retry=workflow_pb2.RetryPolicy(multiplier=float("inf"))),
    "long backoff": step_of(retry=workflow_pb2.RetryPolicy(initial_backoff=LONG, max_backoff=LONG)),
    "longest backoff": step_of(retry=workflow_pb2.RetryPolicy(initial_backoff=Duration(seconds=2**63 - 1))),
    "negative backoff": step_of(retry=workflow_pb2.RetryPolicy(initial_backoff=Duration(seconds=-1))),
    "negative nanos": step_of(timeout=Duration(nanos=-1)),
    "odd nanos": step_of(timeout=Duration(seconds=1, nanos=2_000_000_000)),
    "long timeout": step_of(timeout=Duration(seconds=2**63 - 1)),
    "nan schema": spec(input_schema=NAN),
    "no kind schema": spec(input_schema=NO_KIND),
    "nan step schema": step_of(output_schema=NAN),
    "bad pattern": spec(input_schema=schema(type="object", properties={"x": {"type": "string", "pattern": "("}})),
    "odd ref": spec(input_schema=schema(**{"$ref": "#/nowhere"})),
    "anchor ref": spec(input_schema=schema(**{"$ref": "#nowhere"})),
    "dynamic ref": spec(input_schema=schema(**{"$dynamicRef": "http://127.0.0.1:1/x"})),
    "loop ref": spec(input_schema=schema(**{"$ref": "#"})),
    "id": spec(input_schema=schema(**{"$id": "http://[", "$ref": "#"})),
    "deep schema": spec(input_schema=deep(30).struct_value),
    "surrogate": spec(description="\U0010ffff"),
}


async def refusal_of(client: Client, method: Any, request: Any) -> str:
    """Its reason; empty where the call was taken."""
    try:
        await client._call(method, request)
    except RunwayError as refused:
        return refused.reason
    return ""


async def plain_answer(client: Client, method: Any, request: Any) -> None:
    assert await refusal_of(client, method, request) in ("", "INVALID_FIELD", "NOT_FOUND")


@pytest.mark.parametrize("name", SPECS)
async def test_an_odd_spec_is_refused_with_its_field_or_serves(client: Client, name: str) -> None:
    request = pb.PublishWorkflowVersionRequest(spec=SPECS[name])
    reason = await refusal_of(client, client._launch.PublishWorkflowVersion, request)
    assert (reason != "") == (name not in TAKEN), reason
    assert reason in ("", "WORKFLOW_INVALID", "INVALID_FIELD")
    if not reason:
        for data in ("y", {"x": "y"}, 1):
            await plain_answer(client, client._launch.LaunchRun, launch(workflow="odd", input=to_value(data)))
        await plain_answer(client, client._launch.GetWorkflowVersion, pb.GetWorkflowVersionRequest(workflow="odd"))
    await client.launch("simple", {"x": 1})


TAKEN = {"largest amounts", "odd nanos", "odd ref", "anchor ref", "loop ref", "id", "surrogate"}

LAUNCHES = {
    "nul request id": launch(request_id="\0"),
    "nul workflow": launch(workflow="a\0b"),
    "nul pinned": launch(workflow="a\0b@1"),
    "newline digest": launch(workflow="0" * 64 + "\n"),
    "nul project": launch(project="a\0b"),
    "newline project": launch(project="a\n"),
    "nul label": launch(labels={"a\0": "b\0"}),
    "many labels": launch(labels={str(n): "v" for n in range(33)}),
    "nul input": launch(input=to_value("\0")),
    "nan": launch(input=struct_pb2.Value(number_value=float("nan"))),
    "no kind": launch(input=struct_pb2.Value()),
    "deep": launch(input=deep(31)),
    "deeper": launch(input=deep(33)),
    "negative deadline": launch(deadline=Duration(seconds=-1)),
    "negative nanos": launch(deadline=Duration(nanos=-1)),
    "long deadline": launch(deadline=Duration(seconds=2**63 - 1)),
    "class": launch(run_class=100_000),
    "budget": launch(budget=common_pb2.Budget(micros=2**63 - 1, tokens=2**63 - 1)),
    "negative": launch(budget=common_pb2.Budget(tokens=-1)),
}


@pytest.mark.parametrize("name", LAUNCHES)
async def test_an_odd_launch_has_a_plain_answer(client: Client, name: str) -> None:
    await plain_answer(client, client._launch.LaunchRun, LAUNCHES[name])
    await plain_answer(client, client._launch.LaunchRuns, pb.LaunchRunsRequest(launches=[LAUNCHES[name], launch()]))
    await client.launch("simple", {"x": 1})


READS = {
    "nul name": ("ListWorkflowVersions", pb.ListWorkflowVersionsRequest(name="\0")),
    "token": ("ListWorkflowVersions", pb.ListWorkflowVersionsRequest(page_token="a\0@1")),
    "token digits": ("ListWorkflowVersions", pb.ListWorkflowVersionsRequest(page_token="a@²")),
    "token big": ("ListWorkflowVersions", pb.ListWorkflowVersionsRequest(page_token="a@999999999")),
    "version": ("GetWorkflowVersion", pb.GetWorkflowVersionRequest(workflow="\0")),
    "number": ("GetWorkflowVersion", pb.GetWorkflowVersionRequest(workflow="a@٣")),
    "states": ("ListRuns", pb.ListRunsRequest(states=[100_000])),  # type: ignore[list-item]
    "negative states": ("ListRuns", pb.ListRunsRequest(states=[-1])),  # type: ignore[list-item]
    "runs token": ("ListRuns", pb.ListRunsRequest(page_token="garbage\0")),
    "runs workflow": ("ListRuns", pb.ListRunsRequest(workflow="\0")),
    "runs project": ("ListRuns", pb.ListRunsRequest(project="\0")),
    "get": ("GetRun", pb.GetRunRequest(run_id="\0")),
    "cancel": ("CancelRun", pb.CancelRunRequest(run_id=UNKNOWN_RUN, reason="\0")),
    "wait": ("WaitRun", pb.WaitRunRequest(run_id=UNKNOWN_RUN, timeout=Duration(nanos=-1))),
    "wait long": ("WaitRun", pb.WaitRunRequest(run_id=UNKNOWN_RUN, timeout=Duration(seconds=2**63 - 1))),
    "events": ("ListRunEvents", pb.ListRunEventsRequest(run_id=UNKNOWN_RUN, after_sequence=2**63 - 1)),
}


@pytest.mark.parametrize("name", READS)
async def test_an_odd_read_has_a_plain_answer(client: Client, name: str) -> None:
    method, request = READS[name]
    stub = client._launch_control if method == "CancelRun" else client._launch
    await plain_answer(client, getattr(stub, method), request)
    await client.launch("simple", {"x": 1})


async def test_odd_questions_about_a_run_have_plain_answers(client: Client) -> None:
    run = await client.launch("simple", {"x": 1})
    await plain_answer(client, client._launch.WaitRun, pb.WaitRunRequest(run_id=run.run_id, timeout=Duration(nanos=-1)))
    await plain_answer(
        client, client._launch.ListRunEvents, pb.ListRunEventsRequest(run_id=run.run_id, after_sequence=2**63 - 1)
    )
    await plain_answer(client, client._launch_control.CancelRun, pb.CancelRunRequest(run_id=run.run_id, reason="\0"))
    await plain_answer(client, client._launch.ListRunEvents, pb.ListRunEventsRequest(run_id=run.run_id))
    for token in ("9" * 200, "²", "-1", "\0", "٣"):
        await plain_answer(client, client._readiness.ListSteps, rd.ListStepsRequest(run_id=run.run_id, page_token=token))
