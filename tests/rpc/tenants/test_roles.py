"""Who may call what: every method of every public service against every role, as its contract says and nothing else."""

from collections.abc import Mapping
from typing import Any

import pytest
from runway.common.v1 import policy_pb2

from libs.kernel.refusal import Reason, Refusal
from libs.rpc.identity import ROLES, Caller
from libs.rpc.policy import Access, MethodPolicy, admit, key_digest, read_policies
from tests.rpc.test_garbage import methods

READS = "admin automation reviewer operator auditor"
RUNS = "admin automation operator"
TABLE: Mapping[str, str] = {
    "PublishWorkflowVersion": "admin automation",
    "LaunchRun": "admin automation",
    "LaunchRuns": "admin automation",
    "ForkRun": "admin automation",
    "CancelRun": RUNS,
    "RevokeCapabilities": RUNS,
    "PauseRun": RUNS,
    "ResumeRun": RUNS,
    "SignalEvent": RUNS,
    "RaiseBudget": RUNS,
    "SubmitInput": "reviewer",
    "DecideApproval": "reviewer operator",
    "WithdrawApproval": "reviewer operator",
    "RegisterApproverKey": "reviewer operator",
    "RevokeApproverKey": "reviewer operator",
    "ResolveCase": "operator",
    "ListStuckWork": "operator",
    "StopScope": "operator",
    "ReleaseScope": "operator",
    "ListScopes": "operator auditor",
    "ListScopeChanges": "operator auditor",
    "CreateKey": "admin",
    "RevokeKey": "admin",
    "ListKeys": "admin auditor",
    "CreateProject": "admin",
    "SuspendProject": "admin",
    "ResumeProject": "admin",
    **dict.fromkeys(
        [
            "GetWorkflowVersion",
            "ListWorkflowVersions",
            "GetRun",
            "ListRuns",
            "WatchRun",
            "WaitRun",
            "WaitRuns",
            "ListRunEvents",
            "ExplainRun",
            "ListSteps",
            "ListInputs",
            "ListEffects",
            "ListTools",
            "ListShards",
            "ListWorkers",
            "ListAttempts",
            "ListCases",
            "ListCheckpoints",
            "GetArtifact",
            "ListArtifacts",
            "ListProjects",
            "ListApprovals",
            "GetApproval",
            "ListApproverKeys",
            "ListChildren",
            "GetTree",
            "GetTenantBudget",
            "ListMeterEvents",
        ],
        READS,
    ),
    **dict.fromkeys(
        [
            "ClaimAttempts",
            "HeartbeatAttempts",
            "CompleteAttempts",
            "RecordCommands",
            "RenewLeases",
            "InvokeTool",
            "Generate",
            "WaitEffect",
            "PutChunks",
            "FindMissingChunks",
            "CommitCheckpoint",
            "RestoreCheckpoint",
            "PutArtifact",
        ],
        "worker",
    ),
}
"""Roles by method; of a method that is missing here, nobody but the installation itself."""
SECRET = (policy_pb2.FENCE_SERVICE,)


class Keys:
    """A directory of one key."""

    def __init__(self, *scopes: str) -> None:
        self._caller = Caller("acme", "", "k", frozenset(scopes), "tests")

    async def resolve(self, digest: bytes) -> Caller | None:
        return self._caller if digest == key_digest("rk_one") else None


def _policies() -> Mapping[str, Any]:
    return read_policies(sorted({path.split("/")[1] for path, _ in methods()}))


async def _admitted(policy: Any, *scopes: str) -> bool:
    try:
        await admit(policy, {"authorization": "Bearer rk_one"}, Access("secret", Keys(*scopes)))
    except Refusal as no:
        if no.reason is Reason.LEASE_INVALID:  # the role was enough; what is missing is a lease
            return True
        return False if no.reason in (Reason.METHOD_DENIED, Reason.UNAUTHENTICATED) else pytest.fail(str(no))
    return True


@pytest.mark.requirement("sec.tenant")
async def test_every_method_admits_the_roles_of_the_table_and_no_other() -> None:
    wrong = []
    for path, policy in _policies().items():
        name = path.rpartition("/")[2]
        for role in sorted(ROLES):
            expected = role in TABLE.get(name, "").split()
            if await _admitted(policy, role) != expected:
                wrong.append(f"{name}: {role} {'may not' if expected else 'may'} call it")
        for scope in ("", "bulk", "unheard of"):
            if await _admitted(policy, scope):
                wrong.append(f"{name}: a key with {scope!r} may call it")
    assert not wrong, "\n".join(wrong)


@pytest.mark.requirement("sec.tenant")
async def test_keys_of_before_and_fleets_may_do_what_they_could() -> None:
    for path, policy in _policies().items():
        roles = TABLE.get(path.rpartition("/")[2], "").split()
        assert await _admitted(policy, "caller") == bool({"automation", "reviewer"} & set(roles)), path
        assert await _admitted(policy, "fleet") == ("worker" in roles), path


@pytest.mark.requirement("sec.tenant")
def test_every_method_says_who_may_call_it() -> None:
    for path, policy in _policies().items():
        keyed = policy.fence not in (*SECRET, policy_pb2.FENCE_OPEN)
        assert bool(policy.roles) == keyed, f"{path} names no roles, or names some that nobody asks for"
        assert policy.roles <= ROLES, path


@pytest.mark.requirement("sec.tenant")
def test_an_auditor_changes_nothing_and_a_reviewer_launches_nothing() -> None:
    verbs = ("List", "Get", "Wait", "Watch", "Explain")
    may = {name for name, roles in TABLE.items() if "auditor" in roles.split()}
    assert all(name.startswith(verbs) for name in may)
    assert not any("reviewer" in TABLE[name].split() for name in ("LaunchRun", "LaunchRuns", "CancelRun", "CreateKey"))


@pytest.mark.requirement("sec.tenant")
async def test_a_method_that_names_no_role_is_denied_to_every_key() -> None:
    forgotten = MethodPolicy("/x/Y", "x", policy_pb2.FENCE_CALLER, policy_pb2.PORT_PUBLIC)
    for scope in (*sorted(ROLES), "caller", "fleet"):
        assert not await _admitted(forgotten, scope), scope
