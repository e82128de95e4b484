"""A tenant's tickets beyond its bound: turned away with a reason, unlost, and nobody else's with them; over all leaders."""

from typing import Any

import pytest
from runway.internal.inbox.v1 import inbox_pb2
from runway.scheduler.v1 import share_service_pb2 as pb
from runway.scheduler.v1 import share_service_pb2_grpc

from libs.kernel.refusal import Reason
from libs.rpc.channels import open_channel
from libs.rpc.status import refusal_of
from libs.testkit.waiting import wait_until
from tests.rpc.scheduler.calls import claim
from tests.rpc.scheduler.harness import SECRET, Replica, World, new_run, ready_event

WHO: dict[str, Any] = {"actor": "ops", "reason": "a flood"}
APPLIED, RETRY = inbox_pb2.VERDICT_APPLIED, inbox_pb2.VERDICT_RETRY
MIGRATION = 3


def shares(replica: Replica) -> Any:
    channel = open_channel(replica.host.addresses.control, secret=SECRET)
    replica.channels.append(channel)
    return share_service_pb2_grpc.ShareServiceStub(channel)


async def deliver(world: World, replica: Replica, count: int, **more: Any) -> list[inbox_pb2.EventVerdict]:
    runs = [new_run() for _ in range(count)]
    for run_id in runs:
        world.launch.gate(run_id)
    return await world.deliver(replica, [ready_event(run_id, **more) for run_id in runs])


@pytest.mark.requirement("sched.bulkheads")
async def test_what_is_over_the_bound_is_turned_away_and_nobody_elses_with_it(world: World, replica: Replica) -> None:
    put = await shares(replica).PutShare(pb.PutShareRequest(tenant="a", most_waiting=5, **WHO))
    assert put.share.most_waiting == 5
    verdicts = await deliver(world, replica, 8, run_class=MIGRATION)
    assert [item.verdict for item in verdicts] == [APPLIED] * 5 + [RETRY] * 3
    assert {item.reason for item in verdicts[5:]} == {verdicts[5].reason}, "one reason for all that wait for the same"
    assert "tenant a has 5 tickets waiting" in verdicts[5].reason
    others = await deliver(world, replica, 8, tenant="b", run_class=MIGRATION)
    assert [item.verdict for item in others] == [APPLIED] * 8
    shown = {share.tenant: share for share in (await shares(replica).GetShares(pb.GetSharesRequest())).shares}
    assert (shown["a"].waiting, shown["b"].waiting, shown["b"].HasField("most_waiting")) == (5, 8, False)
    # a person's step comes in beside the tenant's own flood, and a lease makes room for one more
    assert [item.verdict for item in await deliver(world, replica, 6, run_class=1)] == [APPLIED] * 5 + [RETRY]
    assert len(await claim(replica.worker(), slots=6)) == 6
    assert [item.verdict for item in await deliver(world, replica, 2, run_class=MIGRATION)] == [APPLIED, RETRY]


@pytest.mark.requirement("sched.bulkheads")
async def test_a_ticket_that_is_here_already_is_never_turned_away(world: World, replica: Replica) -> None:
    await shares(replica).PutShare(pb.PutShareRequest(tenant="a", most_waiting=1, **WHO))
    run_id = new_run()
    assert (await world.ready(replica, run_id, run_class=MIGRATION)).verdict == APPLIED
    assert (await world.ready(replica, new_run(), run_class=MIGRATION)).verdict == RETRY
    assert (await world.ready(replica, run_id, run_class=MIGRATION)).verdict == APPLIED
    await shares(replica).PutShare(pb.PutShareRequest(tenant="a", most_waiting=0, **WHO))
    assert (await world.ready(replica, new_run(), run_class=MIGRATION)).verdict == APPLIED, "the policy's bound again"


@pytest.mark.requirement("sched.bulkheads")
async def test_the_bound_holds_over_all_leaders(world: World) -> None:
    one = await world.replica(led=None)
    two = await world.replica(led=None)
    await wait_until(lambda: one.led + two.led == 64 and one.led and two.led, what="both lead")
    await shares(one).PutSharePolicy(pb.PutSharePolicyRequest(policy=pb.SharePolicy(most_waiting=10), **WHO))
    await wait_until(lambda: two.book.usage.decided.policy.most_waiting == 10, what="the other has it")

    async def some_of(leader: Replica, count: int) -> list[int]:
        runs = []
        while len(runs) < count:
            run_id = new_run()
            if leader.leads(run_id):
                world.launch.gate(run_id)
                runs.append(run_id)
        found = await world.deliver(leader, [ready_event(run_id, run_class=MIGRATION) for run_id in runs])
        return [item.verdict for item in found]

    assert await some_of(one, 7) == [APPLIED] * 7
    await wait_until(lambda: two.book.usage.waiting_elsewhere("a") == 7, what="the other has heard of it")
    assert await some_of(two, 4) == [APPLIED] * 3 + [RETRY]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.PutShareRequest(tenant="a", most_waiting=-1, **WHO), "most_waiting"),
        (pb.PutShareRequest(tenant="a", project="p", most_waiting=1, **WHO), "most_waiting"),
        (pb.PutSharePolicyRequest(policy=pb.SharePolicy(most_waiting=0), **WHO), "most_waiting"),
    ],
)
async def test_a_bound_that_cannot_be_is_refused(replica: Replica, request_: Any, field: str) -> None:
    stub = shares(replica)
    call = stub.PutShare if isinstance(request_, pb.PutShareRequest) else stub.PutSharePolicy
    with pytest.raises(Exception, match=field) as caught:
        await call(request_)
    assert refusal_of(caught.value).reason is Reason.INVALID_FIELD  # type: ignore[arg-type]
