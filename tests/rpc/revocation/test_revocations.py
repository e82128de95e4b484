"""Capabilities taken from a run over real gRPC: launch with its points played by the test, which see every raise."""

import asyncio
from typing import Any
from uuid import UUID

import pytest
from runway.internal.fence.v1 import fence_pb2
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk import Client, Context, NotFound, Target, VersionConflict, step, workflow
from runway_sdk.approvals import ApprovalRule
from runway_sdk.errors import RunwayError

from libs.fence.grants import revoked_of
from libs.kernel.refusal import unreachable
from libs.testkit.hosts import make_key
from libs.testkit.waiting import wait_until
from tests.rpc.launch.test_run_life import Bench, bench, finished, first_lease, kinds

__all__ = ["bench"]
POINTS = ("scheduler", "gateway", "checkpoint")
ACCEPTED, ENFORCED = pb.REVOCATION_PHASE_ACCEPTED, pb.REVOCATION_PHASE_ENFORCED
PUSH = ["tool:git.push"]
RULE = ApprovalRule(["git.push"], need=2)


@step(tools=["git.push", "http.request"], models=["small"], approvals=[RULE])
async def able(ctx: Context) -> int:
    return 1


async def running(bench: Bench, name: str = "pusher") -> pb.Run:
    if name == "able":
        await bench.client.publish(workflow("able", steps=[able]))
    run = await bench.client.launch(name)
    await bench.tell(first_lease(run))
    return await bench.client.get(run.run_id)


def raised(bench: Bench, point: str, run: pb.Run) -> list[fence_pb2.RunGate]:
    found = [gate for request in bench.peers[point].raised for gate in request.gates]
    return [gate for gate in found if gate.run_id == UUID(run.run_id).bytes]


async def refused(call: Any) -> RunwayError:
    with pytest.raises(RunwayError) as no:
        await call
    return no.value


@pytest.mark.requirement("child.bounded")
async def test_every_point_gets_the_next_epoch_the_same_mode_and_the_smaller_grant(bench: Bench) -> None:
    run = await running(bench)
    answer = await bench.client.trees.revoke(run.run_id, PUSH, "the token leaked", request_id="r")
    assert (answer.phase, answer.replayed, answer.below.total) == (ENFORCED, False, 0)
    assert {(r.point, r.enforced_epoch) for r in answer.receipts} == {(point, run.epoch + 1) for point in POINTS}
    assert (answer.run.state, answer.run.epoch, answer.run.outcome) == (pb.RUN_STATE_RUNNING, run.epoch + 1, "")
    (taken,) = answer.run.revoked
    assert (taken.capability, taken.by, taken.at.seconds > 0) == ("tool:git.push", "key:tests", True)
    for point in POINTS:
        gates = raised(bench, point, run)
        assert {(gate.epoch, gate.mode) for gate in gates} == {(run.epoch + 1, 0)}
        assert "tool:git.push" not in gates[0].capabilities
        assert [one.capability for one in revoked_of(gates[0].capabilities)] == PUSH
    log = [event for event in await bench.client.events(run.run_id) if event.kind.startswith("run.revo")]
    assert kinds(log) == ["run.revoked", "run.revocation_enforced"]
    assert (log[0].actor, log[0].detail["reason"]) == ("key:tests", "the token leaked")
    assert list(log[0].detail["capabilities"]) == PUSH
    (why,) = (await bench.client.explain(run.run_id)).blockers[-1:]
    assert (why.code, why.detail["capability"]) == ("REVOKED", "tool:git.push")
    await bench.tell(finished(run))
    done = await bench.client.wait(run.run_id, settled=True)
    assert (done.state, len(done.revoked)) == (pb.RUN_STATE_SUCCEEDED, 1)


@pytest.mark.requirement("child.bounded")
async def test_a_repeat_does_nothing_more_and_another_request_is_refused(bench: Bench) -> None:
    run = await running(bench, "able")
    ask = bench.client.trees.revoke
    answers = await asyncio.gather(*(ask(run.run_id, PUSH, "why", request_id="r") for _ in range(6)))
    assert sorted(answer.replayed for answer in answers) == [False, *[True] * 5]
    found = await bench.client.get(run.run_id)
    assert (found.epoch, len(found.revoked)) == (run.epoch + 1, 1)
    again = await ask(run.run_id, PUSH, "another why")
    assert (again.phase, again.run.epoch, again.run.version) == (ENFORCED, found.epoch, found.version), "taken once"
    assert {receipt.enforced_epoch for receipt in again.receipts} == {found.epoch}
    for capabilities, why in ((["model:small"], "why"), (PUSH, "another")):
        assert (await refused(ask(run.run_id, capabilities, why, request_id="r"))).reason == "REQUEST_ID_REUSED"
    assert kinds(await bench.client.events(run.run_id)).count("run.revoked") == 1


@pytest.mark.requirement("child.bounded")
@pytest.mark.requirement("cmd.conditional")
async def test_what_may_not_be_taken_is_refused_and_changes_nothing(bench: Bench) -> None:
    run = await running(bench, "able")
    ask = bench.client.trees.revoke
    for bad in (
        f"approval:able:2:0:{run.workflow.digest}:git.push",
        "model:other",
        "model:",
        "tool:a b",
        "revoked:1:x:tool:a",
        "nonsense",
    ):
        no = await refused(ask(run.run_id, [bad, "model:small"], "why"))
        assert (no.reason, no.field) == ("INVALID_FIELD", "capabilities"), bad
        assert ("which is none" in str(no)) == (bad != "model:other"), bad
    assert "tool:git.push" in str(await refused(ask(run.run_id, ["model:other"], "why"))), "what it holds is said"
    with pytest.raises(VersionConflict):
        await ask(run.run_id, PUSH, "why", expected_version=run.version + 7)
    stranger = await make_key(bench.host, tenant="stranger")
    watcher = await make_key(bench.host, scopes=("auditor",), name="watcher")
    for key, kind in ((stranger, NotFound), (watcher, RunwayError)):
        async with Client(Target(bench.host.addresses.public, key, bench.host.addresses.control)) as other:
            with pytest.raises(kind):
                await other.trees.revoke(run.run_id, PUSH, "why")
    assert (await bench.client.get(run.run_id)).version == run.version
    await bench.client.cancel(run.run_id)
    assert (await refused(ask(run.run_id, PUSH, "why"))).reason == "RUN_CLOSED"


@pytest.mark.requirement("child.bounded")
async def test_all_of_a_kind_may_be_taken_and_rules_of_approval_stay(bench: Bench) -> None:
    run = await running(bench, "able")
    await bench.client.trees.revoke(run.run_id, PUSH, "why")
    grant = raised(bench, "gateway", run)[-1].capabilities
    assert {"tool:http.request", "model:small"} <= set(grant)
    assert [one.capability for one in revoked_of(grant)] == PUSH
    rules = [entry for entry in grant if entry.startswith("approval:")]
    assert len(rules) == 1
    await bench.client.trees.revoke(run.run_id, ["tool:*", "model:*", "tool:*"], "all of it")
    grant = raised(bench, "gateway", run)[-1].capabilities
    assert [entry for entry in grant if not entry.startswith("revoked:")] == rules
    assert [one.capability for one in revoked_of(grant)] == [*PUSH, "model:*", "tool:*"]
    for ask in (["tool:http.request"], ["tool:*"], ["model:small"]):
        assert (await bench.client.trees.revoke(run.run_id, ask, "again")).run.epoch == run.epoch + 2, "all are gone"


@pytest.mark.requirement("child.bounded")
async def test_it_is_enforced_once_every_point_has_confirmed_it_and_not_before(bench: Bench) -> None:
    run = await running(bench)
    bench.peers["gateway"].refuse = unreachable("gateway")
    answer = await bench.client.trees.revoke(run.run_id, PUSH, "why", request_id="r")
    assert answer.phase == ACCEPTED
    confirmed = {receipt.point for receipt in answer.receipts if receipt.enforced_epoch == run.epoch + 1}
    assert confirmed == {"scheduler", "checkpoint"}
    assert not raised(bench, "gateway", run)
    bench.peers["gateway"].refuse = None

    async def enforced() -> bool:
        later = await bench.client.trees.revoke(run.run_id, PUSH, "why", request_id="r")
        assert later.replayed
        return later.phase == ENFORCED

    await wait_until(enforced, timeout_s=20, what="the point that was away")
    assert raised(bench, "gateway", run)[-1].epoch == run.epoch + 1
    assert kinds(await bench.client.events(run.run_id)).count("run.revocation_enforced") == 1


@pytest.mark.requirement("run.pause")
@pytest.mark.requirement("child.bounded")
async def test_a_paused_run_stays_paused_and_a_resume_does_not_widen_it(bench: Bench) -> None:
    run = await running(bench)
    paused = (await bench.client.pause(run.run_id)).run
    answer = await bench.client.trees.revoke(run.run_id, PUSH, "why")
    assert (answer.phase, answer.run.state, answer.run.epoch) == (ENFORCED, pb.RUN_STATE_PAUSED, run.epoch + 1)
    assert (answer.run.paused_at, answer.run.paused_until) == (paused.paused_at, paused.paused_until)
    assert (raised(bench, "gateway", run)[-1].epoch, raised(bench, "gateway", run)[-1].mode) == (run.epoch + 1, 1)
    resumed = await bench.client.resume(run.run_id)
    last = raised(bench, "gateway", run)[-1]
    assert (resumed.epoch, last.epoch, last.mode) == (run.epoch + 2, run.epoch + 2, 0)
    assert "tool:git.push" not in last.capabilities
    assert [one.capability for one in revoked_of(last.capabilities)] == PUSH
    cold = await bench.host.peers.get_fences(
        "launch", fence_pb2.GetFencesRequest(service="launch", run_ids=[UUID(run.run_id).bytes])
    )
    assert list(cold.gates[0].capabilities) == list(last.capabilities), "a cold read brings the same"


async def test_a_run_that_is_pausing_becomes_paused_under_the_new_epoch(bench: Bench) -> None:
    run = await running(bench)
    bench.peers["scheduler"].quiesced = False
    assert (await bench.client.pause(run.run_id)).run.state == pb.RUN_STATE_PAUSING
    answer = await bench.client.trees.revoke(run.run_id, PUSH, "why")
    assert (answer.phase, answer.run.state) == (ENFORCED, pb.RUN_STATE_PAUSING)
    from runway.events.v1 import events_pb2

    for epoch in (run.epoch, run.epoch + 1):
        quiet = events_pb2.PointQuiesced(run_id=UUID(run.run_id).bytes, point="scheduler", epoch=epoch)
        await bench.tell(events_pb2.Event(event_id=epoch.to_bytes(16, "big"), point_quiesced=quiet))
        state = (await bench.client.get(run.run_id)).state
        assert state == (pb.RUN_STATE_PAUSING if epoch == run.epoch else pb.RUN_STATE_PAUSED)


@pytest.mark.requirement("child.bounded")
async def test_it_is_confirmed_under_a_later_epoch_as_well(bench: Bench) -> None:
    """A pause and a resume while a point is away: what that point confirms is the newest epoch, which carries the smaller grant."""
    run = await running(bench)
    bench.peers["gateway"].refuse = unreachable("gateway")
    await bench.client.trees.revoke(run.run_id, PUSH, "why", request_id="r")
    await bench.client.pause(run.run_id)
    await bench.client.resume(run.run_id)
    assert (await bench.client.trees.revoke(run.run_id, PUSH, "why", request_id="r")).phase == ACCEPTED
    bench.peers["gateway"].refuse = None

    async def enforced() -> bool:
        return (await bench.client.trees.revoke(run.run_id, PUSH, "why", request_id="r")).phase == ENFORCED

    await wait_until(enforced, timeout_s=20, what="a confirmation")
    assert {gate.epoch for gate in raised(bench, "gateway", run) if "tool:git.push" in gate.capabilities} == set()


@pytest.mark.requirement("run.retry-fork")
@pytest.mark.requirement("child.bounded")
async def test_a_run_that_continues_it_is_as_narrow(bench: Bench) -> None:
    run = await running(bench, "able")
    await bench.client.trees.revoke(run.run_id, [*PUSH, "model:small"], "why")
    await bench.tell(finished(run, "failed"))
    await bench.client.wait(run.run_id, settled=True)
    again = await bench.client.fork(run.run_id, ["able"])
    assert [one.capability for one in again.revoked] == ["model:small", *PUSH]
    cold = await bench.host.peers.get_fences(
        "launch", fence_pb2.GetFencesRequest(service="launch", run_ids=[UUID(again.run_id).bytes])
    )
    assert "model:small" not in cold.gates[0].capabilities
    fresh = await bench.client.launch("able")
    assert not fresh.revoked, "a new launch has what the version grants"
