"""Authoritative for which shards this process campaigns for, holds and gives back.

One session, one key a shard: `<prefix>/shards/<n>`, made by compare (create revision 0) and put under the session's lease;
its create revision is the authority epoch. Rendezvous hashing over the registered members says whose a shard is, so replicas
share them without talking to each other. A member takes its own at once, any shard that stays free for long as well, and
gives back what belongs to a live other member. An operator may give a shard to a member by a key beside that
(`<prefix>/moves/<n>`), put under that member's own session: it counts for as long as the member lives. A member that resigns
takes its own name out, so that everything it leads belongs to others at once, and stays to forward what still comes.

Order that must hold: `on_lost` ends before a key is given back, and is called before anything else when the session is
lost; `on_won` is where the caller confirms the epoch in the shard's row, and what it does not confirm is not led.

Can go wrong: etcd away (stepped down by our own clock, retried for ever); etcd restored to the past (the row refuses the
smaller epoch: the key is given back, asked for again later, and the caller raises the alarm; since keys of ours may be gone, or
back, while our session is in the past as well, the term ends as soon as a smaller revision is met).
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any

import grpc
from runway.internal.etcd.v1 import etcd_pb2 as pb

from libs.authority.client import EtcdClient, EtcdUnavailable
from libs.authority.session import Session
from libs.authority.state import Board, Leader, unforeseen, value_of
from libs.kernel.clock import Clock
from libs.kernel.ids import SHARDS

OnWon = Callable[[Mapping[int, int]], Awaitable[Collection[int]]]
"""Shards won with their create revisions → those whose epoch is confirmed in the shard's row. The others are given back."""
OnLost = Callable[[Collection[int], str], Awaitable[None]]
"""Shards no longer led, and why. Returns once nothing is done for them any more."""

_log = logging.getLogger("runway.authority")
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


class ShardElections:
    """Campaigns for shards on behalf of one process. `run` it; the callbacks are called from there."""

    def __init__(
        self,
        client: EtcdClient,
        clock: Clock,
        *,
        prefix: str,
        member_id: str,
        address: str,
        on_won: OnWon,
        on_lost: OnLost,
        shards: int = SHARDS,
        ttl_ms: int = 5_000,
        orphan_ms: int = 10_000,
    ) -> None:
        """`member_id` must be new for every process; `orphan_ms`: how long a shard of somebody else may stay free."""
        self._client = client
        self._clock = clock
        self._member_id = member_id
        self._address = address
        self._on_won = on_won
        self._on_lost = on_lost
        self._shards = shards
        self._ttl_ms = ttl_ms
        self._orphan_ms = orphan_ms
        self._session: Session | None = None
        self._held: dict[int, int] = {}
        self._winning: dict[int, int] = {}
        self._free_since: dict[int, int] = {}
        self._keep_until: dict[int, int] = {}
        self._not_before: dict[int, int] = {}
        self._seen_moves: dict[int, str] = {}
        self._resigned = False
        self._again = asyncio.Event()
        self._former_lease = 0
        self.board = Board(client, prefix)

    @property
    def leading(self) -> dict[int, int]:
        """Shards led now, with their epochs; empty from the moment our own clock says so."""
        return dict(self._held) if self._session is not None and self._session.alive else {}

    def leads(self, shard: int) -> int | None:
        """The epoch under which this process leads a shard now."""
        return self._held.get(shard) if self._session is not None and self._session.alive else None

    def leader(self, shard: int) -> Leader | None:
        """Who leads a shard, as last heard."""
        return self.board.leaders.get(shard)

    @property
    def session_alive(self) -> bool:
        """Whether the session lives by our own clock: what was won under it may be acted on."""
        return self._session is not None and self._session.judge()

    @property
    def round_trip_ms(self) -> int:
        """How long etcd took to answer the newest renewal."""
        return 0 if self._session is None else self._session.round_trip_ms

    def healthy(self) -> bool:
        """Whether the session lives and etcd has told us who leads what."""
        return self._session is not None and self._session.alive and self.board.synced

    async def observe(self) -> AsyncIterator[dict[int, Leader]]:
        """Shard to leader, now and at each change, across lost sessions."""
        async for leaders in self.board.observe():
            yield leaders

    def campaign_anew(self) -> None:
        """Gives everything up and campaigns under new epochs: the caller's database is another incarnation now."""
        self._again.set()

    async def hand_over(self, moves: Mapping[int, str]) -> set[int]:
        """Gives shards to live members (shard → member), whoever leads them now; those for which it stands in etcd."""
        leases = {shard: self.board.members[member].lease for shard, member in moves.items() if member in self.board.members}
        stood = await asyncio.gather(*(self._move(shard, moves[shard], lease) for shard, lease in leases.items()))
        return {shard for shard, done in zip(leases, stood, strict=True) if done}

    async def _move(self, shard: int, member: str, lease: int) -> bool:
        try:
            await self._client.put(self.board.move_key(shard), value_of(member, self.board.members[member].address), lease)
        except (grpc.aio.AioRpcError, KeyError):  # its session ended a moment ago: it can take nothing
            return False
        return True

    async def take_back(self, shards: Collection[int]) -> set[int]:
        """Shards belong to whom hashing says again; those that had been given to a member."""
        ordered = sorted(shards)
        counts = await asyncio.gather(*(self._client.delete(self.board.move_key(shard)) for shard in ordered))
        return {shard for shard, count in zip(ordered, counts, strict=True) if count}

    async def resign(self) -> bool:
        """Leaves everything to the other members, now; False where there are none, and nothing was left."""
        if not self.board.synced or not set(self.board.members) - {self._member_id}:
            return False
        self._resigned = True
        await self._client.delete(self.board.member_key(self._member_id))
        return True

    async def run(self) -> None:
        """Campaigns until cancelled; then gives back what it holds."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self._term()
                pause_s = _FIRST_PAUSE_S
            except (EtcdUnavailable, grpc.aio.AioRpcError) as problem:
                _log.warning("etcd: %s; campaigning again in %.1f s", problem, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def _term(self) -> None:
        """One session: from its lease to its loss."""
        session = Session(self._client, self._clock, ttl_ms=self._ttl_ms)
        await session.open()
        await self._revoke_former()
        self._again.clear()
        self.board.synced = False  # until it is listed anew
        self._session = session
        why = "stopping"
        try:
            why = await self._until_one_ends(session)
        finally:
            lost = self._held | self._winning
            self._held, self._winning, self._session = {}, {}, None
            if lost:
                _log.warning("%d shards are no longer led: %s", len(lost), why)
                await self._tell_lost(sorted(lost), why)
            self._former_lease = 0 if await session.close() else session.lease

    async def _revoke_former(self) -> None:
        """The lease of a term that ended while etcd was away would keep its shards from everybody until it dies."""
        former, self._former_lease = self._former_lease, 0
        if former:
            with contextlib.suppress(EtcdUnavailable):
                await self._client.revoke(former)

    async def _tell_lost(self, shards: Collection[int], why: str) -> None:
        try:
            await self._on_lost(shards, why)
        except Exception:  # whatever the caller could not end, the shard's row refuses
            _log.exception("giving up %d shards failed", len(shards))

    async def _until_one_ends(self, session: Session) -> str:
        """Runs the parts of a term until the first ends; says why."""
        parts: list[Coroutine[Any, Any, Any]] = [session.run(), self.board.run(), self._campaign(session), self._again.wait()]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for problem in ended:
            if isinstance(problem, Exception):
                _log.warning("the term of %s ends: %r", self._member_id, problem)
                return f"{type(problem).__name__}: {problem}"
        return "campaigning anew" if session.judge() else session.why

    async def _campaign(self, session: Session) -> None:
        if not self._resigned:
            name = self.board.member_key(self._member_id)
            await self._client.put(name, value_of(self._member_id, self._address), session.lease)
        self._free_since.clear()
        while session.judge():
            version = self.board.version
            if self.board.synced and (self._resigned or self._member_id in self.board.members):
                try:
                    await self._drop_taken()
                    await self._delete(self._left())
                    await self._give_back_others()
                    await self._take(session)
                except grpc.aio.AioRpcError as problem:  # keys that may be ours by now are found on the board, and given back
                    unforeseen(problem)
            await self.board.newer(version, min(self._orphan_ms, self._ttl_ms) / 4_000)

    async def _drop_taken(self) -> None:
        """What somebody deleted or took is no longer ours, once the board has seen later than our own win."""
        leaders, seen = self.board.leaders, self.board.revision
        still = {s for s, found in leaders.items() if (found.member_id, found.epoch) == (self._member_id, self._held.get(s))}
        gone = [s for s, epoch in self._held.items() if seen >= epoch and s not in still]
        await self._stop_leading(gone, "its key was taken or deleted")

    def _left(self) -> dict[int, int]:
        """Keys of ours for shards that we do not lead: giving them back failed, and our lease keeps them."""
        leaders = self.board.leaders
        return {s: found.epoch for s, found in leaders.items() if found.member_id == self._member_id and s not in self._held}

    async def _give_back_others(self) -> None:
        """Shards of live other members, unless taken for want of them a moment ago, and not moved since."""
        now_ms, moves = self._clock.monotonic_ms(), dict(self.board.moves)
        for shard in [s for s, member in moves.items() if self._seen_moves.get(s) != member]:
            self._keep_until.pop(shard, None)
        self._seen_moves = moves
        others = [s for s in self._held if self._is_anothers(s) and self._keep_until.get(s, 0) <= now_ms]
        held = {shard: self._held[shard] for shard in others}
        await self._stop_leading(others, "it belongs to another member")
        await self._delete(held)

    def _is_anothers(self, shard: int) -> bool:
        owner = self.board.owner(shard)
        return owner is not None and owner != self._member_id

    async def _stop_leading(self, shards: Collection[int], why: str) -> None:
        if not shards:
            return
        for shard in shards:
            del self._held[shard]
            self._keep_until.pop(shard, None)
        await self._tell_lost(sorted(shards), why)

    def _wanted(self) -> list[int]:
        """Free shards that are ours, or that were free for long."""
        now_ms, leaders = self._clock.monotonic_ms(), self.board.leaders
        wanted: list[int] = []
        if self._resigned:
            return wanted
        for shard in range(self._shards):
            if shard in leaders or shard in self._held:
                self._free_since.pop(shard, None)
                continue
            since_ms = self._free_since.setdefault(shard, now_ms)
            if self._not_before.get(shard, 0) > now_ms:
                continue
            if self.board.owner(shard) == self._member_id:
                wanted.append(shard)
            elif now_ms - since_ms >= self._orphan_ms:
                self._keep_until[shard] = now_ms + 10 * self._orphan_ms
                wanted.append(shard)
        return wanted

    async def _take(self, session: Session) -> None:
        wanted = self._wanted()
        if not wanted:
            return
        revisions = await asyncio.gather(*[self._create(session, shard) for shard in wanted])
        self._winning = {shard: rev for shard, rev in zip(wanted, revisions, strict=True) if rev is not None}
        if not self._winning or not session.alive:
            return
        try:
            confirmed = set(await self._on_won(dict(self._winning)))
        except Exception:
            _log.exception("winning %d shards was not confirmed", len(self._winning))
            confirmed = set()
        refused = {shard: rev for shard, rev in self._winning.items() if shard not in confirmed}
        self._held |= {shard: rev for shard, rev in self._winning.items() if shard in confirmed}
        self._winning = {}
        later_ms = self._clock.monotonic_ms() + self._ttl_ms
        self._not_before |= dict.fromkeys(refused, later_ms)
        await self._delete(refused)

    async def _create(self, session: Session, shard: int) -> int | None:
        """The create revision if the shard is ours now. A repeat after a lost answer finds our own key."""
        key = self.board.shard_key(shard)
        absent = pb.Compare(key=key, target=pb.Compare.COMPARE_TARGET_CREATE, create_revision=0)
        put = pb.PutRequest(key=key, value=value_of(self._member_id, self._address), lease=session.lease)
        answer = await self._client.txn(
            [absent],
            [pb.RequestOp(request_put=put)],
            [pb.RequestOp(request_range=pb.RangeRequest(key=key))],
            again=True,
        )
        if answer.succeeded:
            return answer.header.revision
        found = answer.responses[0].response_range.kvs
        return found[0].create_revision if found and found[0].lease == session.lease else None

    async def _delete(self, held: Mapping[int, int]) -> None:
        """Gives keys back, each only while it is still the one we made."""
        await asyncio.gather(*[self._delete_one(shard, epoch) for shard, epoch in held.items()])

    async def _delete_one(self, shard: int, epoch: int) -> None:
        key = self.board.shard_key(shard)
        mine = pb.Compare(key=key, target=pb.Compare.COMPARE_TARGET_CREATE, create_revision=epoch)
        drop = pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))
        with contextlib.suppress(EtcdUnavailable):  # the next round finds the key on the board
            await self._client.txn([mine], [drop], again=True)
