"""Shards handed over between two real schedulers under work: nothing is lost, nothing expires, nothing is granted twice."""

import asyncio
import itertools
from typing import Any

import grpc
import pytest
from runway.scheduler.v1 import control_service_pb2 as pb

from libs.kernel.ids import shard_of
from libs.testkit.waiting import wait_until
from tests.rpc.scheduler.calls import beat, claim, complete
from tests.rpc.scheduler.harness import Replica, World, new_run, ready_event
from tests.rpc.scheduler.test_holds import control, two


async def drain(replica: Replica, **more: Any) -> list[pb.ShardMove]:
    request = pb.DrainShardsRequest(**{"reason": "a restart", "actor": "ann", **more})
    return list((await control(replica).DrainShards(request)).moves)


def led(replica: Replica) -> list[int]:
    return sorted(replica.book.led(range(64)))


class Stream:
    """Tickets that come, and workers that claim and complete them, through one replica."""

    def __init__(self, world: World, at: Replica) -> None:
        self.world = world
        self.at = at
        self.asked: set[str] = set()
        self.granted: list[tuple[float, str]] = []
        self.unrecorded: list[str] = []
        self.enough = asyncio.Event()

    async def feed(self) -> None:
        while not self.enough.is_set():
            run_id = new_run()
            self.world.launch.gate(run_id)
            event = ready_event(run_id)
            while (await self.world.deliver(self.at, [event]))[0].verdict != 1:
                await asyncio.sleep(0.01)  # as the relay does: what has no leader comes again
            self.asked.add(str(run_id))
            await asyncio.sleep(0.002)

    async def work(self, worker: str) -> None:
        stub, loop = self.at.worker(), asyncio.get_running_loop()
        while not self.enough.is_set() or len(self.granted) < len(self.asked):
            for lease in await claim(stub, slots=2, wait_ms=500, worker=worker):
                self.granted.append((loop.time(), lease.run_id))
                done = await complete(stub, lease.lease_token)
                while done.error.reason == "NO_LEADER":
                    await asyncio.sleep(0.01)
                    done = await complete(stub, lease.lease_token)
                if not done.recorded:
                    self.unrecorded.append(f"{lease.run_id}: {done.error.reason}")

    def longest_pause_s(self, since: float, until: float) -> float:
        times = [since, *(at for at, _ in self.granted if since <= at <= until), until]
        return max(later - former for former, later in itertools.pairwise(times))


@pytest.mark.requirement("sched.switch")
@pytest.mark.requirement("sched.authority")
async def test_a_drained_process_leaves_no_gap_no_loss_and_no_second_lease(world: World) -> None:
    one, other = await two(world, etcd_ttl_ms=15_000)
    held_run = new_run(led(one)[0])
    await world.ready(one, held_run, "long")
    (long,) = await claim(one.worker(), worker="long")
    stream = Stream(world, other)
    loop = asyncio.get_running_loop()
    tasks = [asyncio.create_task(stream.feed()), *(asyncio.create_task(stream.work(f"w{n}")) for n in range(4))]
    await wait_until(lambda: len(stream.granted) > 50, 20.0, what="a stream of claims")
    began, given = loop.time(), led(one)
    moves = await drain(other, member=one.host.addresses.control)
    assert [move.shard_id for move in moves] == given
    assert all(move.done and move.to_address == other.host.addresses.control for move in moves)
    await wait_until(lambda: (one.led, other.led) == (0, 64), 5.0, what="the memory of what was confirmed")
    grants = len(stream.granted)
    await wait_until(lambda: len(stream.granted) > grants + 50, 20.0, what="the stream goes on")
    ended = loop.time()
    stream.enough.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 30)
    runs = [run_id for _, run_id in stream.granted]
    assert sorted(runs) == sorted(stream.asked)  # each once: none lost, none twice
    assert stream.unrecorded == []
    assert stream.longest_pause_s(began, ended) < 3  # a session dies after 10 s, a claim's round ends after 5: nobody waited so
    assert (await beat(other.worker(), long, worker="long")).status == 1
    assert (await complete(other.worker(), long.lease_token)).recorded
    assert other.book.epoch(shard_of(held_run)) > long.authority_epoch


@pytest.mark.requirement("sched.switch")
async def test_a_process_on_its_way_out_hands_its_shards_over_first(world: World) -> None:
    one, other = await two(world)
    run_id = new_run(led(one)[0])
    await world.ready(one, run_id)
    (lease,) = await claim(one.worker())
    one.host.draining.set()
    await wait_until(lambda: other.led == 64, 5.0, what="the hand-over")
    assert one.led == 0
    assert (await complete(one.worker(), lease.lease_token)).recorded  # it forwards what still comes
    await world.end(one)
    assert other.led == 64


@pytest.mark.requirement("sched.switch")
async def test_some_shards_go_where_they_are_sent_and_come_back(world: World) -> None:
    one, other = await two(world)
    some = led(one)[:2]
    planned = await drain(one, shards=some, dry_run=True)
    assert [(move.shard_id, move.done) for move in planned] == [(shard, False) for shard in some]
    assert led(one)[:2] == some
    moves = await drain(one, shards=some, to=other.host.addresses.control)
    assert [(move.shard_id, move.done) for move in moves] == [(shard, True) for shard in some]
    await wait_until(lambda: set(some) <= set(led(other)))
    rows = await world.hand.fetch("SELECT shard_id, actor, reason FROM shard_move ORDER BY move_id")
    assert [tuple(row) for row in rows] == [(shard, "ann", "a restart") for shard in some]
    request = pb.ReturnShardsRequest(reason="done", actor="bob")
    assert list((await control(other).ReturnShards(request)).shards) == some
    await wait_until(lambda: set(some) <= set(led(one)), 10.0, what="their way back")
    assert await world.hand.fetchval("SELECT count(*) FROM shard_move WHERE actor = 'bob' AND reason = 'done'") == 2


@pytest.mark.requirement("sched.switch")
async def test_nobody_to_take_over_is_said_and_nothing_moves(world: World) -> None:
    one = await world.replica()

    async def heard() -> bool:
        """Whether etcd has told this process that it leads."""
        try:
            return not await drain(one, shards=[3], dry_run=True)
        except grpc.aio.AioRpcError:
            return True

    await wait_until(heard)
    for more, words in [
        ({"shards": [3]}, "there is no other live scheduler process"),
        ({"shards": [3], "to": "nobody"}, "no live scheduler process"),
        ({"member": "nobody"}, "no live scheduler process"),
        ({}, "shards is empty"),
        ({"shards": [3], "reason": " "}, "reason is empty"),
        ({"shards": [3], "to": one.host.addresses.control}, "leads them already"),
    ]:
        with pytest.raises(grpc.aio.AioRpcError, match=words):
            await drain(one, **more)
    assert one.led == 64
    with pytest.raises(grpc.aio.AioRpcError, match="reason is empty"):
        await control(one).ReturnShards(pb.ReturnShardsRequest(actor="bob"))
    assert await world.hand.fetchval("SELECT count(*) FROM shard_move") == 0


@pytest.mark.requirement("sched.switch")
async def test_a_claim_that_waits_follows_the_shards(world: World) -> None:
    one, other = await two(world, etcd_ttl_ms=15_000)
    await drain(one, member=other.host.addresses.control)
    waiting = asyncio.create_task(claim(other.worker(), slots=4, wait_ms=20_000))  # at `one`, which leads everything
    await wait_until(lambda: one.book.workers, what="a claim that waits")
    moves = await drain(one, member=one.host.addresses.control)
    assert (len(moves), all(move.done for move in moves)) == (64, True)
    await wait_until(lambda: other.led == 64)
    began = asyncio.get_running_loop().time()
    await world.ready(other, new_run())
    assert len(await waiting) == 1
    assert asyncio.get_running_loop().time() - began < 3  # it did not wait for its round's end at who leads nothing any more
