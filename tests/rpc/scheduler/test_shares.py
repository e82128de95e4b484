"""Shares over gRPC: what is decided is in force, kept with who and why, and holds over all leaders."""

import asyncio
from typing import Any
from uuid import UUID

import pytest
from google.protobuf.duration_pb2 import Duration
from grpc.aio import AioRpcError
from runway.scheduler.v1 import share_service_pb2 as pb
from runway.scheduler.v1 import share_service_pb2_grpc

from libs.rpc.channels import open_channel
from libs.testkit.waiting import wait_until
from tests.rpc.scheduler.calls import claim, complete
from tests.rpc.scheduler.harness import SECRET, Replica, World, new_run
from tests.rpc.scheduler.test_scheduler_replicas import shard_led_by, two

WHO = {"actor": "ops@example.org", "reason": "the quarter's plan"}


def shares(replica: Replica) -> Any:
    channel = open_channel(replica.host.addresses.control, secret=SECRET)
    replica.channels.append(channel)
    return share_service_pb2_grpc.ShareServiceStub(channel)


async def refused(call: Any) -> str:
    with pytest.raises(AioRpcError) as no:
        await call
    return f"{no.value.code().name}: {no.value.details()}"


async def many(world: World, replica: Replica, count: int, shard: int | None = None, **more: Any) -> list[UUID]:
    runs = [new_run(shard) for _ in range(count)]
    for run_id in runs:
        await world.ready(replica, run_id, **more)
    return runs


@pytest.mark.requirement("sched.fair")
async def test_what_is_decided_is_in_force_and_told_with_who_and_why(world: World, replica: Replica) -> None:
    stub = shares(replica)
    before = await stub.GetShares(pb.GetSharesRequest())
    assert (before.policy.reserve_permille, before.policy.migration_permille, list(before.shares)) == (100, 500, [])
    policy = pb.SharePolicy(reserve_permille=250, half_life=Duration(seconds=60))
    put = await stub.PutSharePolicy(pb.PutSharePolicyRequest(policy=policy, expected_version=before.version, **WHO))
    assert (put.policy.reserve_permille, put.policy.migration_permille, put.policy.half_life.seconds) == (250, 500, 60)
    assert replica.book.usage.decided.policy.reserve_permille == 250
    made = (await stub.PutShare(pb.PutShareRequest(tenant="a", weight=4, most_leases=2, expected_version=0, **WHO))).share
    assert (made.weight, made.most_leases, made.version) == (4, 2, put.version + 1)
    await many(world, replica, 5)
    worker = replica.worker()
    leases = await claim(worker, slots=5)
    assert len(leases) == 2, "no more than its bound"
    found = (await stub.GetShares(pb.GetSharesRequest())).shares
    assert [(s.tenant, s.weight, s.live_leases, s.waiting) for s in found] == [("a", 4, 2, 3)]
    assert await claim(worker, slots=5, wait_ms=300) == []
    await complete(worker, leases[0].lease_token)
    assert len(await claim(worker, slots=5)) == 1, "what one ends another takes"
    await stub.PutShare(pb.PutShareRequest(tenant="a", unbounded=True, **WHO))
    assert len(await claim(worker, slots=5)) == 2
    changes = (await stub.ListShareChanges(pb.ListShareChangesRequest())).changes
    assert [(c.tenant, c.actor, c.reason) for c in changes] == [(t, WHO["actor"], WHO["reason"]) for t in ("a", "a", "")]
    assert '"weight": 4, "most_leases": 2' in changes[0].former
    page = await stub.ListShareChanges(pb.ListShareChangesRequest(before_version=changes[0].version, page_size=1))
    assert list(page.changes) == [changes[1]]


async def test_who_waits_is_given_what_another_s_end_makes_room_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll that found a bound reached need not come again: an end, here or at another leader, makes room for it."""
    monkeypatch.setattr("services.scheduler.servicer.ROUND_MS", 60_000)
    one, other = await two(world)
    await shares(one).PutShare(pb.PutShareRequest(tenant="a", most_leases=1, **WHO))
    await wait_until(lambda: other.book.usage.decided.parts.get("a") is not None, 3.0, what="the change at the other leader")
    worker = one.worker()
    await many(world, one, 2, shard_led_by(one))
    (first,) = await claim(worker, slots=1)
    waiting = asyncio.create_task(claim(worker, slots=4, wait_ms=20_000))
    await asyncio.wait({waiting}, timeout=1.0)
    assert not waiting.done(), "its bound is reached"
    await complete(worker, first.lease_token)
    async with asyncio.timeout(5):
        (second,) = await waiting
    await wait_until(lambda: other.book.usage.used("a").running == 1, 3.0, what="the other's report")
    await many(world, one, 1, shard_led_by(other))
    waiting = asyncio.create_task(claim(worker, slots=4, wait_ms=20_000))
    await asyncio.wait({waiting}, timeout=1.0)
    assert not waiting.done(), "its bound is reached elsewhere"
    await complete(worker, second.lease_token)
    async with asyncio.timeout(5):
        assert len(await waiting) == 1


async def test_a_bound_below_what_is_leased_ends_nothing(world: World, replica: Replica) -> None:
    stub, worker = shares(replica), replica.worker()
    await many(world, replica, 4)
    leases = await claim(worker, slots=3)
    assert len(leases) == 3
    await stub.PutShare(pb.PutShareRequest(tenant="a", project="p", most_leases=1, **WHO))
    await complete(worker, leases[0].lease_token)
    assert await claim(worker, slots=3, wait_ms=300) == []
    assert len(replica.book.leases) == 2
    for lease in leases[1:]:
        await complete(worker, lease.lease_token)
    assert len(await claim(worker, slots=3)) == 1


@pytest.mark.requirement("sched.fair")
async def test_a_user_s_bound_holds_over_projects_and_from_the_moment_it_is_decided(world: World, replica: Replica) -> None:
    stub, worker = shares(replica), replica.worker()
    mine = await many(world, replica, 3, launched_by="ann")
    mine += await many(world, replica, 1, launched_by="ann", project="q")
    others = await many(world, replica, 2, launched_by="ben")
    (first,) = await claim(worker, slots=1)
    assert UUID(first.run_id) in mine, "it came first"
    made = (await stub.PutShare(pb.PutShareRequest(tenant="a", user="ann", most_leases=2, **WHO))).share
    assert (made.user, made.project, made.most_leases, made.live_leases) == ("ann", "", 2, 1), "what she has already counts"
    leases = [*await claim(worker, slots=6), first]
    assert sorted(UUID(lease.run_id) in mine for lease in leases) == [False, False, True, True]
    assert {UUID(lease.run_id) for lease in leases} >= set(others), "others pass what waits for her bound"
    found = (await stub.GetShares(pb.GetSharesRequest())).shares
    assert [(s.user, s.live_leases) for s in found if s.user] == [("ann", 2)]
    await complete(worker, first.lease_token)
    assert [UUID(lease.run_id) in mine for lease in await claim(worker, slots=6)] == [True]
    await stub.PutShare(pb.PutShareRequest(tenant="a", user="ann", unbounded=True, **WHO))
    assert len(await claim(worker, slots=6)) == 1, "the last of four"
    changes = (await stub.ListShareChanges(pb.ListShareChangesRequest())).changes
    assert [(c.tenant, c.user, c.project) for c in changes] == [("a", "ann", "")] * 2


@pytest.mark.requirement("sched.fair")
async def test_a_user_s_bound_holds_over_all_leaders(world: World) -> None:
    one, other = await two(world)
    await shares(one).PutShare(pb.PutShareRequest(tenant="a", user="ann", most_leases=1, **WHO))
    await wait_until(lambda: bool(other.book.usage.decided.users), 3.0, what="the change at the other leader")
    await many(world, one, 1, shard_led_by(one), launched_by="ann")
    worker = one.worker()
    assert len(await claim(worker, slots=4)) == 1
    await wait_until(lambda: other.book.usage.of_project(("a", "@ann")) == 1, 3.0, what="the other's report")
    await many(world, one, 1, shard_led_by(other), launched_by="ann")
    assert await claim(worker, slots=4, wait_ms=300) == []


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.PutShareRequest(tenant="a", project="@ann", most_leases=1, **WHO), "project"),
        (pb.PutShareRequest(tenant="a", project="p", user="ann", most_leases=1, **WHO), "user"),
        (pb.PutShareRequest(tenant="a", user="ann", weight=2, **WHO), "weight"),
        (pb.PutShareRequest(tenant="a", weight=0, **WHO), "weight"),
        (pb.PutShareRequest(tenant="a", weight=2_000_000, **WHO), "weight"),
        (pb.PutShareRequest(tenant="a", weight=-1, **WHO), "weight"),
        (pb.PutShareRequest(tenant="a", most_leases=-1, **WHO), "most_leases"),
        (pb.PutShareRequest(tenant="a", project="p", weight=2, **WHO), "weight"),
        (pb.PutShareRequest(tenant="a", weight=2, actor="x", reason="  "), "reason"),
        (pb.PutShareRequest(tenant="a", weight=2, actor=" ", reason="y"), "actor"),
        (pb.PutSharePolicyRequest(policy=pb.SharePolicy(half_life=Duration(nanos=1)), **WHO), "half_life"),
        (pb.PutSharePolicyRequest(policy=pb.SharePolicy(half_life=Duration(seconds=90_000)), **WHO), "half_life"),
        (pb.PutSharePolicyRequest(policy=pb.SharePolicy(entry_penalty=Duration(seconds=4_000)), **WHO), "entry_penalty"),
        (pb.PutSharePolicyRequest(policy=pb.SharePolicy(entry_penalty=Duration(seconds=-4)), **WHO), "entry_penalty"),
        (pb.PutSharePolicyRequest(policy=pb.SharePolicy(reserve_permille=1_001), **WHO), "reserve_permille"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_share_that_cannot_be_is_refused_and_changes_nothing(replica: Replica, request_: Any, field: str) -> None:
    stub = shares(replica)
    call = stub.PutShare if isinstance(request_, pb.PutShareRequest) else stub.PutSharePolicy
    assert field in await refused(call(request_))
    after = await stub.GetShares(pb.GetSharesRequest())
    assert (after.version, list(after.shares)) == (1, [])
    assert not (await stub.ListShareChanges(pb.ListShareChangesRequest())).changes


async def test_of_two_operators_the_one_who_saw_an_older_share_is_refused(replica: Replica) -> None:
    stub = shares(replica)
    made = (await stub.PutShare(pb.PutShareRequest(tenant="a", weight=2, **WHO))).share
    await stub.PutShare(pb.PutShareRequest(tenant="a", weight=3, expected_version=made.version, **WHO))
    late = stub.PutShare(pb.PutShareRequest(tenant="a", weight=9, expected_version=made.version, **WHO))
    assert "ABORTED" in await refused(late) or "FAILED_PRECONDITION" in await refused(late)
    assert [s.weight for s in (await stub.GetShares(pb.GetSharesRequest())).shares] == [3]


async def test_shares_are_for_operators(replica: Replica) -> None:
    channel = open_channel(replica.host.addresses.control, secret="another")
    replica.channels.append(channel)
    stub = share_service_pb2_grpc.ShareServiceStub(channel)
    assert "UNAUTHENTICATED" in await refused(stub.PutShare(pb.PutShareRequest(tenant="a", weight=9, **WHO)))


async def test_every_leader_has_it_within_a_second_and_a_bound_holds_over_all_of_them(world: World) -> None:
    one, other = await two(world)
    await shares(one).PutShare(pb.PutShareRequest(tenant="a", most_leases=2, **WHO))
    await wait_until(lambda: other.book.usage.decided.parts.get("a") is not None, 3.0, what="the change at the other leader")
    await many(world, one, 2, shard_led_by(one))
    worker = one.worker()
    leases = await claim(worker, slots=8)
    assert len(leases) == 2
    await wait_until(lambda: other.book.usage.used("a").running == 2, 3.0, what="the other's report")
    await many(world, one, 2, shard_led_by(other))
    assert await claim(worker, slots=8, wait_ms=600) == []
    await complete(worker, leases[0].lease_token)
    await wait_until(lambda: other.book.usage.used("a").running == 1, 3.0, what="the other's report")
    assert len(await claim(worker, slots=8)) == 1


async def test_the_past_of_a_leader_that_died_is_taken_over_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.scheduler.app.decide_shares.SILENT_MS", 1_000)
    one, other = await two(world)
    await many(world, one, 3, shard_led_by(one))
    assert len(await claim(one.worker(), slots=8)) >= 1
    await wait_until(lambda: other.book.usage.used("a").running == 3, 3.0, what="its report")
    await wait_until(lambda: other.book.usage.used("a").average > 0.001, 3.0, what="its past")
    await one.host.stop(0)
    await wait_until(lambda: other.led == 64, 10.0, what="takeover")
    await wait_until(lambda: other.book.usage.meters["a"].running == 3, 5.0, what="its leases")
    holders = "SELECT count(DISTINCT holder) FROM share_use"

    async def one_is_left() -> bool:
        return int(await world.hand.fetchval(holders)) == 1

    await wait_until(one_is_left, 5.0, what="the end of its report")
    await wait_until(lambda: other.book.usage.elsewhere == {}, 3.0, what="nobody else's use")
    assert other.book.usage.used("a").average > 0.001, "its past is kept"


async def all_slots(worker: Any, slots: int) -> list[Any]:
    """What a fleet's worker with so many free slots is given, until nothing more comes."""
    leases: list[Any] = []
    while slots - len(leases):
        more = await claim(worker, key="rk_fleet", worker="fleet-1", slots=slots - len(leases), wait_ms=300)
        if not more:
            break
        leases += more
    return leases


@pytest.mark.requirement("slo.start")
@pytest.mark.requirement("sched.flood")
async def test_a_flood_leaves_the_reserve_to_who_is_interactive(world: World, replica: Replica) -> None:
    worker = replica.worker()
    await many(world, replica, 60, tenant="a", run_class=3)
    flood = await all_slots(worker, 20)
    assert len(flood) == 18, "migrations borrow what is idle, and leave the reserve alone"
    (urgent,) = await many(world, replica, 1, tenant="b", run_class=1)
    got = await claim(worker, key="rk_fleet", worker="fleet-1", slots=2, wait_ms=5_000)
    assert [lease.run_id for lease in got] == [str(urgent)], "it starts although nothing of the flood ended"
    await many(world, replica, 30, tenant="b", run_class=2)
    for lease in flood[:9]:
        await complete(worker, lease.lease_token, key="rk_fleet")
    more = await claim(worker, key="rk_fleet", worker="fleet-1", slots=10, wait_ms=5_000)
    assert [lease.tenant for lease in more] == ["b"] * 9, "who had nothing comes before who floods"


@pytest.mark.requirement("sched.fair")
async def test_slots_of_a_fleet_are_shared_by_weight(world: World, replica: Replica) -> None:
    await shares(replica).PutShare(pb.PutShareRequest(tenant="b", weight=3, **WHO))
    await shares(replica).PutSharePolicy(pb.PutSharePolicyRequest(policy=pb.SharePolicy(reserve_permille=0), **WHO))
    for tenant in ("a", "b"):
        await many(world, replica, 20, tenant=tenant)
    leases = await all_slots(replica.worker(), 16)
    assert sorted(lease.tenant for lease in leases) == ["a"] * 4 + ["b"] * 12
