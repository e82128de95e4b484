"""`git.push` end to end: a real remote, a bundle as an artifact, the compare-and-set, replay."""

from typing import Any

import pytest
from runway.gateway.v1 import gateway_service_pb2 as pb
from runway.internal.gateway.v1 import gateway_internal_pb2 as internal_pb
from runway_sdk.values import from_value

from libs.kernel.refusal import Reason
from tests.rpc.gateway.harness import Attempt, Repositories, Stack, git, refused, stored

SUCCEEDED = pb.EFFECT_STATE_SUCCEEDED


def push(
    stack: Stack, attempt: Attempt, commit: str, data: bytes, *, branch: str = "fix", expected: str = ""
) -> dict[str, Any]:
    return {
        "remote": "origin",
        "branch": branch,
        "bundle": stored(stack.world, attempt.run_id, data),
        "commit": commit,
        "expected_old": expected,
    }


@pytest.mark.requirement("fx.intent")
async def test_a_push_happens_once_and_is_replayed_to_a_later_attempt(stack: Stack, repositories: Repositories) -> None:
    attempt = stack.grant()
    commit = repositories.commit("two")
    arguments = push(stack, attempt, commit, repositories.bundle())
    first = await stack.tool(attempt, "git.push", arguments, slot="push")
    assert first.effect.state == SUCCEEDED, first.effect
    assert from_value(first.effect.result) == {"remote": "origin", "branch": "fix", "commit": commit, "previous": ""}
    assert repositories.head("fix") == commit
    assert not first.replayed
    again = await stack.tool(attempt, "git.push", arguments, slot="push")
    assert (again.replayed, again.arguments_differ) == (True, False)
    await stack.raise_step(attempt, 2)
    later = stack.grant(attempt.run_id, lease=3)
    other = push(stack, later, repositories.commit("three"), repositories.bundle())
    third = await stack.tool(later, "git.push", other, slot="push")
    assert (third.replayed, third.arguments_differ) == (True, True)
    assert from_value(third.effect.result)["commit"] == commit
    assert repositories.head("fix") == commit
    (effect,) = await stack.ledger(attempt)
    assert [(one.n, one.state) for one in effect.tries] == [(1, "succeeded")]


@pytest.mark.requirement("gw.fence")
async def test_a_dead_attempt_and_a_cancelled_run_push_nothing(stack: Stack, repositories: Repositories) -> None:
    attempt = stack.grant()
    arguments = push(stack, attempt, repositories.commit("two"), repositories.bundle())
    await stack.raise_step(attempt, 2)
    stack.grant(attempt.run_id, lease=3)
    fenced = await refused(stack.tool(attempt, "git.push", arguments))
    assert fenced.reason is Reason.LEASE_FENCED
    assert repositories.head("fix") == ""
    assert await stack.rows("SELECT 1 FROM effect") == []


async def test_a_bundle_that_builds_on_the_remote_is_completed_from_it(stack: Stack, repositories: Repositories) -> None:
    attempt = stack.grant()
    commit = repositories.commit("two")
    thin = repositories.bundle("main", f"^{repositories.base}")
    done = await stack.tool(attempt, "git.push", push(stack, attempt, commit, thin, branch="main", expected=repositories.base))
    assert done.effect.state == SUCCEEDED, done.effect
    assert repositories.head("main") == commit
    assert done.effect.slot == "git.push#1"


async def test_a_branch_that_moved_is_a_definite_failure_that_names_its_head(stack: Stack, repositories: Repositories) -> None:
    attempt = stack.grant()
    commit = repositories.commit("two")
    lost = push(stack, attempt, commit, repositories.bundle(), branch="main", expected="0" * 39 + "1")
    done = await stack.tool(attempt, "git.push", lost, slot="push")
    assert (done.effect.state, done.effect.failure.type) == (pb.EFFECT_STATE_FAILED, "PUSH_REJECTED")
    assert repositories.base in done.effect.failure.message
    assert repositories.head("main") == repositories.base
    right = push(stack, attempt, commit, repositories.bundle(), branch="main", expected=repositories.base)
    again = await stack.tool(attempt, "git.push", right, slot="push")
    assert (again.effect.state, again.effect.dispatches) == (SUCCEEDED, 2)
    elsewhere = stack.grant()
    there = push(stack, elsewhere, commit, repositories.bundle(), branch="main", expected=repositories.base)
    found = await stack.tool(elsewhere, "git.push", there)
    assert (found.effect.state, found.effect.evidence) == (SUCCEEDED, "the branch was at the commit already")


async def test_the_remotes_own_hooks_decide_too(stack: Stack, repositories: Repositories) -> None:
    hook = repositories.remote / "hooks" / "pre-receive"
    hook.write_text("#!/bin/sh\necho not today >&2\nexit 1\n")
    hook.chmod(0o755)
    attempt = stack.grant()
    commit = repositories.commit("two")
    done = await stack.tool(attempt, "git.push", push(stack, attempt, commit, repositories.bundle()))
    assert (done.effect.state, done.effect.failure.type) == (pb.EFFECT_STATE_FAILED, "PUSH_REJECTED")
    assert "pre-receive hook declined" in done.effect.failure.message
    assert repositories.head("fix") == ""


async def test_what_is_wrong_before_the_push_is_told_apart(stack: Stack, repositories: Repositories) -> None:
    attempt = stack.grant()
    commit = repositories.commit("two")
    good = push(stack, attempt, commit, repositories.bundle())
    missing = await stack.tool(attempt, "git.push", {**good, "bundle": "0" * 64}, slot="missing")
    assert missing.effect.failure.type == "BUNDLE_INVALID"
    other = await stack.tool(attempt, "git.push", {**good, "commit": "1" * 40}, slot="other")
    assert other.effect.failure.message == "the bundle does not hold the commit"
    junk = await stack.tool(attempt, "git.push", {**good, "bundle": stored(stack.world, attempt.run_id, b"junk")}, slot="junk")
    assert "cannot be unpacked" in junk.effect.failure.message
    gone = await refused(stack.tool(attempt, "git.push", {**good, "remote": "gone"}, slot="gone"))
    assert (gone.reason, gone.detail["state"]) == (Reason.AUTHORITY_UNREACHABLE, "not_sent")
    assert str(repositories.remote.parent) not in str(await stack.rows("SELECT * FROM outbox"))


@pytest.mark.requirement("fx.unknown")
async def test_a_look_up_by_branch_head_decides_only_what_it_can(stack: Stack, repositories: Repositories) -> None:
    attempt = stack.grant()
    commit = repositories.commit("two")
    arguments = push(stack, attempt, commit, repositories.bundle(), branch="main", expected=repositories.base)
    await stack.tool(attempt, "git.push", arguments, slot="push")
    await stack.rows("UPDATE effect SET state = 'unknown', result = NULL")
    await stack.rows("UPDATE effect_dispatch SET state = 'unknown'")
    assert (await stack.inspect(attempt, "push")).finding == internal_pb.FINDING_OBSERVED
    git("push", "-q", "-f", "origin", f"{repositories.base}:refs/heads/main", cwd=repositories.clone)
    assert (await stack.inspect(attempt, "push")).finding == internal_pb.FINDING_ABSENT
    repositories.commit("three")
    git("push", "-q", "-f", "origin", "HEAD:refs/heads/main", cwd=repositories.clone)
    elsewhere = await stack.inspect(attempt, "push")
    assert elsewhere.finding == internal_pb.FINDING_UNDECIDABLE
    assert repositories.head("main") in elsewhere.evidence
    repositories.remote.rename(repositories.remote.with_suffix(".away"))
    assert (await stack.inspect(attempt, "push")).finding == internal_pb.FINDING_UNREACHABLE
