"""What steps take of workers, through real leaders: kept to, split among processes, written down, and said to people."""

import asyncio
from typing import Any

import pytest
from runway.scheduler.v1 import scheduler_service_pb2 as people
from runway.scheduler.v1 import worker_service_pb2 as pb

from libs.testkit.waiting import wait_until
from tests.rpc.scheduler.calls import bearer, claim, complete
from tests.rpc.scheduler.harness import Replica, World, new_run
from tests.rpc.scheduler.test_explain_leaders import ask, codes
from tests.rpc.scheduler.test_holds import run_led_by, two

FLEET = "rk_fleet"


@pytest.mark.requirement("sched.capability")
async def test_a_step_is_leased_where_all_it_takes_is_free(world: World, replica: Replica) -> None:
    run_id, has = new_run(), {"gpu": 2, "memory_mb": 100}
    await world.ready(replica, run_id, resources={"gpu": 2, "memory_mb": 50})
    assert await claim(replica.worker(), wait_ms=0) == []
    assert codes((await ask(replica, run_id))[0]) == ["NO_WORKER_HAS_RESOURCES"]
    assert await claim(replica.worker(), wait_ms=0, free={"gpu": 1, "memory_mb": 100}, total=has) == []
    waiting = asyncio.create_task(claim(replica.worker(), free={"gpu": 1}, total=has, wait_ms=10_000, worker="waits"))
    await wait_until(lambda: ("a", "waits") in replica.book.workers, what="the poll")
    assert codes((await ask(replica, run_id))[0]) == ["RESOURCES_IN_USE"]
    (lease,) = await claim(replica.worker(), free={"gpu": 2, "memory_mb": 50}, total=has, worker="w2")
    assert dict(lease.resources) == {"gpu": 2, "memory_mb": 50}
    waiting.cancel()
    (row,) = await world.hand.fetch("SELECT resources FROM ticket")
    assert row["resources"] == "gpu 2\nmemory_mb 50"
    stub = replica.people()

    async def listed() -> bool:
        answer = await stub.ListWorkers(people.ListWorkersRequest(), metadata=bearer())
        return {w.worker_id: dict(w.resources) for w in answer.workers}.get("waits") == has

    await wait_until(listed, what="the worker with what it has")
    assert (await complete(replica.worker(), lease.lease_token)).recorded


async def test_what_is_granted_as_it_comes_keeps_to_it_too(world: World, replica: Replica) -> None:
    """Tickets that are granted in the commit that stores them, and a large one that waits and is not passed in secret."""
    waiting = asyncio.create_task(claim(replica.worker(), slots=9, free={"gpu": 3}, total={"gpu": 4}, wait_ms=10_000))
    await wait_until(lambda: replica.book.workers, what="the poll")
    large, small = new_run(), new_run()
    await world.ready(replica, large, resources={"gpu": 4})
    assert not waiting.done()
    await world.ready(replica, small, resources={"gpu": 3})
    (lease,) = await asyncio.wait_for(waiting, 10)
    assert lease.run_id == str(small)


@pytest.mark.requirement("sched.capability")
async def test_amounts_go_to_one_leader_at_a_time(world: World) -> None:
    one, other = await two(world)
    runs = [run_led_by(one), run_led_by(other)]
    for run_id in runs:
        await world.ready(one, run_id, resources={"gpu": 4})
    got: list[pb.Lease] = []
    for _ in range(2):
        leases = await claim(one.worker(), slots=8, free={"gpu": 4}, total={"gpu": 4}, wait_ms=10_000)
        assert len(leases) == 1, "four are free, and not four at each leader"
        got += leases
    assert {lease.run_id for lease in got} == {str(run_id) for run_id in runs}, "each leader has them in turn"


@pytest.mark.requirement("sched.fair")
async def test_a_lease_of_half_of_all_gpus_counts_as_half_of_all_slots_and_is_told_to_others(world: World) -> None:
    one, other = await two(world)
    run_id = run_led_by(one)
    await world.ready(one, run_id, resources={"gpu": 2})
    ask: dict[str, Any] = {"key": FLEET, "free": {"gpu": 4}, "total": {"gpu": 4}}
    (lease,) = await claim(one.worker(), slots=16, **ask)
    assert one.book.usage.used("a").running == 1
    await wait_until(lambda: other.book.usage.used("a").held >= 8, what="the report")
    assert one.book.usage.used("a").held == 8
    one.book.drop(range(64))
    assert one.book.usage.used("a").held == 1, "the lease is another's, who weighs it, and counts here until he has said so"
    assert not one.book.usage.heavy
    assert lease.tenant == "a"


async def test_a_new_leader_knows_what_tickets_take(world: World) -> None:
    one = await world.replica()
    run_id = new_run()
    await world.ready(one, run_id, resources={"gpu": 1})
    await world.end(one)
    later = await world.replica()
    await wait_until(lambda: len(later.book.ready) == 1, 20.0, what="the queue")
    assert await claim(later.worker(), wait_ms=0) == []
    assert len(await claim(later.worker(), free={"gpu": 1})) == 1
