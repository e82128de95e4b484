"""Launch and a gateway that is away: nothing is told before the gateway has it, and what was decided or asked is carried until it has."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import pytest
from runway.events.v1 import events_pb2 as ev
from runway.internal.fence.v1 import fence_pb2
from runway.launch.v1 import approval_service_pb2 as pb
from runway.launch.v1 import launch_service_pb2 as la
from runway_sdk import ApprovalRule, Client, Context, Target, Unavailable, step, workflow
from runway_sdk.approvals import ApproverKey, digest_of
from runway_sdk.values import from_value, to_value

from libs.kernel.refusal import unreachable
from libs.testkit.hosts import Peer, make_key
from libs.testkit.waiting import wait_until
from tests.rpc.approvals.room import APPROVED, STALE, WITHDRAWN, Person
from tests.rpc.launch.test_run_life import Bench, bench

__all__ = ["bench"]
pytestmark = pytest.mark.requirement("fx.approval")
CONSUMED, REFUSED = fence_pb2.APPROVAL_STANDING_CONSUMED, fence_pb2.APPROVAL_STANDING_REFUSED


@step(tools=["git.push"], approvals=[ApprovalRule(["git.push"])])
async def push(ctx: Context) -> int:
    return 1


@asynccontextmanager
async def reviewer(bench: Bench) -> AsyncIterator[Person]:
    key = await make_key(bench.host, name="rita", scopes=("reviewer",))
    async with Client(Target(bench.host.addresses.public, key)) as client:
        person = Person("rita", client, ApproverKey.generate())
        await client.approvals.register(person.key)
        yield person


def asking(run: la.Run, version: int = 1) -> ev.Event:
    content = to_value({"branch": f"b{version}"})
    said = {"slot": "push", "tool": "git.push", "digest": digest_of(content), "version": version, "hold_micros": 0}
    payload = to_value(said | {"content": from_value(content)}).SerializeToString()
    fact = ev.CommandRecorded(
        run_id=UUID(run.run_id).bytes,
        step_key="push",
        slot=f"approval {version}.0 push",
        kind=ev.COMMAND_KIND_APPROVAL,
        payload=payload,
    )
    return ev.Event(event_id=uuid4().bytes, command_recorded=fact)


async def asked(bench: Bench, version: int = 1, run: la.Run | None = None) -> pb.Approval:
    """A run that asks, and its newest approval."""
    if run is None:
        await bench.client.publish(workflow("asks", steps=[push]))
        run = await bench.client.launch("asks")
    await bench.tell(asking(run, version))
    return (await bench.client.approvals.find(run.run_id))[0]


def told(peer: Peer, approval: pb.Approval) -> list[ev.CommandAnswered]:
    run_id = UUID(approval.run_id).bytes
    found = [event.command_answered for event in peer.facts("command_answered")]
    return [fact for fact in found if fact.run_id == run_id]


async def test_the_step_is_told_only_when_the_gateway_has_it(bench: Bench) -> None:
    gateway, readiness = bench.peers["gateway"], bench.peers["readiness"]
    async with reviewer(bench) as rita:
        approval = await asked(bench)
        gateway.refuse = unreachable("gateway")
        decided = (await rita.decide(approval.approval_id)).approval
        assert (decided.state, decided.effective) == (APPROVED, False)
        again = await rita.decide(approval.approval_id)
        assert (again.replayed, told(readiness, approval)) == (True, [])
        gateway.refuse = None
        await readiness.wait_for("command_answered", timeout_s=30)
        (fact,) = told(readiness, approval)
        assert (fact.slot, fact.refused, fact.by) == ("approval 1.0 push", False, "rita")
        assert (await bench.client.approvals.get(approval.approval_id)).effective
        sent = [item for request in gateway.raised for item in request.approvals]
        assert {(item.approval_id, item.digest.hex(), item.policy) for item in sent} == {
            (UUID(approval.approval_id).bytes, approval.digest, approval.policy)
        }


async def test_a_withdrawal_is_answered_only_when_the_gateway_has_it(bench: Bench) -> None:
    gateway = bench.peers["gateway"]
    async with reviewer(bench) as rita:
        approval = await asked(bench)
        await rita.decide(approval.approval_id)
        gateway.refuse = unreachable("gateway")
        with pytest.raises(Unavailable):
            await rita.client.approvals.withdraw(approval.approval_id, "no")
        assert (await bench.client.approvals.get(approval.approval_id)).state == APPROVED
        gateway.refuse = None

        async def taken_back() -> bool:
            return (await bench.client.approvals.get(approval.approval_id)).state == WITHDRAWN

        await wait_until(taken_back, timeout_s=30, what="the outbox goes on asking")
        done = await rita.client.approvals.withdraw(approval.approval_id, "no")
        assert done.outcome == pb.WITHDRAWAL_OUTCOME_WITHDRAWN
        run = await bench.client.wait(approval.run_id, timeout_s=20)
        assert (run.outcome, run.failure.type) == ("failed", "APPROVAL_WITHDRAWN")


async def test_a_withdrawal_that_comes_too_late_says_so_and_the_run_goes_on(bench: Bench) -> None:
    gateway = bench.peers["gateway"]
    async with reviewer(bench) as rita:
        approval = await asked(bench)
        await rita.decide(approval.approval_id)
        gateway.standing = CONSUMED
        done = await rita.client.approvals.withdraw(approval.approval_id, "no")
        assert (done.outcome, done.approval.state) == (pb.WITHDRAWAL_OUTCOME_ALREADY_CONSUMED, APPROVED)
        assert done.approval.consumed_at.ToMilliseconds() == 5
        assert (await bench.client.get(approval.run_id)).outcome == ""


async def test_what_the_gateway_refuses_lets_no_step_go_on(bench: Bench) -> None:
    gateway, readiness = bench.peers["gateway"], bench.peers["readiness"]
    gateway.standing = REFUSED
    async with reviewer(bench) as rita:
        approval = await asked(bench)
        decided = (await rita.decide(approval.approval_id)).approval
        assert (decided.state, decided.effective, told(readiness, approval)) == (APPROVED, False, [])


async def test_commands_twice_late_and_out_of_order_are_asked_once(bench: Bench) -> None:
    first = await asked(bench)
    run = await bench.client.get(first.run_id)
    await bench.tell(asking(run), asking(run))
    assert len(await bench.client.approvals.find(run.run_id)) == 1
    newest = await asked(bench, 3, run)
    await bench.tell(asking(run, 2))
    found = {a.proposal_version: a.state for a in await bench.client.approvals.find(run.run_id)}
    assert found == {1: STALE, 2: STALE, 3: newest.state}
    unruled = ev.CommandRecorded(run_id=UUID(run.run_id).bytes, step_key="push", slot="odd", kind=ev.COMMAND_KIND_APPROVAL)
    said = {
        "slot": "x",
        "tool": "http.request",
        "digest": digest_of(to_value(None)),
        "version": 1,
        "hold_micros": 0,
        "content": None,
    }
    unruled.payload = to_value(said).SerializeToString()
    await bench.tell(ev.Event(event_id=uuid4().bytes, command_recorded=unruled))
    await bench.peers["readiness"].wait_for("command_answered", count=3)
    refused = [fact for fact in told(bench.peers["readiness"], first) if fact.refused]
    assert [(fact.slot, "no rule of step push" in fact.by) for fact in refused] == [("odd", True)]


async def test_a_use_whose_decision_a_promotion_has_lost_is_an_approval_and_stops_nobody(bench: Bench) -> None:
    async with reviewer(bench) as rita:
        lost, other = await asked(bench), await asked(bench)
        fact = ev.ApprovalConsumed(run_id=UUID(lost.run_id).bytes, approval_id=UUID(lost.approval_id).bytes, at_ms=7)
        await bench.tell(ev.Event(event_id=uuid4().bytes, approval_consumed=fact))
        stands = await bench.client.approvals.get(lost.approval_id)
        assert (stands.state, stands.effective, stands.HasField("consumed_at")) == (APPROVED, True, True)
        assert [fact.slot for fact in told(bench.peers["readiness"], lost)] in ([], ["approval 1.0 push"])
        verdicts = await bench.tell(
            asking(await bench.client.get(lost.run_id), 2), asking(await bench.client.get(other.run_id), 2)
        )
        assert [item.verdict for item in verdicts] == [1, 1]
        assert (await rita.client.approvals.withdraw(lost.approval_id, "no")).outcome == pb.WITHDRAWAL_OUTCOME_ALREADY_CONSUMED


async def test_the_owner_is_who_published_it_in_the_runs_own_project(bench: Bench) -> None:
    flow = workflow("asks", steps=[push])
    runs = []
    for project, name in (("one", "paula"), ("two", "peter")):
        key = await make_key(bench.host, name=name, project=project)
        async with Client(Target(bench.host.addresses.public, key)) as client:
            await client.publish(flow)
            runs.append(await client.launch("asks"))
    await bench.tell(*(asking(run) for run in runs))
    found = [(await bench.client.approvals.find(run.run_id))[0] for run in runs]
    assert [(one.owner, one.requester) for one in found] == [("paula", "paula"), ("peter", "peter")]


@pytest.mark.requirement("fx.approval")
async def test_a_command_that_is_told_again_asks_once(bench: Bench) -> None:
    await bench.client.publish(workflow("asks", steps=[push]))
    runs = [await bench.client.launch("asks") for _ in range(2)]
    first, second = (asking(run) for run in runs)
    await bench.tell(first, second, again(first), again(first))
    await bench.tell(again(second), again(first))
    for run in runs:
        (asked,) = await bench.client.approvals.find(run.run_id)
        assert asked.state == pb.APPROVAL_STATE_PENDING
        kinds = [event.kind for event in await bench.client.events(run.run_id)]
        assert kinds.count("approval.requested") == 1


def again(event: ev.Event) -> ev.Event:
    """The same fact under another event id, as if the inbox had forgotten the first."""
    other = ev.Event()
    other.CopyFrom(event)
    other.event_id = uuid4().bytes
    return other
