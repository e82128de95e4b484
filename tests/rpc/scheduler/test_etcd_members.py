"""Two schedulers on an etcd of three members: its leading member dies, then its quorum, then both come back."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from runway.scheduler.v1 import worker_service_pb2 as pb

from libs.drills.etcd import EtcdCluster
from libs.kernel.ids import shard_of
from libs.testkit.waiting import wait_until
from tests.rpc.scheduler.calls import beat, claim, complete
from tests.rpc.scheduler.harness import Replica, World, new_run


@pytest.fixture
async def members(short_folder: Path) -> AsyncIterator[EtcdCluster]:
    cluster = EtcdCluster(short_folder / "etcd", 3, fsync=False)
    try:
        await cluster.start()
        yield cluster
    finally:
        for member in cluster.members:  # one by one they would wait for each other
            if member.running:
                member.kill()
        await cluster.stop()


@pytest.fixture
async def clustered(database: Callable[[str], Awaitable[str]], members: EtcdCluster, etcd_prefix: str) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        made = World(await database("scheduler"), members.endpoints, etcd_prefix, stack)
        await made.open()
        yield made


async def taken(world: World, replica: Replica, run_id: UUID) -> None:
    """A ticket, delivered until somebody who leads takes it."""

    async def took() -> bool:
        return bool((await world.ready(replica, run_id)).verdict == 1)

    await wait_until(took, 30.0, what="a ticket that is taken")


async def granted_once(world: World, replicas: tuple[Replica, Replica], run_id: UUID) -> pb.Lease:
    """The lease of a run's step that both replicas are asked for at the same time, by workers of their own."""
    asked = [claim(replica.worker(), worker=f"w{place}", wait_ms=5_000) for place, replica in enumerate(replicas)]
    found = [lease for leases in await asyncio.gather(*asked) for lease in leases]
    assert [lease.run_id for lease in found] == [str(run_id)]
    rows = await world.hand.fetch("SELECT state, lease_epoch, attempt_id FROM ticket WHERE run_id = $1", run_id)
    assert [(row["state"], row["lease_epoch"], row["attempt_id"].bytes) for row in rows] == [(2, 1, found[0].attempt_id)]
    return found[0]


async def authority(world: World) -> list[tuple[int, int, str]]:
    rows = await world.hand.fetch("SELECT shard_id, authority_epoch, holder FROM shard ORDER BY shard_id")
    return [tuple(row) for row in rows]


@pytest.mark.requirement("sched.authority")
@pytest.mark.timeout(180)
async def test_the_leading_member_dies_then_the_quorum_and_both_come_back(clustered: World, members: EtcdCluster) -> None:
    world = clustered
    one = await world.replica()
    other = await world.replica(led=None)
    both = (one, other)
    await wait_until(lambda: one.led + other.led == 64 and min(one.led, other.led) > 10, 20.0, what="sharing")

    # The leading member dies: leadership goes on, or is taken over, and a ticket is granted once.
    dead = members.leader()
    members.members[dead].kill()
    led_by = {True: one, False: other}
    first = new_run()
    await taken(world, led_by[first.int % 2 == 0], first)
    lease = await granted_once(world, both, first)
    await wait_until(lambda: one.led + other.led == 64, 30.0, what="every shard has a leader")
    assert (await beat(one.worker(), lease)).status == pb.LEASE_STATUS_LIVE

    second = new_run()
    await taken(world, one, second)
    cancelled = await granted_once(world, both, second)
    for lives in (lease, cancelled):
        assert (await beat(one.worker(), lives)).status == pb.LEASE_STATUS_LIVE

    # A second one dies: nobody leads, nothing is granted, no row moves; what lives goes on living.
    await live_without_a_quorum(world, both, lease, cancelled, members, dead)

    # They come back: leaders again, the attempt ends as a success, and tickets are granted once more.
    await asyncio.gather(*(member.start() for member in members.members if not member.running))
    await wait_until(lambda: one.led + other.led == 64, 60.0, what="leaders once more")
    assert (await beat(other.worker(), lease)).status == pb.LEASE_STATUS_LIVE
    assert (await complete(one.worker(), lease.lease_token)).recorded
    (finished,) = await world.finished(first)
    assert finished.authority_epoch == lease.authority_epoch
    later = new_run()
    await taken(world, one, later)
    again = await granted_once(world, both, later)
    (row,) = [row for row in await authority(world) if row[0] == shard_of(later)]
    assert again.authority_epoch == row[1]


async def live_without_a_quorum(
    world: World, both: tuple[Replica, Replica], lease: pb.Lease, cancelled: pb.Lease, members: EtcdCluster, dead: int
) -> None:
    members.members[(dead + 1) % 3].kill()
    await wait_until(lambda: both[0].led + both[1].led == 0, 20.0, what="both stepped down")
    before = await authority(world)
    workers: list[Any] = [replica.worker() for replica in both]
    for worker in workers * 3:
        assert (await beat(worker, lease)).status == pb.LEASE_STATUS_LIVE
    waiting = new_run()
    for replica, worker in zip(both, workers, strict=True):
        assert (await world.ready(replica, waiting)).verdict == 2, "to be sent again"
        assert await claim(worker, wait_ms=300) == []
        assert (await complete(worker, lease.lease_token)).error.reason == "NO_LEADER"
    assert await authority(world) == before, "no epoch rises, no row changes its holder"

    # Only exactly this attempt, for whom it may be: a row says nothing else.
    another = pb.Lease()
    another.CopyFrom(lease)
    another.attempt_id = uuid4().bytes
    assert (await beat(workers[0], another)).status == pb.LEASE_STATUS_UNKNOWN
    assert (await beat(workers[0], lease, key="rk_b")).status == pb.LEASE_STATUS_UNKNOWN
    stopped = UUID(cancelled.run_id)
    assert (await beat(workers[1], cancelled)).status == pb.LEASE_STATUS_LIVE
    assert (await world.raise_gate(both[0], stopped, cancelled.epoch + 1, mode=2, outcome="cancelled")).committed
    assert (await beat(workers[1], cancelled)).status == pb.LEASE_STATUS_UNKNOWN
