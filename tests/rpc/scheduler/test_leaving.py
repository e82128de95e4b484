"""Workers that end in order say so, and count no more at once; those that died are shown as silent. Fences know neither."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from runway.scheduler.v1 import scheduler_service_pb2 as people_pb
from runway.scheduler.v1 import worker_service_pb2 as pb

from libs.testkit.waiting import wait_until
from services.scheduler.clients.leaders import Leaders
from tests.rpc.scheduler.calls import bearer, beat, claim, complete
from tests.rpc.scheduler.harness import Replica, World, new_run
from tests.rpc.scheduler.test_explain_leaders import ask, codes
from tests.rpc.scheduler.test_holds import run_led_by, two


async def leave(
    stub: Any, worker: str = "w1", key: str = "rk_a", *leases: pb.Lease, process: bytes = b""
) -> list[pb.HeartbeatResult]:
    beats = [
        pb.Heartbeat(run_id=one.run_id, attempt_id=one.attempt_id, lease_epoch=one.lease_epoch, step_key=one.step_key)
        for one in leases
    ]
    request = pb.HeartbeatAttemptsRequest(worker_id=worker, heartbeats=beats, leaving=True, process=process)
    return list((await stub.HeartbeatAttempts(request, metadata=bearer(key))).results)


async def listed(replica: Replica, key: str = "rk_a") -> dict[str, people_pb.Worker]:
    answer = await replica.people().ListWorkers(people_pb.ListWorkersRequest(), metadata=bearer(key))
    return {worker.worker_id: worker for worker in answer.workers}


async def until_listed(replica: Replica, *names: str) -> dict[str, people_pb.Worker]:
    async def seen() -> bool:
        return set(await listed(replica)) == set(names)

    await wait_until(seen, 20.0, what=f"a list of {names}")
    return await listed(replica)


@pytest.mark.requirement("run.explain")
async def test_whoever_signed_off_is_no_worker_for_any_leader_and_one_that_claims_again_is_new(world: World) -> None:
    one, other = await two(world)
    runs = [run_led_by(replica) for replica in (one, other)]
    assert await claim(one.worker(), wait_ms=0) == []
    await until_listed(one, "w1")
    for run_id in runs:
        await world.ready(one, run_id)
        assert codes((await ask(one, run_id))[0]) == ["NO_FREE_SLOT"]
    assert await leave(one.worker()) == []
    for run_id in runs:
        assert codes((await ask(one, run_id))[0]) == ["NO_WORKER_CARRIES_BUILD"]
    await until_listed(one)
    assert len(await claim(other.worker(), slots=2)) == 2
    await until_listed(other, "w1")


@pytest.mark.requirement("run.explain")
async def test_a_beat_that_comes_late_makes_nobody_a_worker_again(world: World, replica: Replica) -> None:
    first, second = new_run(), new_run()
    await world.ready(replica, first)
    worker = replica.worker()
    (lease,) = await claim(worker)
    await leave(worker)
    assert (await beat(worker, lease)).status == pb.LEASE_STATUS_LIVE
    await world.ready(replica, second)
    assert codes((await ask(replica, second))[0]) == ["NO_WORKER_CARRIES_BUILD"]
    assert (await complete(worker, lease.lease_token)).recorded
    await until_listed(replica)


@pytest.mark.requirement("run.explain")
async def test_a_worker_that_drains_keeps_its_leases_and_is_listed_while_it_has_any(world: World, replica: Replica) -> None:
    run_id = new_run()
    await world.ready(replica, run_id)
    worker = replica.worker()
    (lease,) = await claim(worker)
    await until_listed(replica, "w1")
    assert [result.status for result in await leave(worker, "w1", "rk_a", lease)] == [pb.LEASE_STATUS_LIVE]

    async def drains() -> bool:
        found = (await listed(replica)).get("w1")
        return found is not None and found.leaving

    await wait_until(drains, 20.0, what="a worker that drains")
    found = (await listed(replica))["w1"]
    assert (found.live_leases, found.HasField("silent_for")) == (1, False)
    assert (await complete(worker, lease.lease_token)).recorded
    assert await leave(worker) == []
    await until_listed(replica)


async def test_nobody_signs_off_another_tenants_worker(world: World, replica: Replica) -> None:
    assert await claim(replica.worker(), wait_ms=0) == []
    await until_listed(replica, "w1")
    await leave(replica.worker(), "w1", "rk_b")
    assert await claim(replica.worker(), worker="w2", wait_ms=0) == []
    await until_listed(replica, "w1", "w2")
    await leave(replica.worker(), "w2")
    await until_listed(replica, "w1")  # what was said before is written down by now
    run_id = new_run()
    await world.ready(replica, run_id)
    assert codes((await ask(replica, run_id))[0]) == ["NO_FREE_SLOT"]
    assert set(await listed(replica)) == {"w1"}


@pytest.mark.requirement("sched.switch")
async def test_a_worker_that_drains_does_not_take_its_namesake_out_of_the_list(world: World) -> None:
    one, other = await two(world)
    run_id = run_led_by(one)
    await world.ready(one, run_id)
    (lease,) = await claim(one.worker(), process=b"old")
    await until_listed(one, "w1")
    await leave(other.worker(), "w1", "rk_a", lease, process=b"old")
    assert await claim(one.worker(), wait_ms=0, process=b"new") == []

    async def at_work() -> bool:
        found = (await listed(one)).get("w1")
        return found is not None and not found.leaving

    await wait_until(at_work, 20.0, what="a new worker of that name")
    for replica in (one, other, one):
        await leave(replica.worker(), "w1", "rk_a", lease, process=b"old")
    await leave(other.worker(), process=b"old")
    assert await claim(one.worker(), worker="w2", wait_ms=0) == []
    await until_listed(one, "w1", "w2")  # what was said before is written down by now
    assert await at_work()
    for replica in (one, other):
        assert not replica.book.has_left("a", "w1", b"new")


@pytest.mark.requirement("sched.switch")
async def test_other_leaders_hear_of_a_leaving_beside_its_beats_and_not_behind_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = await two(world)
    run_id = run_led_by(other)
    await world.ready(one, run_id)
    (lease,) = await claim(one.worker())
    third, told, forward, by_address = "third:1", list[bool](), Leaders.forward, Leaders.by_address
    heard = asyncio.Event()

    def with_a_third(self: Leaders, shards: Iterable[int]) -> dict[str, set[int]]:
        return by_address(self, shards) | ({third: {0}} if shards == range(64) else {})

    async def slow(self: Leaders, address: str, verb: str, request: Any, answer: Any, *more: Any, **named: Any) -> Any:
        if address == third:
            told.append(request.leaving)
            heard.set()
            return answer()
        if verb == "heartbeat" and request.heartbeats:
            await asyncio.wait_for(heard.wait(), 5)  # a leader that answers late, as a stopped one does
        return await forward(self, address, verb, request, answer, *more, **named)

    monkeypatch.setattr(Leaders, "by_address", with_a_third)
    monkeypatch.setattr(Leaders, "forward", slow)
    worker = one.worker()
    for _ in range(3):
        (answer,) = await leave(worker, "w1", "rk_a", lease, process=b"one")
        assert answer.status == pb.LEASE_STATUS_LIVE
    assert told == [True], "once, not with each beat"
    assert await leave(worker, process=b"one") == []
    assert told == [True, True], "and when it ends"


@pytest.mark.requirement("run.explain")
async def test_one_that_died_is_shown_as_silent_with_since_when(world: World, replica: Replica) -> None:
    assert await claim(replica.worker(), wait_ms=0) == []
    await until_listed(replica, "w1")
    assert not (await listed(replica))["w1"].HasField("silent_for")
    replica.book.workers.clear()  # its process would write down again that it was heard of lately
    await world.hand.execute("UPDATE worker SET seen_ms = seen_ms - 40000")
    silent_ms = (await listed(replica))["w1"].silent_for.ToMilliseconds()
    assert 40_000 <= silent_ms < 60_000
