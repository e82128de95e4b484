"""Shard elections on a real etcd: shared, taken over with greater epochs, given up by our own clock, resumed."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from libs.authority import Board, EtcdClient, EtcdUnavailable, Leader, Session, ShardElections, preferred
from libs.embedded import EmbeddedEtcd
from libs.testkit.proxy import FaultProxy
from libs.testkit.waiting import wait_until

ALL = set(range(64))


class LoopClock:
    """The event loop's time, which a test may push forward as a pause would."""

    def __init__(self) -> None:
        self.pushed_ms = 0

    def now_ms(self) -> int:
        return self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000) + self.pushed_ms


@dataclass
class Candidate:
    """A member that writes down what it is told."""

    name: str
    client: EtcdClient
    clock: LoopClock
    elections: ShardElections
    won: list[tuple[int, int]] = field(default_factory=list)
    lost: list[tuple[list[int], str]] = field(default_factory=list)
    refuse: set[int] = field(default_factory=set)
    still_mine: list[bool] = field(default_factory=list)
    task: "asyncio.Task[None] | None" = None

    async def on_won(self, won: Mapping[int, int]) -> Collection[int]:
        self.won += sorted(won.items())
        return set(won) - self.refuse

    async def on_lost(self, shards: Collection[int], why: str) -> None:
        for shard in shards if why == "it belongs to another member" else ():
            found = (await self.client.range(self.elections.board.shard_key(shard))).kvs
            self.still_mine.append(bool(found) and found[0].create_revision == dict(self.won)[shard])
        self.lost.append((list(shards), why))

    def start(self) -> None:
        self.task = asyncio.create_task(self.elections.run())

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    @property
    def shards(self) -> set[int]:
        return set(self.elections.leading)


class Field:
    """The members of one test."""

    def __init__(self, endpoints: list[str], prefix: str) -> None:
        self.endpoints = endpoints
        self.prefix = prefix
        self.members: list[Candidate] = []

    def join(self, name: str, *, endpoints: list[str] | None = None, ttl_ms: int = 3_000, orphan_ms: int = 60_000) -> Candidate:
        clock = LoopClock()
        client = EtcdClient(endpoints or self.endpoints, clock, timeout_ms=500, patience_ms=1_000)
        member: Candidate

        async def won(shards: Mapping[int, int]) -> Collection[int]:
            return await member.on_won(shards)

        async def lost(shards: Collection[int], why: str) -> None:
            await member.on_lost(shards, why)

        elections = ShardElections(
            client,
            clock,
            prefix=self.prefix,
            member_id=name,
            address=f"{name}:1",
            on_won=won,
            on_lost=lost,
            ttl_ms=ttl_ms,
            orphan_ms=orphan_ms,
        )
        member = Candidate(name, client, clock, elections)
        self.members.append(member)
        member.start()
        return member

    async def end(self) -> None:
        for member in self.members:
            await member.stop()
            await member.client.close()


@pytest.fixture
async def field_(etcd_server: list[str], etcd_prefix: str) -> AsyncIterator[Field]:
    made = Field(etcd_server, etcd_prefix)
    yield made
    await made.end()


@pytest.mark.requirement("sched.authority")
async def test_one_member_takes_every_shard_in_half_a_second(field_: Field) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    one = field_.join("one")
    await wait_until(lambda: one.shards == ALL)
    assert loop.time() - began < 0.5
    epochs = [epoch for _, epoch in one.won]
    assert len(set(epochs)) == 64
    assert min(epochs) > 0
    assert one.elections.leads(5) == dict(one.won)[5]
    assert one.elections.healthy()
    await wait_until(lambda: one.elections.leader(5) is not None)
    leader = one.elections.leader(5)
    assert leader is not None
    assert (leader.member_id, leader.address, leader.epoch) == ("one", "one:1", dict(one.won)[5])


@pytest.mark.requirement("sched.authority")
async def test_two_members_share_and_the_survivor_takes_over_with_greater_epochs(field_: Field) -> None:
    one = field_.join("one")
    await wait_until(lambda: one.shards == ALL)
    two = field_.join("two")
    await wait_until(lambda: len(one.shards) + len(two.shards) == 64 and min(len(one.shards), len(two.shards)) > 16)
    assert one.shards.isdisjoint(two.shards)
    assert one.shards == {s for s in ALL if preferred(s, ["one", "two"]) == "one"}
    assert one.lost[0][1] == "it belongs to another member"
    assert one.still_mine
    assert all(one.still_mine)
    before = dict(one.won)
    assert all(epoch > before[shard] for shard, epoch in two.won)
    await one.stop()
    await wait_until(lambda: two.shards == ALL)
    after = dict(two.won)
    assert all(after[shard] > before[shard] for shard in ALL)
    assert one.lost[-1][1] == "stopping"


@pytest.mark.requirement("sched.authority")
async def test_a_member_cut_off_steps_down_before_another_takes_over(field_: Field, etcd_server: list[str]) -> None:
    port = int(etcd_server[0].rpartition(":")[2])
    async with FaultProxy(port) as proxy:
        one = field_.join("one", endpoints=[f"127.0.0.1:{proxy.port}"])
        await wait_until(lambda: one.shards == ALL)
        two = field_.join("two", orphan_ms=500)
        await wait_until(lambda: one.shards and two.shards and len(one.shards) + len(two.shards) == 64)
        proxy.silence()
        took_early = False

        def over() -> bool:
            nonlocal took_early
            took_early = took_early or bool(one.shards & two.shards)
            return two.shards == ALL

        await wait_until(over, 10.0)
        assert not took_early
        assert one.shards == set()
        assert "our own clock" in one.lost[-1][1] or "Unavailable" in one.lost[-1][1]
        assert not one.elections.healthy()
        proxy.heal()
        await wait_until(lambda: one.shards and len(one.shards) + len(two.shards) == 64, 10.0)
        epochs: dict[int, int] = {}
        for shard, epoch in sorted(one.won + two.won, key=lambda pair: pair[1]):
            assert epoch > epochs.get(shard, 0)
            epochs[shard] = epoch


@pytest.mark.requirement("sched.authority")
async def test_a_paused_member_steps_down_by_its_own_clock(field_: Field) -> None:
    one = field_.join("one")
    await wait_until(lambda: one.shards == ALL)
    one.clock.pushed_ms += 2_001  # two thirds of the TTL; etcd still believes in the lease
    assert one.elections.leads(3) is None
    assert one.shards == set()
    await wait_until(lambda: one.lost)
    assert (one.lost[0][0], "our own clock" in one.lost[0][1]) == (sorted(ALL), True)
    await wait_until(lambda: one.shards == ALL)
    first, again = one.won[:64], one.won[64:]
    assert all(dict(again)[shard] > epoch for shard, epoch in first)


async def test_an_epoch_that_the_database_does_not_confirm_is_not_led(field_: Field) -> None:
    one = field_.join("one")
    one.refuse = {7, 9}
    await wait_until(lambda: one.shards == ALL - {7, 9})
    await wait_until(lambda: 7 not in one.elections.board.leaders and one.elections.board.synced)
    one.refuse = set()
    one.clock.pushed_ms += 1_500
    await wait_until(lambda: one.shards == ALL, 8.0)
    assert [shard for shard, _ in one.won].count(7) >= 2


@pytest.mark.requirement("sched.authority")
async def test_a_key_whose_giving_back_failed_is_given_back_later(field_: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    one = field_.join("one")
    one.refuse = set(ALL)
    txn, failed = one.client.txn, 0

    async def fails(compare: Any, success: Any, failure: Any = (), **named: Any) -> Any:
        nonlocal failed
        if not failure and failed < len(ALL):  # a key is given back
            failed += 1
            raise EtcdUnavailable("no answer")
        return await txn(compare, success, failure, **named)

    monkeypatch.setattr(one.client, "txn", fails)
    await wait_until(lambda: failed == len(ALL), what="every giving back failed", timeout_s=20)
    one.refuse = set()
    await wait_until(lambda: one.shards == ALL, what="all shards are led after all", timeout_s=20)
    assert not one.lost


async def test_a_shard_that_its_member_does_not_take_is_taken_by_another(field_: Field) -> None:
    lame = field_.join("lame")
    lame.refuse = set(ALL)
    one = field_.join("one", orphan_ms=300)
    await wait_until(lambda: one.shards == ALL, 10.0)
    assert lame.shards == set()


async def test_another_incarnation_of_the_database_campaigns_anew(field_: Field) -> None:
    one = field_.join("one")
    await wait_until(lambda: one.shards == ALL)
    one.elections.campaign_anew()
    await wait_until(lambda: len(one.won) == 128 and one.shards == ALL)
    assert one.lost[0] == (sorted(ALL), "campaigning anew")


async def test_who_watches_sees_each_change_of_leader(field_: Field) -> None:
    clock = LoopClock()
    client = EtcdClient(field_.endpoints, clock)
    board = Board(client, field_.prefix)
    running = asyncio.create_task(board.run())
    seen: list[dict[int, Leader]] = []

    async def follow() -> None:
        async for leaders in board.observe():
            seen.append(leaders)

    following = asyncio.create_task(follow())
    one = field_.join("one")
    await wait_until(lambda: seen and len(seen[-1]) == 64)
    await one.stop()
    await wait_until(lambda: seen[-1] == {})
    for task in (following, running):
        task.cancel()
    await asyncio.gather(following, running, return_exceptions=True)
    await client.close()


@pytest.mark.requirement("sched.authority")
async def test_etcd_restarted_under_a_leader(short_folder: Path) -> None:
    async with EmbeddedEtcd(short_folder / "etcd") as first:
        port = first.port
    server = EmbeddedEtcd(short_folder / "etcd", port=port)
    await server.start()
    fields = Field(server.endpoints, "/restart/")
    try:
        one = fields.join("one")
        await wait_until(lambda: one.shards == ALL)
        server.kill()
        await wait_until(lambda: not one.shards, 10.0)
        await server.start()
        await wait_until(lambda: one.shards == ALL, 20.0)
        epochs: dict[int, int] = {}
        for shard, epoch in one.won:
            assert epoch > epochs.get(shard, 0)
            epochs[shard] = epoch
    finally:
        await fields.end()
        await server.stop()


@pytest.mark.requirement("sched.authority")
async def test_etcd_put_back_to_before_shards_moved_is_noticed_by_members_whose_sessions_live(short_folder: Path) -> None:
    data, kept = short_folder / "etcd" / "data", short_folder / "kept"
    async with EmbeddedEtcd(short_folder / "etcd", fsync=False) as first:
        port = first.port
        fields = Field(first.endpoints, "/rewound/")
        one, two = (fields.join(name, ttl_ms=40_000, orphan_ms=1_000) for name in ("one", "two"))
        await wait_until(lambda: len(one.shards) + len(two.shards) == 64 and min(len(one.shards), len(two.shards)) > 16)
        await wait_until(lambda: len(one.elections.board.leaders) == len(two.elections.board.leaders) == 64)
    shutil.copytree(data, kept)
    server = EmbeddedEtcd(short_folder / "etcd", port=port, fsync=False)
    try:
        await server.start()
        moved = dict.fromkeys(sorted(one.shards)[:5], "two")
        await wait_until(lambda: one.shards and two.shards, 10.0)
        assert await one.elections.hand_over(moved) == set(moved)
        await wait_until(lambda: moved.keys() <= two.shards and len(one.shards) + len(two.shards) == 64, 10.0)
        await server.stop()
        shutil.rmtree(data)
        shutil.copytree(kept, data)
        server = EmbeddedEtcd(short_folder / "etcd", port=port, fsync=False)
        await server.start()
        direct = EtcdClient(server.endpoints, LoopClock())

        async def as_etcd_says() -> bool:
            keys = (await direct.prefix(b"/rewound/shards/")).kvs
            said = {int(kv.key.rpartition(b"/")[2]): kv.create_revision for kv in keys}
            boards = [{s: leader.epoch for s, leader in m.elections.board.leaders.items()} for m in (one, two)]
            led = one.elections.leading | two.elections.leading
            return not one.shards & two.shards and led.keys() == ALL and led == said == boards[0] == boards[1]

        await wait_until(as_etcd_says, 20.0, what="who leads what, as etcd says")
        await direct.close()
    finally:
        await fields.end()
        await server.stop()


async def test_a_watch_resumes_without_a_gap(etcd_server: list[str], etcd_prefix: str) -> None:
    port = int(etcd_server[0].rpartition(":")[2])
    clock = LoopClock()
    async with FaultProxy(port) as proxy:
        behind = EtcdClient([f"127.0.0.1:{proxy.port}"], clock)
        direct = EtcdClient(etcd_server, clock)
        prefix = etcd_prefix.encode()
        start = (await direct.prefix(prefix)).header.revision + 1
        seen: list[bytes] = []

        async def follow() -> None:
            async for events in behind.watch(prefix, prefix + b"\xff", start):
                seen.extend(event.kv.key.removeprefix(prefix) for event in events)

        following = asyncio.create_task(follow())
        for n in range(30):
            await direct.put(prefix + b"%02d" % n, b"v")
            if n % 10 == 5:
                proxy.cut()
        await wait_until(lambda: len(seen) >= 30, 10.0)
        assert seen == [b"%02d" % n for n in range(30)]
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await behind.close()
        await direct.close()


async def test_a_dead_endpoint_is_left_for_the_next(etcd_server: list[str], etcd_prefix: str) -> None:
    clock = LoopClock()
    client = EtcdClient(["127.0.0.1:1", *etcd_server], clock, timeout_ms=500)
    assert await client.put(f"{etcd_prefix}k".encode(), b"v") > 0
    session = Session(client, clock, ttl_ms=3_000)
    await session.open()
    assert session.alive
    await session.close()
    assert not session.alive
    await client.close()
