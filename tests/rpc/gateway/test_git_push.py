"""`git.push` end to end: a real remote, a bundle as an artifact, the compare-and-set, replay."""

from typing import Any

import pytest
from runway.gateway.v1 import gateway_service_pb2 as pb
from runway_sdk.values import from_value

from libs.kernel.refusal import Reason
from tests.rpc.gateway.harness import Attempt, Repositories, Stack, refused, stored

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
