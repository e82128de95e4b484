"""Workers that serve every tenant: what a fleet's key gets, what it proves by a lease, and what stays closed to it and to others."""

import asyncio
from uuid import uuid4

import grpc
import pytest
from runway.scheduler.v1 import scheduler_service_pb2 as people
from runway.scheduler.v1 import worker_service_pb2 as pb

from libs.kernel.ids import shard_of
from libs.rpc.status import refusal_of
from libs.testkit.waiting import wait_until
from tests.rpc.scheduler.calls import bearer, beat, claim, complete, renew
from tests.rpc.scheduler.harness import Replica, World, new_run, value

FLEET, FLEET_2 = "rk_fleet", "rk_fleet_2"


async def pair(world: World) -> tuple[Replica, Replica]:
    one = await world.replica()
    other = await world.replica(led=None)
    await wait_until(lambda: one.led + other.led == 64 and other.led > 10, 10.0, what="both lead")
    return one, other


async def listed(replica: Replica, key: str) -> dict[str, people.Worker]:
    answer = await replica.people().ListWorkers(people.ListWorkersRequest(), metadata=bearer(key))
    return {worker.worker_id: worker for worker in answer.workers}


async def test_a_fleet_gets_steps_of_every_tenant_and_ends_them(world: World, replica: Replica) -> None:
    of_a, of_b = new_run(), new_run()
    await world.ready(replica, of_a)
    await world.ready(replica, of_b, tenant="b", project="q")
    worker = replica.worker()
    leases = {lease.run_id: lease for lease in await claim(worker, key=FLEET, slots=2)}
    assert {run: (x.tenant, x.project) for run, x in leases.items()} == {str(of_a): ("a", "p"), str(of_b): ("b", "q")}
    for run_id in (of_a, of_b):
        lease = leases[str(run_id)]
        assert (await beat(worker, lease, key=FLEET)).status == pb.LEASE_STATUS_LIVE
        fresh = await renew(worker, lease.lease_token, key=FLEET)
        assert fresh.epoch == lease.epoch
        command = pb.CommandItem(slot="c", type=pb.COMMAND_TYPE_SPAWN, payload=value("x"))
        asked = pb.RecordCommandsRequest(attempts=[pb.AttemptCommands(lease_token=fresh.lease_token, commands=[command])])
        (recorded,) = (await worker.RecordCommands(asked, metadata=bearer(FLEET))).results
        assert recorded.recorded, recorded.error.reason
        assert (await complete(worker, fresh.lease_token, key=FLEET)).recorded
        await world.finished(run_id)


async def test_what_comes_while_a_fleet_waits_goes_to_it_at_once(world: World, replica: Replica) -> None:
    waiting = asyncio.create_task(claim(replica.worker(), key=FLEET, wait_ms=10_000))
    await wait_until(lambda: replica.book.workers, what="the poll")
    run_id = new_run()
    await world.ready(replica, run_id, tenant="b")
    (lease,) = await asyncio.wait_for(waiting, 10)
    assert (lease.run_id, lease.tenant) == (str(run_id), "b")


async def test_a_tenants_own_worker_never_gets_another_tenants_steps_beside_a_fleet(world: World, replica: Replica) -> None:
    of_b = new_run()
    await world.ready(replica, of_b, tenant="b")
    worker = replica.worker()
    assert await claim(worker, key="rk_a", wait_ms=0) == []
    (lease,) = await claim(worker, key=FLEET)
    assert (await beat(worker, lease, key="rk_a")).status == pb.LEASE_STATUS_FENCED
    assert (await complete(worker, lease.lease_token, key="rk_a")).error.reason == "LEASE_INVALID"
    assert (await renew(worker, lease.lease_token, key="rk_a")).error.reason == "LEASE_INVALID"
    assert (await complete(worker, lease.lease_token, key=FLEET)).recorded


async def test_a_fleet_keeps_alive_what_it_was_granted_and_nothing_else(world: World, replica: Replica) -> None:
    worker = replica.worker()
    await world.ready(replica, new_run())
    (own,) = await claim(worker, key="rk_a", worker="w1")
    assert (await beat(worker, own, key=FLEET, worker="w1")).status == pb.LEASE_STATUS_FENCED
    await world.ready(replica, new_run())
    (lease,) = await claim(worker, key=FLEET, worker="w1")
    for key, name in ((FLEET, "w2"), (FLEET_2, "w1"), ("rk_platform_worker", "w1"), ("rk_a", "w1"), ("rk_b", "w1")):
        assert (await beat(worker, lease, key=key, worker=name)).status == pb.LEASE_STATUS_FENCED, key
    with pytest.raises(grpc.aio.AioRpcError) as no:
        await beat(worker, lease, key="rk_platform_plain")
    assert refusal_of(no.value).reason == "METHOD_DENIED"
    assert (await beat(worker, lease, key=FLEET, worker="w1")).status == pb.LEASE_STATUS_LIVE
    assert (await beat(worker, own, key="rk_a", worker="w1")).status == pb.LEASE_STATUS_LIVE


async def test_a_fleets_claim_is_repeated_by_it_alone(world: World, replica: Replica) -> None:
    name = uuid4().bytes
    worker = replica.worker()
    await world.ready(replica, new_run())
    (lease,) = await claim(worker, key=FLEET, claim_id=name)
    for key in (FLEET_2, "rk_a", "rk_b"):
        assert await claim(worker, key=key, claim_id=name, wait_ms=0) == [], key
    (again,) = await claim(worker, key=FLEET, claim_id=name)
    assert again.attempt_id == lease.attempt_id


async def test_a_fleet_without_a_lease_has_no_rights_beyond_its_own_tenant(world: World, replica: Replica) -> None:
    run_id = new_run()
    await world.ready(replica, run_id, tenant="b")
    with pytest.raises(grpc.aio.AioRpcError) as no:
        request = people.ListAttemptsRequest(run_id=str(run_id))
        await replica.people().ListAttempts(request, metadata=bearer(FLEET))
    assert refusal_of(no.value).reason == "NOT_FOUND"
    worker = replica.worker()
    assert (await complete(worker, b"nonsense", key=FLEET)).error.reason == "LEASE_INVALID"


async def test_another_replica_and_a_new_leader_know_the_fleet(world: World) -> None:
    one, other = await pair(world)
    run_id = new_run(next(shard for shard in range(64) if one.book.epoch(shard) is not None))
    name, worker = uuid4().bytes, other.worker()
    await world.ready(one, run_id, tenant="b")
    (lease,) = await claim(worker, key=FLEET, claim_id=name, slots=2)
    assert (await beat(worker, lease, key=FLEET)).status == pb.LEASE_STATUS_LIVE
    assert (await beat(worker, lease, key=FLEET_2)).status == pb.LEASE_STATUS_FENCED
    assert (await renew(worker, lease.lease_token, key=FLEET)).epoch == lease.epoch
    await world.end(one)
    await wait_until(lambda: other.book.epoch(shard_of(run_id)) is not None, 10.0, what="the takeover")
    assert (await beat(worker, lease, key=FLEET_2)).status == pb.LEASE_STATUS_FENCED
    assert (await beat(worker, lease, key=FLEET, worker="w2")).status == pb.LEASE_STATUS_FENCED
    assert (await beat(worker, lease, key=FLEET)).status == pb.LEASE_STATUS_LIVE
    (again,) = await claim(worker, key=FLEET, claim_id=name, slots=2)
    assert again.attempt_id == lease.attempt_id
    assert (await complete(worker, again.lease_token, key=FLEET)).recorded


async def test_a_completion_is_forwarded_to_the_leader_for_a_fleet(world: World) -> None:
    one, other = await pair(world)
    run_id = new_run(next(shard for shard in range(64) if one.book.epoch(shard) is not None))
    await world.ready(one, run_id, tenant="b")
    (lease,) = await claim(other.worker(), key=FLEET, slots=2)
    assert (await complete(other.worker(), lease.lease_token, key=FLEET)).recorded
    await world.finished(run_id)


async def test_a_fleets_workers_are_shown_to_operators_of_its_own_tenant_alone(world: World, replica: Replica) -> None:
    worker = replica.worker()
    await world.ready(replica, new_run())
    (_lease,) = await claim(worker, key=FLEET, worker="fleet-1")
    assert await claim(worker, key="rk_a", worker="own-1", wait_ms=0) == []
    shown = await wait_until(lambda: listed(replica, "rk_platform"), what="the fleet's worker is noted")
    assert {name: (x.fleet, x.live_leases) for name, x in shown.items()} == {"fleet-1": (True, 1)}
    assert list(shown["fleet-1"].handlers) == ["demo.work@1"]
    own = await wait_until(lambda: listed(replica, "rk_a"), what="the tenant's own worker is noted")
    assert {name: (x.fleet, x.live_leases) for name, x in own.items()} == {"own-1": (False, 0)}
    for key in ("rk_platform_plain", "rk_platform_project", FLEET, "rk_b"):
        assert await listed(replica, key) == {}, key


async def test_a_name_that_a_tenants_worker_shares_with_its_fleet_is_shown_as_the_fleets(
    world: World, replica: Replica
) -> None:
    worker = replica.worker()
    assert await claim(worker, key=FLEET, worker="w", wait_ms=0) == []
    assert await claim(worker, key="rk_platform_worker", worker="w", wait_ms=0, handlers=["mine.own@1"]) == []
    shown = await wait_until(lambda: listed(replica, "rk_platform"), what="the worker is noted")
    assert [x.fleet for x in shown.values()] == [True]
    assert await listed(replica, "rk_platform_plain") == {}
