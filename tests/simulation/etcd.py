"""etcd's server, simulated: keys, revisions, leases and watches on virtual time, behind the shipped client and elections.

Simulated and not real because its faults are the point: leases that expire while their holder is paused, a quorum that is away, a
restore from an older snapshot, each at a moment that the seed names and a replay finds again.

Can go wrong: kinder than etcd. A lease ends at its deadline; a restored store forgets revisions that clients have seen, and
a watch from the future says nothing.
"""

import asyncio
import copy
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import Message
from runway.internal.etcd.v1 import etcd_pb2 as pb

from tests.simulation.loop import Process
from tests.simulation.network import Answer, Network

ADDRESS = "etcd:2379"
_AWAY = Answer(code=grpc.StatusCode.UNAVAILABLE, details="etcdserver: no leader")


@dataclass
class _Lease:
    ttl_s: float
    ends_at: float


@dataclass
class _State:
    revision: int = 1
    keys: dict[bytes, pb.KeyValue] = field(default_factory=dict)
    leases: dict[int, _Lease] = field(default_factory=dict)
    events: list[pb.Event] = field(default_factory=list)


class EtcdServer:
    """One store."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.loop = network.loop
        self.holders: dict[int, str] = {}
        """Lease → name of the process that asked for it."""
        self.away = False
        self.cut: set[str] = set()
        """Processes that do not hear etcd."""
        self._state = _State()
        self._snapshot = copy.deepcopy(self._state)
        self._lease_numbers = 1_000
        self._streams: list[WatchCall] = []
        self._tick()

    # -- faults

    def snapshot(self) -> None:
        """What a later restore goes back to."""
        self._snapshot = copy.deepcopy(self._state)

    def restore(self) -> None:
        """The store as it was at the snapshot; streams break, leases begin anew."""
        self._state = copy.deepcopy(self._snapshot)
        self._renew_all()
        self._break_streams()

    def lose_quorum(self) -> None:
        """Nobody is answered, and nothing expires."""
        self.away = True
        self._break_streams()

    def regain_quorum(self) -> None:
        """A new leader gives every lease its whole life again."""
        self.away = False
        self._renew_all()

    def expire_all(self) -> None:
        """Every lease ends at once, whatever their holders believe."""
        for lease in list(self._state.leases):
            self._end_lease(lease)

    def expire_of(self, name: str) -> None:
        """The leases of one process end."""
        for lease in [lease for lease in self._state.leases if self.holders.get(lease) == name]:
            self._end_lease(lease)

    def _renew_all(self) -> None:
        for lease in self._state.leases.values():
            lease.ends_at = self.loop.time() + lease.ttl_s

    def _break_streams(self) -> None:
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.broken(_AWAY)

    def _tick(self) -> None:
        if not self.away:
            for number, lease in list(self._state.leases.items()):
                if lease.ends_at <= self.loop.time():
                    self._end_lease(number)
        self.loop.later(0.25, self._tick)

    # -- the store

    def answer(self, method: str, request: Message) -> Message | Answer:
        """One unary call."""
        if self.away:
            return _AWAY
        handle: Callable[[Any], Message | Answer] = getattr(self, f"_{method.rpartition('/')[2].lower()}")
        return handle(request)

    def _header(self) -> pb.ResponseHeader:
        return pb.ResponseHeader(cluster_id=1, member_id=1, revision=self._state.revision, raft_term=1)

    def _range(self, asked: pb.RangeRequest) -> pb.RangeResponse:
        found = [kv for key, kv in sorted(self._state.keys.items()) if _within(key, asked.key, asked.range_end)]
        return pb.RangeResponse(header=self._header(), kvs=found, count=len(found))

    def _put(self, asked: pb.PutRequest) -> Message | Answer:
        if asked.lease and asked.lease not in self._state.leases:
            return Answer(code=grpc.StatusCode.NOT_FOUND, details="etcdserver: requested lease not found")
        self._state.revision += 1
        self._write(asked)
        return pb.PutResponse(header=self._header())

    def _write(self, asked: pb.PutRequest) -> None:
        revision, before = self._state.revision, self._state.keys.get(asked.key)
        created = before.create_revision if before else revision
        version = before.version + 1 if before else 1
        kv = pb.KeyValue(
            key=asked.key, value=asked.value, create_revision=created, mod_revision=revision, version=version, lease=asked.lease
        )
        self._state.keys[asked.key] = kv
        self._tell(pb.Event(kv=kv))

    def _deleterange(self, asked: pb.DeleteRangeRequest) -> pb.DeleteRangeResponse:
        gone = [key for key in sorted(self._state.keys) if _within(key, asked.key, asked.range_end)]
        if gone:
            self._state.revision += 1
            self._drop(gone)
        return pb.DeleteRangeResponse(header=self._header(), deleted=len(gone))

    def _drop(self, keys: list[bytes]) -> None:
        for key in keys:
            del self._state.keys[key]
            dropped = pb.KeyValue(key=key, mod_revision=self._state.revision)
            self._tell(pb.Event(type=pb.Event.EVENT_TYPE_DELETE, kv=dropped))

    def _txn(self, asked: pb.TxnRequest) -> Message | Answer:
        holds = all(self._compares(condition) for condition in asked.compare)
        ops = asked.success if holds else asked.failure
        puts = [op.request_put for op in ops if op.WhichOneof("request") == "request_put"]
        if any(put.lease and put.lease not in self._state.leases for put in puts):
            return Answer(code=grpc.StatusCode.NOT_FOUND, details="etcdserver: requested lease not found")
        writes = [op for op in ops if op.WhichOneof("request") != "request_range"]
        self._state.revision += bool(writes)
        responses = []
        for op in ops:
            match op.WhichOneof("request"):
                case "request_put":
                    self._write(op.request_put)
                    responses.append(pb.ResponseOp(response_put=pb.PutResponse(header=self._header())))
                case "request_delete_range":
                    asked_keys = op.request_delete_range
                    gone = [key for key in sorted(self._state.keys) if _within(key, asked_keys.key, asked_keys.range_end)]
                    self._drop(gone)
                    responses.append(pb.ResponseOp(response_delete_range=pb.DeleteRangeResponse(deleted=len(gone))))
                case _:
                    responses.append(pb.ResponseOp(response_range=self._range(op.request_range)))
        return pb.TxnResponse(header=self._header(), succeeded=holds, responses=responses)

    def _compares(self, condition: pb.Compare) -> bool:
        assert condition.target == pb.Compare.COMPARE_TARGET_CREATE, "only create revisions are compared"
        found = self._state.keys.get(condition.key)
        return (found.create_revision if found else 0) == condition.create_revision

    def _leasegrant(self, asked: pb.LeaseGrantRequest) -> pb.LeaseGrantResponse:
        self._lease_numbers += 1
        self._state.leases[self._lease_numbers] = _Lease(asked.ttl, self.loop.time() + asked.ttl)
        return pb.LeaseGrantResponse(header=self._header(), id=self._lease_numbers, ttl=asked.ttl)

    def _leaserevoke(self, asked: pb.LeaseRevokeRequest) -> Message | Answer:
        if asked.id not in self._state.leases:
            return Answer(code=grpc.StatusCode.NOT_FOUND, details="etcdserver: requested lease not found")
        self._end_lease(asked.id)
        return pb.LeaseRevokeResponse(header=self._header())

    def renew(self, number: int) -> int:
        """Seconds that a lease lives now; zero when it is gone."""
        lease = self._state.leases.get(number)
        if lease is None:
            return 0
        lease.ends_at = self.loop.time() + lease.ttl_s
        return int(lease.ttl_s)

    def _end_lease(self, number: int) -> None:
        self._state.leases.pop(number, None)
        gone = [key for key, kv in sorted(self._state.keys.items()) if kv.lease == number]
        if gone:
            self._state.revision += 1
            self._drop(gone)

    # -- watches

    def open(self, stream: "WatchCall") -> None:
        """Begins to tell a watcher, from the revision that it asks for."""
        asked = stream.asked
        self._streams.append(stream)
        stream.news(pb.WatchResponse(header=self._header(), created=True))
        old = [e for e in self._state.events if e.kv.mod_revision >= asked.start_revision and stream.wants(e)]
        if old:
            stream.news(pb.WatchResponse(header=self._header(), events=old))

    def closed(self, stream: "WatchCall") -> None:
        """A watcher is gone."""
        if stream in self._streams:
            self._streams.remove(stream)

    def _tell(self, event: pb.Event) -> None:
        self._state.events.append(event)
        for stream in self._streams:
            if stream.wants(event) and event.kv.mod_revision >= stream.asked.start_revision:
                stream.news(pb.WatchResponse(header=self._header(), events=[event]))


def _within(key: bytes, first: bytes, end: bytes) -> bool:
    return key == first if not end else first <= key < end


class EtcdChannel:
    """A process's channel to the store; what it sends goes through the same bad network."""

    def __init__(self, server: EtcdServer, process: Process) -> None:
        self.server = server
        self.process = process

    async def close(self, grace: float | None = None) -> None:
        """Nothing is kept."""

    def hears(self) -> bool:
        """Whether the next message arrives."""
        return self.process.name not in self.server.cut and not self.server.network.loses(self.process)

    def unary_unary(self, method: str, **_: Any) -> Any:
        """One request, one answer."""

        async def call(request: Message, *, timeout: float, metadata: Any = None) -> Any:
            answers: asyncio.Queue[Any] = asyncio.Queue()
            if self.hears():
                self.server.loop.later(self.server.network.delay(self.process), self._arrive, method, request, answers)
            try:
                async with asyncio.timeout(timeout):
                    item = await answers.get()
            except TimeoutError:
                raise Answer(code=grpc.StatusCode.DEADLINE_EXCEEDED, details="Deadline Exceeded").error() from None
            if isinstance(item, Answer):
                raise item.error()
            return item

        return call

    def _arrive(self, method: str, request: Message, answers: asyncio.Queue[Any]) -> None:
        self.server.network.history.note("etcd", f"{self.process} {method.rpartition('/')[2]} {request.ByteSize()}")
        item = self.server.answer(method, copy.deepcopy(request))
        if isinstance(item, pb.LeaseGrantResponse):
            self.server.holders[item.id] = self.process.name
        if self.hears():
            self.server.loop.later(self.server.network.delay(self.process), answers.put_nowait, copy.deepcopy(item))

    def stream_stream(self, method: str, **_: Any) -> Any:
        """A watch, or renewals of a lease."""
        made = WatchCall if method.endswith("/Watch") else KeepAliveCall

        def call(*, metadata: Any = None) -> Any:
            return made(self)

        return call


class _Stream:
    """What both streams are: written to, read from, broken, cancelled. What is read comes in order."""

    def __init__(self, channel: EtcdChannel) -> None:
        self.channel = channel
        self.server = channel.server
        self.loop = channel.server.loop
        self.done = False
        self._read: asyncio.Queue[Any] = asyncio.Queue()
        self._last = 0.0

    async def read(self) -> Any:
        """The next message."""
        item = await self._read.get()
        if isinstance(item, Answer):
            self.done = True
            raise item.error()
        return item

    def _send(self, item: Any) -> None:
        if self.channel.process.name in self.server.cut:
            return
        self._last = max(self._last, self.loop.time() + self.server.network.delay(self.channel.process))
        with self.loop.acting_as(None):
            self.loop.call_at(self._last, self._deliver, copy.deepcopy(item), context=Context())

    def _deliver(self, item: Any) -> None:
        if not self.done:
            self.server.network.history.note("etcd", f"{type(item).__name__} for {self.channel.process}")
            self._read.put_nowait(item)

    def broken(self, how: Answer) -> None:
        """The stream ends with a status."""
        self._send(how)

    def cancel(self) -> None:
        """The reader is gone."""
        self.done = True


class KeepAliveCall(_Stream):
    """Renewals: each answer tells how long the lease lives."""

    async def write(self, request: pb.LeaseKeepAliveRequest) -> None:
        """Asks for a renewal."""
        if self.done:
            raise asyncio.InvalidStateError("the stream has ended")
        if self.channel.hears():
            self.loop.later(self.server.network.delay(self.channel.process), self._arrive, request.id)

    def _arrive(self, lease: int) -> None:
        if self.server.away:
            self._send(_AWAY)
        elif self.channel.hears():
            self._send(pb.LeaseKeepAliveResponse(id=lease, ttl=self.server.renew(lease)))


class WatchCall(_Stream):
    """News of keys."""

    asked: pb.WatchCreateRequest

    async def write(self, request: pb.WatchRequest) -> None:
        """Opens the watch."""
        self.asked = copy.deepcopy(request.create_request)
        if self.channel.hears():
            self.loop.later(self.server.network.delay(self.channel.process), self._arrive)

    def _arrive(self) -> None:
        if self.done:
            return
        if self.server.away:
            self._send(_AWAY)
        else:
            self.server.open(self)

    def wants(self, event: pb.Event) -> bool:
        """Whether it is about this watch's keys."""
        return _within(event.kv.key, self.asked.key, self.asked.range_end)

    def news(self, message: pb.WatchResponse) -> None:
        """Something for the reader."""
        self._send(message)

    def cancel(self) -> None:
        """See _Stream."""
        super().cancel()
        self.server.closed(self)
