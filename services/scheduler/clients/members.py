"""Live scheduler processes and shard leaders as etcd says them; shards given to one.

Can go wrong: the board is late, or etcd is away. What cannot be said to etcd is refused
AUTHORITY_UNREACHABLE, and nothing is decided.
"""

import asyncio
from collections.abc import Collection, Mapping

import grpc

from libs.authority import EtcdUnavailable, ShardElections
from libs.kernel.refusal import unreachable

NOW_S = 1.0


class EtcdMembers:
    """Satisfies `app.hand_over.Members`, once the elections are known."""

    def __init__(self) -> None:
        self._elections: ShardElections | None = None

    def open(self, elections: ShardElections) -> None:
        """From now on elections are known."""
        self._elections = elections

    def members(self) -> Mapping[str, str]:
        """Live processes with their addresses."""
        found = {} if self._elections is None else self._elections.board.members
        return {name: member.address for name, member in found.items()}

    async def members_now(self) -> Mapping[str, str]:
        """Live processes with their addresses, as etcd itself says at this moment, beside those heard of here; these alone
        where it does not answer within a second."""
        known = self.members()
        if self._elections is None:
            return known
        try:
            async with asyncio.timeout(NOW_S):
                now = await self._elections.board.named()
        except (EtcdUnavailable, grpc.aio.AioRpcError, TimeoutError):
            return known
        return {**known, **{name: member.address for name, member in now.items()}}

    def leaders(self) -> Mapping[int, tuple[str, int]]:
        """Shard → who was elected, and the create revision of that."""
        found = {} if self._elections is None else self._elections.board.leaders
        return {shard: (leader.member_id, leader.epoch) for shard, leader in found.items()}

    async def give(self, moves: Mapping[int, str]) -> set[int]:
        """Gives shards to members; those for which it stands."""
        try:
            return await self._known().hand_over(moves)
        except EtcdUnavailable:
            raise unreachable("etcd") from None

    async def take_back(self, shards: Collection[int]) -> set[int]:
        """Shards belong to whom hashing says again; those that had been given."""
        try:
            return await self._known().take_back(shards)
        except (EtcdUnavailable, grpc.aio.AioRpcError):
            raise unreachable("etcd") from None

    def _known(self) -> ShardElections:
        if self._elections is None:
            raise unreachable("etcd")
        return self._elections
