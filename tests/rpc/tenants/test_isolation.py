"""Another tenant's thing is NOT_FOUND, in every method of every public service that takes an id, streams and lists included.

The methods come from the contracts, the requests from `plausible.py`, so that a new one is asked too.
"""

from typing import Any

import pytest
from google.protobuf.message import Message
from runway.common.v1 import policy_pb2
from runway.launch.v1 import launch_service_pb2 as la
from runway_sdk import Client, Target

from tests.rpc.plausible import good_requests
from tests.rpc.test_garbage import SPEC, Target6, item_errors, methods, send

IDS = ("run_id", "run_ids", "case_id", "approval_id", "key_id")


def ids_in(message: Message) -> list[str]:
    return [field.name for field in message.DESCRIPTOR.fields if field.name in IDS]


def shown(message: Any) -> str:
    return str(message)


@pytest.mark.requirement("sec.tenant")
async def test_another_tenants_things_are_not_found_anywhere(six: Target6) -> None:
    good = good_requests(six.lease, six.lease.run_id)
    asked, wrong = set(), []
    for path, method in methods():
        fence = method.GetOptions().Extensions[policy_pb2.fence]
        if fence in (policy_pb2.FENCE_SERVICE, policy_pb2.FENCE_OPEN, policy_pb2.FENCE_LEASE, policy_pb2.FENCE_WORKER):
            continue
        for request in good[method.name]:
            named = [name for name in ids_in(request) if getattr(request, name)]
            if not named:
                continue
            asked.add(method.name)
            if method.name == "ResolveCase":
                request.reason = "because"
            if "page_token" in request.DESCRIPTOR.fields_by_name:
                request.ClearField("page_token")
            metadata = [("authorization", f"Bearer {six.stranger}")]
            code, answer = await send(six, path, method, request.SerializeToString(), metadata, long_poll_s=10)
            items = code == "OK" and {error.reason for error in item_errors(answer)} == {"NOT_FOUND"}
            told = code == "OK" and not items and six.lease.run_id in shown(answer)
            if told or not (code == "NOT_FOUND" or items):
                wrong.append(f"{method.name} with {named}: {code} {answer}")
    assert not wrong, "\n".join(wrong)
    assert {"GetRun", "WatchRun", "WaitRun", "CancelRun", "PauseRun", "ListSteps", "ListEffects", "ListArtifacts"} <= asked
    assert {"ListAttempts", "GetArtifact", "SignalEvent", "SubmitInput", "ExplainRun", "RevokeKey", "ListRunEvents"} <= asked


@pytest.mark.requirement("sec.tenant")
async def test_another_tenants_workflow_is_not_found_by_name_number_or_digest(six: Target6) -> None:
    (path, method) = next((path, method) for path, method in methods() if method.name == "GetWorkflowVersion")
    spec = type(SPEC)()
    spec.CopyFrom(SPEC)
    spec.name = "secret"

    async def ask(key: str, workflow: str, project: str) -> tuple[str, Any]:
        request = la.GetWorkflowVersionRequest(workflow=workflow, project=project)
        return await send(six, path, method, request.SerializeToString(), [("authorization", f"Bearer {key}")])

    async with Client(Target(six.host.addresses.public, six.key, six.host.addresses.control)) as client:
        published = await client._call(client._launch.PublishWorkflowVersion, la.PublishWorkflowVersionRequest(spec=spec))
        project = (await client.get(six.lease.run_id)).project
    digest = published.version.digest
    for name in ("secret", "secret@1", digest):
        for where in ("", project):
            code, answer = await ask(six.key, name, where)
            assert (code, answer.version.name) == ("OK", "secret"), name
            code, answer = await ask(six.stranger, name, where)
            assert code == "NOT_FOUND", f"{name}: {code} {answer}"
            assert digest == name or digest not in shown(answer)


@pytest.mark.requirement("sec.tenant")
async def test_lists_without_an_id_show_nothing_of_another_tenant(six: Target6) -> None:
    wrong, asked = [], set()
    ours = ("acme", six.lease.run_id)
    for path, method in methods():
        options = method.GetOptions().Extensions
        fence = options[policy_pb2.fence]
        callers = (policy_pb2.FENCE_CALLER, policy_pb2.FENCE_OPERATOR, policy_pb2.FENCE_SERVICE_OR_CALLER)
        if fence not in callers or not method.name.startswith("List") or method.name in ("ListShards", "ListTools"):
            continue
        asked.add(method.name)
        code, answer = await send(six, path, method, b"", [("authorization", f"Bearer {six.stranger}")])
        if code == "OK" and any(word in shown(answer) for word in ours):
            wrong.append(f"{method.name}: {answer}")
    assert not wrong, "\n".join(wrong)
    assert {"ListRuns", "ListWorkflowVersions", "ListWorkers", "ListKeys", "ListProjects", "ListScopes", "ListCases"} <= asked


@pytest.mark.requirement("sec.tenant")
async def test_a_worker_of_another_tenant_cannot_touch_an_attempt(six: Target6) -> None:
    good = good_requests(six.lease, six.other_run)
    for path, method in methods():
        fence = method.GetOptions().Extensions[policy_pb2.fence]
        if fence not in (policy_pb2.FENCE_LEASE, policy_pb2.FENCE_WORKER) or method.name == "ClaimAttempts":
            continue
        request = good[method.name][0]
        metadata = [("authorization", f"Bearer {six.stranger}"), ("runway-lease-bin", six.lease.lease_token)]
        code, answer = await send(six, path, method, request.SerializeToString(), metadata)
        refused = code != "OK" or "LEASE_" in str(answer) or "FENCED" in str(answer)
        assert refused, f"{method.name}: {code} {answer}"
