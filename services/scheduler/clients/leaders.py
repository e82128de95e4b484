"""Leaders of other shards: who they are, and calls forwarded to them. A worker talks to one replica, which asks the others.

Who leads is heard from etcd; a replica that hears no etcd reads the shards' rows instead, where each leader confirmed itself.
Else whoever is connected to a replica that was cut off would be told of no leader for as long as that lasts.

Can go wrong: a leader that changed a moment ago. It refuses NO_LEADER, and the caller repeats; nothing is decided by a replica
that does not lead.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

from google.protobuf.message import Message
from runway.internal.inbox.v1 import inbox_pb2
from runway.internal.scheduler.v1 import scheduler_internal_pb2 as internal_pb
from runway.internal.scheduler.v1.scheduler_internal_pb2_grpc import SchedulerInternalServiceStub

from libs.kernel.refusal import Refusal
from libs.runtime.peers import Peers
from services.scheduler.app.book import Book
from services.scheduler.domain.asker import NOBODY, Asker

M = TypeVar("M", bound=Message)


class LeaderLike(Protocol):
    """What an election says of a leader."""

    @property
    def member_id(self) -> str:
        """Its process."""
        ...

    @property
    def address(self) -> str:
        """Its control address."""
        ...


class Elected(Protocol):
    """Who leads what, as last heard."""

    def leader(self, shard: int) -> LeaderLike | None:
        """The leader of a shard."""
        ...

    def healthy(self) -> bool:
        """Whether etcd is heard."""
        ...


class Leaders:
    """Forwards to the control port of other replicas."""

    def __init__(self, peers: Peers, book: Book) -> None:
        self._peers = peers
        self._book = book
        self._elected: Elected | None = None
        self._member_id = ""
        self._confirmed: dict[int, tuple[str, str]] = {}

    def confirmed(self, leaders: Mapping[int, tuple[str, str]]) -> bool:
        """Who leads as the rows say (holder, address), while etcd is not heard; none: it is heard. Whether this is news."""
        news = self._confirmed != leaders
        self._confirmed = dict(leaders)
        return news

    def campaign(self, elected: Elected, member_id: str) -> None:
        """From now on elections are known."""
        self._elected, self._member_id = elected, member_id

    def address(self, shard: int) -> str | None:
        """The control address of the other process that leads a shard."""
        if self._confirmed and self._elected is not None and not self._elected.healthy():
            holder, address = self._confirmed.get(shard, ("", ""))
            return address if address and holder != self._member_id else None
        leader = self._elected.leader(shard) if self._elected is not None else None
        return None if leader is None or leader.member_id == self._member_id else leader.address

    def by_address(self, shards: Iterable[int]) -> dict[str, set[int]]:
        """Shards that other processes lead, by address."""
        found: dict[str, set[int]] = {}
        for shard in shards:
            if self._book.epoch(shard) is None and (address := self.address(shard)) is not None:
                found.setdefault(address, set()).add(shard)
        return found

    async def forward(
        self,
        address: str,
        verb: str,
        request: Message,
        answer: type[M],
        shards: Iterable[int],
        who: Asker,
        *,
        deadline_ms: int,
    ) -> M:
        """One call at another replica. Raises its refusal."""
        stub = SchedulerInternalServiceStub(self._peers.channel(address))
        asked = internal_pb.ForwardRequest(
            verb=verb,
            request=request.SerializeToString(),
            tenant=who.owner,
            project=who.project,
            fleet=who.fleet,
            shards=sorted(shards),
        )
        response = await self._peers.ask(stub.Forward, asked, deadline_ms=deadline_ms)
        return answer.FromString(response.response)

    async def deliver(self, events: Mapping[int, tuple[int, bytes]]) -> dict[int, inbox_pb2.EventVerdict]:
        """Events (place → shard, bytes) to the leaders of their shards; where none is known they come again."""
        by_address: dict[str, list[int]] = {}
        verdicts: dict[int, inbox_pb2.EventVerdict] = {}
        for place, (shard, _) in events.items():
            address = self.address(shard)
            if address is None:
                verdicts[place] = inbox_pb2.EventVerdict(verdict=inbox_pb2.VERDICT_RETRY, reason="no leader is known")
            else:
                by_address.setdefault(address, []).append(place)
        parts = await asyncio.gather(*(self._deliver(address, places, events) for address, places in by_address.items()))
        for part in parts:
            verdicts |= part
        return verdicts

    async def _deliver(
        self, address: str, places: list[int], events: Mapping[int, tuple[int, bytes]]
    ) -> dict[int, inbox_pb2.EventVerdict]:
        request = inbox_pb2.DeliverRequest(service="scheduler", events=[events[place][1] for place in places])
        shards = {events[place][0] for place in places}
        try:
            answer = await self.forward(
                address, "deliver", request, inbox_pb2.DeliverResponse, shards, NOBODY, deadline_ms=5_000
            )
        except Refusal as no:
            again = inbox_pb2.EventVerdict(verdict=inbox_pb2.VERDICT_RETRY, reason=no.message)
            return dict.fromkeys(places, again)
        return dict(zip(places, answer.verdicts, strict=True))
