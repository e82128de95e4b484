"""Authoritative for what etcd says of members and shard leaders, and for which member should lead which shard.

Can go wrong: taking the board for the truth. It may be late; forwarding to a former leader is refused by that leader, and
winning is decided by etcd's compare and create, then by the shard's row.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass

import grpc
from runway.internal.etcd.v1 import etcd_pb2 as pb

from libs.authority.client import Compacted, EtcdClient, EtcdUnavailable, Rewound, prefix_end

_log = logging.getLogger("runway.authority")
AGAIN_S = 0.1
"""Between a break of the watch and the next look at everything."""


@dataclass(frozen=True, slots=True)
class Member:
    """A process that takes part."""

    member_id: str
    address: str
    lease: int


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a shard. `epoch` is the create revision of its key."""

    member_id: str
    address: str
    epoch: int
    lease: int


def preferred(shard: int, members: Collection[str]) -> str | None:
    """Rendezvous hashing: the member that should lead a shard; each joins and leaves with about its share, no more."""
    return max(members, key=lambda member: hashlib.sha256(f"{member} {shard}".encode()).digest(), default=None)


def value_of(member_id: str, address: str) -> bytes:
    """What a member's and a leader's key hold."""
    return json.dumps({"member": member_id, "address": address}, separators=(",", ":")).encode()


def unforeseen(problem: grpc.aio.AioRpcError) -> None:
    """etcd answered otherwise than that it is away: an alarm. It is asked again, and the session goes on."""
    _log.error("etcd answers what nobody foresaw, and is asked again: %s %s", problem.code().name, problem.details())


class Board:
    """Members and leaders below a prefix, kept up to date by a watch."""

    def __init__(self, client: EtcdClient, prefix: str) -> None:
        self._client = client
        self._root = prefix.rstrip("/")
        self.members: dict[str, Member] = {}
        self.leaders: dict[int, Leader] = {}
        self.moves: dict[int, str] = {}
        """Shards that an operator gave to a member; each goes with the session of that member."""
        self.synced = False
        self.revision = 0
        self.version = 0
        self._changed = asyncio.Condition()

    def member_key(self, member_id: str) -> bytes:
        """Where a member registers."""
        return f"{self._root}/members/{member_id}".encode()

    def shard_key(self, shard: int) -> bytes:
        """Whose creation is the election of a shard."""
        return f"{self._root}/shards/{shard}".encode()

    def move_key(self, shard: int) -> bytes:
        """Where it stands that an operator gave a shard to a member."""
        return f"{self._root}/moves/{shard}".encode()

    def owner(self, shard: int) -> str | None:
        """The member that should lead a shard: whom an operator gave it to while that one lives, else by hashing."""
        moved = self.moves.get(shard)
        return moved if moved in self.members else preferred(shard, self.members)

    async def run(self) -> None:
        """Keeps the board current until cancelled. Raises EtcdUnavailable when it cannot even be listed at first, and Rewound
        when etcd was put back to the past: what is on the board, and what we believe to hold, may then be of no time at all.

        After each break of the watch everything is listed anew: an etcd that was put back, and has got as far again since,
        would say nothing of what became otherwise.
        """
        prefix = f"{self._root}/".encode()
        self.synced = False
        self.revision = await self._list(prefix)
        self.synced = True
        while True:
            await self._tell()
            try:
                async for events in self._client.watch(prefix, prefix_end(prefix), self.revision + 1, resumes=False):
                    for event in events:
                        if event.type == pb.Event.EVENT_TYPE_DELETE:
                            self._drop(event.kv.key)
                        else:
                            self._put(event.kv)
                        self.revision = max(self.revision, event.kv.mod_revision)
                    await self._tell()
            except Compacted:
                pass
            await self._list_again(prefix)

    async def _list(self, prefix: bytes) -> int:
        """Everything as it is; its revision."""
        listed = await self._client.prefix(prefix)
        self.members, self.leaders, self.moves = {}, {}, {}
        for kv in listed.kvs:
            self._put(kv)
        return int(listed.header.revision)

    async def named(self) -> dict[str, Member]:
        """Members as etcd itself says now: one that registered a moment ago may not be on the board yet."""
        prefix = f"{self._root}/members/".encode()
        found = [json.loads(kv.value) | {"lease": kv.lease} for kv in (await self._client.prefix(prefix)).kvs]
        return {said["member"]: Member(said["member"], said["address"], said["lease"]) for said in found}

    async def _list_again(self, prefix: bytes) -> None:
        """Once etcd answers: whether we still have a session then is not decided here."""
        while True:
            await asyncio.sleep(AGAIN_S)
            try:
                revision = await self._list(prefix)
            except EtcdUnavailable:
                continue
            except grpc.aio.AioRpcError as problem:  # no reason to give up what is led: the session says whether that is ours
                unforeseen(problem)
                continue
            if revision < self.revision:
                raise Rewound(f"etcd is at revision {revision}, and {self.revision} was seen")
            self.revision = revision
            return

    async def observe(self) -> AsyncIterator[dict[int, Leader]]:
        """Shard to leader, now and at each change."""
        seen: dict[int, Leader] | None = None
        while True:
            version = self.version
            if self.synced and self.leaders != seen:
                seen = dict(self.leaders)
                yield dict(seen)
            else:
                await self.newer(version, 60.0)

    async def newer(self, version: int, timeout_s: float) -> None:
        """Waits until the board is newer than this version, or the time has passed."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self.version > version)
        except TimeoutError:
            return

    async def _tell(self) -> None:
        async with self._changed:
            self.version += 1
            self._changed.notify_all()

    def _put(self, kv: pb.KeyValue) -> None:
        kind, name = self._parts(kv.key)
        said = json.loads(kv.value)
        if kind == "members":
            self.members[name] = Member(said["member"], said["address"], kv.lease)
        elif kind == "shards":
            self.leaders[int(name)] = Leader(said["member"], said["address"], kv.create_revision, kv.lease)
        elif kind == "moves":
            self.moves[int(name)] = said["member"]

    def _drop(self, key: bytes) -> None:
        kind, name = self._parts(key)
        if kind == "members":
            self.members.pop(name, None)
        elif kind == "shards":
            self.leaders.pop(int(name), None)
        elif kind == "moves":
            self.moves.pop(int(name), None)

    def _parts(self, key: bytes) -> tuple[str, str]:
        kind, _, name = key.decode().removeprefix(f"{self._root}/").partition("/")
        return kind, name
