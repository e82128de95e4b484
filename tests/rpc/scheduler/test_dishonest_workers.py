"""Workers that lie or vanish, and tickets that come late, twice or in the wrong order: nobody else's work suffers."""

import asyncio
from typing import Any
from uuid import uuid4

import grpc
import pytest
from runway.events.v1 import events_pb2

from libs.kernel.refusal import Reason
from libs.rpc.status import refusal_of
from libs.testkit.waiting import wait_until
from tests.rpc.scheduler.calls import beat, claim, complete
from tests.rpc.scheduler.harness import Replica, World, new_run


def revoked(run_id: Any, sequence: int) -> bytes:
    fact = events_pb2.StepRevoked(run_id=run_id.bytes, step_key="s", ticket_sequence=sequence, reason="not wanted")
    return events_pb2.Event(event_id=uuid4().bytes, step_revoked=fact).SerializeToString()


@pytest.mark.requirement("sched.bulkheads")
async def test_who_claims_more_than_it_can_and_vanishes_holds_nothing_up_for_long(world: World) -> None:
    replica = await world.replica(first_beat_ms=700)
    runs = [new_run() for _ in range(20)]
    for run_id in runs:
        await world.ready(replica, run_id)
    stub = replica.worker()
    taken = await claim(stub, slots=1_000, worker="liar")
    assert len(taken) == 20
    kept = taken[0]
    assert (await beat(stub, kept, worker="liar")).status == 1
    for run_id in runs:
        if run_id.bytes != kept.run_id and str(run_id) != kept.run_id:
            (end,) = await world.finished(run_id)
            assert end.end == events_pb2.ATTEMPT_END_LOST, "it was never taken up"
    await world.ready(replica, runs[1], sequence=2)
    assert len(await claim(stub, slots=5, worker="honest")) == 1, "an honest worker has what the liar had"
    assert (await complete(stub, taken[1].lease_token)).error.reason == "LEASE_FENCED", "the liar's late report counts no more"


@pytest.mark.requirement("sched.bulkheads")
@pytest.mark.parametrize("slots", [-1, 0, 1_001, 2_147_483_647])
async def test_absurd_slots_are_refused_and_grant_nothing(world: World, replica: Replica, slots: int) -> None:
    await world.ready(replica, new_run())
    stub = replica.worker()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await claim(stub, slots=slots)
    assert refusal_of(caught.value).reason in (Reason.INVALID_FIELD, Reason.QUOTA_EXCEEDED)
    assert len(await claim(stub)) == 1, "the ticket is still there"


@pytest.mark.requirement("sched.bulkheads")
async def test_a_claim_repeated_with_other_slots_gets_what_it_got(world: World, replica: Replica) -> None:
    for _ in range(10):
        await world.ready(replica, new_run())
    stub, claim_id = replica.worker(), uuid4().bytes
    first = {lease.attempt_id for lease in await claim(stub, claim_id=claim_id, slots=2)}
    for slots in (1, 2, 9, 1_000):
        again = await claim(stub, claim_id=claim_id, slots=slots)
        assert {lease.attempt_id for lease in again} == first
        assert len(first) == 2
    assert len(replica.book.leases) == 2


@pytest.mark.requirement("sched.bulkheads")
async def test_polls_of_one_worker_are_bounded_and_its_neighbour_is_served(world: World) -> None:
    replica = await world.replica(polls_per_worker=4)
    stub = replica.worker()
    polls = [asyncio.create_task(claim(stub, worker="greedy", wait_ms=20_000)) for _ in range(4)]
    await wait_until(lambda: len(replica.book.workers) == 1 and len(_polls(replica)) == 4, what="polls that wait")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await claim(stub, worker="greedy")
    refused = refusal_of(caught.value)
    assert refused.reason is Reason.OVERLOADED
    assert refused.detail["bound"] == "polls_of_worker"
    assert (refused.retry_after_ms or 0) >= 500
    neighbour = asyncio.create_task(claim(stub, key="rk_b", worker="greedy", wait_ms=20_000))
    await wait_until(lambda: len(_polls(replica)) == 5, what="another tenant's worker of the same name")
    await world.ready(replica, new_run(), tenant="b")
    assert len(await neighbour) == 1
    polls[0].cancel()
    await wait_until(lambda: len(_polls(replica)) == 3)
    assert await claim(stub, worker="greedy", wait_ms=50) == []
    for poll in polls[1:]:
        poll.cancel()
    await asyncio.gather(*polls, return_exceptions=True)


def _polls(replica: Replica) -> list[Any]:
    """Claims that wait at the leader."""
    loops: Any = replica.host.services[0].loops
    desk = next(loop for loop in loops if loop.name == "claim_cycle").run.__self__
    return list(desk._waiting.values())


@pytest.mark.requirement("sched.bulkheads")
async def test_tickets_late_twice_and_after_their_withdrawal_make_no_second_lease(world: World, replica: Replica) -> None:
    stub, run_id, other = replica.worker(), new_run(), new_run()
    world.launch.gate(other)
    verdicts = [(await world.ready(replica, run_id)).verdict for _ in range(3)]
    assert verdicts == [1, 1, 1]
    (lease,) = await claim(stub, slots=10)
    assert (await world.ready(replica, run_id)).verdict == 1, "repeated while its attempt lives"
    assert (await complete(stub, lease.lease_token)).recorded
    assert (await world.ready(replica, run_id)).verdict == 1, "of a step that is over"
    await world.deliver(replica, [revoked(other, 1)])
    assert (await world.ready(replica, other)).verdict == 1, "after its withdrawal"
    assert await claim(stub, slots=10, wait_ms=200) == []
    assert (await world.ready(replica, other, sequence=2)).verdict == 1
    assert len(await claim(stub, slots=10)) == 1, "a newer one is no late one"
