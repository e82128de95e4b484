"""Authoritative for how we speak to etcd v3: method paths, endpoints, what is repeated, watches that resume.

Endpoints are sticky: one is used until it fails or falls silent, then the next. A balancing channel would keep sending its
share of calls into a member that is cut off. Calls ask for a leader (`hasleader`), so such a member fails instead of hanging.

Can go wrong: a write whose answer was lost. Only requests that may be repeated are repeated here (`again=True`); compare
and create makes the elections' own writes of that kind.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from runway.internal.etcd.v1 import etcd_pb2 as pb

from libs.kernel.clock import Clock

_METADATA = (("hasleader", "true"),)
_PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_OPTIONS = (
    ("grpc.keepalive_time_ms", 6_000),  # etcd answers pings under five seconds with GOAWAY
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)
_METHODS: dict[str, tuple[str, type[Message]]] = {
    "Range": ("/etcdserverpb.KV/Range", pb.RangeResponse),
    "Put": ("/etcdserverpb.KV/Put", pb.PutResponse),
    "DeleteRange": ("/etcdserverpb.KV/DeleteRange", pb.DeleteRangeResponse),
    "Txn": ("/etcdserverpb.KV/Txn", pb.TxnResponse),
    "LeaseGrant": ("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantResponse),
    "LeaseRevoke": ("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeResponse),
}
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
R = TypeVar("R", bound=Message)


class EtcdUnavailable(Exception):
    """No endpoint answered in time. A write may have happened."""


class Compacted(Exception):
    """The revision a watch asked for is gone: list again and watch from there."""


class Rewound(Exception):
    """etcd was put back to before what was seen of it: whatever was remembered of it is void, one's own keys included."""


def prefix_end(prefix: bytes) -> bytes:
    """One past the last key that starts with the prefix."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b"\0"


class _Endpoint:
    """One etcd member: its channel and the calls on it."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        options = list(_OPTIONS)
        self.channel = (
            grpc.aio.insecure_channel(address, options)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials, options)
        )
        self.calls = {
            name: self.channel.unary_unary(path, request_serializer=_to_bytes, response_deserializer=answer.FromString)
            for name, (path, answer) in _METHODS.items()
        }
        self.watch = self.channel.stream_stream(
            "/etcdserverpb.Watch/Watch", request_serializer=_to_bytes, response_deserializer=pb.WatchResponse.FromString
        )
        self.keep_alive = self.channel.stream_stream(
            "/etcdserverpb.Lease/LeaseKeepAlive",
            request_serializer=_to_bytes,
            response_deserializer=pb.LeaseKeepAliveResponse.FromString,
        )


def _to_bytes(message: Message) -> bytes:
    return message.SerializeToString()


class EtcdClient:
    """Calls to an etcd cluster. `endpoints` are `host:port`."""

    def __init__(
        self,
        endpoints: Sequence[str],
        clock: Clock,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        timeout_ms: int = 1_000,
        patience_ms: int = 4_000,
    ) -> None:
        """`timeout_ms` for one try, `patience_ms` for all tries of a call that may be repeated."""
        if not endpoints:
            raise ValueError("an etcd client needs an endpoint")
        self._endpoints = [_Endpoint(address, credentials) for address in endpoints]
        self._current = 0
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._patience_ms = patience_ms

    async def close(self) -> None:
        """Closes every channel."""
        for endpoint in self._endpoints:
            await endpoint.channel.close()

    async def range(self, key: bytes, end: bytes = b"") -> pb.RangeResponse:
        """Keys from `key` up to `end`, as of now."""
        return await self._call("Range", pb.RangeRequest(key=key, range_end=end), pb.RangeResponse, again=True)

    async def prefix(self, prefix: bytes) -> pb.RangeResponse:
        """Keys that start with the prefix."""
        return await self.range(prefix, prefix_end(prefix))

    async def put(self, key: bytes, value: bytes, lease: int = 0) -> int:
        """Writes a key; the revision."""
        request = pb.PutRequest(key=key, value=value, lease=lease)
        return (await self._call("Put", request, pb.PutResponse, again=True)).header.revision

    async def delete(self, key: bytes) -> int:
        """Deletes a key; how many there were."""
        return (await self._call("DeleteRange", pb.DeleteRangeRequest(key=key), pb.DeleteRangeResponse, again=True)).deleted

    async def txn(
        self,
        compare: Sequence[pb.Compare],
        success: Sequence[pb.RequestOp],
        failure: Sequence[pb.RequestOp] = (),
        *,
        again: bool,
    ) -> pb.TxnResponse:
        """Compares, then does. `again`: whether a repeat after a lost answer is harmless."""
        request = pb.TxnRequest(compare=compare, success=success, failure=failure)
        return await self._call("Txn", request, pb.TxnResponse, again=again)

    async def grant(self, ttl_s: int) -> int:
        """A new lease. A repeat leaves one behind that dies by itself."""
        return (await self._call("LeaseGrant", pb.LeaseGrantRequest(ttl=ttl_s), pb.LeaseGrantResponse, again=True)).id

    async def revoke(self, lease: int) -> None:
        """Ends a lease and its keys; one that is gone already is fine."""
        try:
            await self._call("LeaseRevoke", pb.LeaseRevokeRequest(id=lease), pb.LeaseRevokeResponse, again=True)
        except grpc.aio.AioRpcError as problem:
            if problem.code() is not grpc.StatusCode.NOT_FOUND:
                raise

    async def _call(self, name: str, request: Message, answer: type[R], *, again: bool) -> R:
        end_ms = self._clock.monotonic_ms() + self._patience_ms
        pause_s = _FIRST_PAUSE_S
        while True:
            used = self._current
            try:
                reply: R = await self._endpoints[used].calls[name](request, timeout=self._timeout_ms / 1000, metadata=_METADATA)
                return reply
            except grpc.aio.AioRpcError as problem:
                if problem.code() not in _PASSING:
                    raise
                self._move_on(used)
                if not again or self._clock.monotonic_ms() + pause_s * 1000 > end_ms:
                    raise EtcdUnavailable(f"{name}: {problem.code().name} {problem.details()}") from problem
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _move_on(self, failed: int) -> None:
        if self._current == failed:
            self._current = (failed + 1) % len(self._endpoints)

    async def keep_alive(self, lease: int) -> AsyncGenerator[int, None]:
        """Renews a lease each time the next value is asked for; yields the seconds left, zero when it is gone.

        Raises EtcdUnavailable when the stream breaks or stays silent; call again then, on the next endpoint.
        """
        used = self._current
        call: Any = self._endpoints[used].keep_alive(metadata=_METADATA)
        try:
            while True:
                async with asyncio.timeout(self._timeout_ms / 1000):
                    await call.write(pb.LeaseKeepAliveRequest(id=lease))
                    answer = await call.read()
                if answer is grpc.aio.EOF:
                    raise EtcdUnavailable("the lease stream ended")
                yield answer.ttl
        except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError) as problem:
            self._move_on(used)  # InvalidStateError: a write on a stream that has already finished
            raise EtcdUnavailable("the lease stream broke") from problem
        except EtcdUnavailable:
            self._move_on(used)
            raise
        finally:
            call.cancel()

    async def watch(
        self, key: bytes, end: bytes, start_revision: int, *, resumes: bool = True
    ) -> AsyncGenerator[list[pb.Event], None]:
        """Changes from `start_revision` on, in order and without gaps, whatever streams break; Compacted when they are gone.

        An etcd that was put back to an earlier time says nothing until it has got as far again: who must notice that looks
        again at everything after each break (`resumes=False` ends there).
        """
        following = start_revision
        pause_s = _FIRST_PAUSE_S
        while True:
            used = self._current
            call: Any = self._endpoints[used].watch(metadata=_METADATA)
            wanted = pb.WatchCreateRequest(key=key, range_end=end, start_revision=following, progress_notify=True)
            try:
                await call.write(pb.WatchRequest(create_request=wanted))
                while (news := await call.read()) is not grpc.aio.EOF:
                    if news.compact_revision:
                        raise Compacted(f"revision {following} is gone, {news.compact_revision} is the first")
                    if news.canceled:
                        break
                    pause_s = _FIRST_PAUSE_S
                    if not news.created:
                        following = max(following, news.header.revision + 1)
                    if news.events:
                        yield list(news.events)
                self._move_on(used)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                self._move_on(used)
            finally:
                call.cancel()
            if not resumes:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
