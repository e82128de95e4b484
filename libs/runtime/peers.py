"""Authoritative for how one service reaches another: in process where it is hosted here, with the same bytes and the same
refusals as over the wire; else over a channel with the installation's secret.

Can go wrong: code that works only in one process. The in-process path serialises, parses and validates as the wire does,
runs the handler outside the caller's context, and turns faults into INTERNAL, so that splitting a process changes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from runway.internal.fence.v1 import fence_pb2, fence_pb2_grpc
from runway.internal.inbox.v1 import inbox_pb2, inbox_pb2_grpc

from libs.kernel.refusal import Reason, Refusal
from libs.rpc.batcher import internal
from libs.rpc.channels import CarryingChannel, open_channel, remaining_s
from libs.rpc.status import refusal_of
from libs.rpc.validation import check_message
from libs.runtime.routing import Router
from libs.runtime.settings import Surroundings
from libs.telemetry.logs import get_logger
from libs.telemetry.traces import trace_id_for_error

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)
S = TypeVar("S")
log = get_logger(__name__)


class Peers:
    """The other services, as one of them sees them."""

    def __init__(self, surroundings: Surroundings, router: Router, secret: str) -> None:
        self._surroundings = surroundings
        self._router = router
        self._secret = secret
        self._here: dict[str, str] = {}
        self._channels: dict[str, CarryingChannel] = {}

    def bound(self, addresses: dict[str, str]) -> None:
        """Knows where this process itself listens: public calls to services hosted here go there."""
        self._here = addresses

    async def deliver(
        self, service: str, request: inbox_pb2.DeliverRequest, *, deadline_ms: int | None = None
    ) -> inbox_pb2.DeliverResponse:
        """Events for a service; raises a Refusal when nothing was judged."""
        if self._router.hosts(service):
            return await self._inside(self._router.deliver, request, inbox_pb2.DeliverResponse, deadline_ms)
        return await self._outside(self.stub(service, inbox_pb2_grpc.InboxServiceStub).Deliver, request, deadline_ms)

    async def list_stuck(
        self, service: str, request: inbox_pb2.ListStuckRequest, *, deadline_ms: int | None = None
    ) -> inbox_pb2.ListStuckResponse:
        """What of a service does not move."""
        if self._router.hosts(service):
            return await self._inside(self._router.list_stuck, request, inbox_pb2.ListStuckResponse, deadline_ms)
        return await self._outside(self.stub(service, inbox_pb2_grpc.InboxServiceStub).ListStuck, request, deadline_ms)

    async def raise_fences(
        self, service: str, request: fence_pb2.RaiseFencesRequest, *, deadline_ms: int | None = None
    ) -> fence_pb2.RaiseFencesResponse:
        """Fences to merge at a point."""
        if self._router.hosts(service):
            return await self._inside(self._router.raise_fences, request, fence_pb2.RaiseFencesResponse, deadline_ms)
        stub = self.stub(service, fence_pb2_grpc.FenceServiceStub, "leaf")
        return await self._outside(stub.RaiseFences, request, deadline_ms)

    async def get_fences(
        self, service: str, request: fence_pb2.GetFencesRequest, *, deadline_ms: int | None = None
    ) -> fence_pb2.GetFencesResponse:
        """Fences read from their authority."""
        if self._router.hosts(service):
            return await self._inside(self._router.get_fences, request, fence_pb2.GetFencesResponse, deadline_ms)
        stub = self.stub(service, fence_pb2_grpc.FenceServiceStub, "leaf")
        return await self._outside(stub.GetFences, request, deadline_ms)

    def stub(self, service: str, make: Callable[[Any], S], port: str = "public") -> S:
        """A generated stub (an `…Stub` class) of another service. Its calls raise AioRpcError: `refusal_of` reads it."""
        address = self._here.get(port) if self._router.hosts(service) else self._surroundings.address(service, port)
        if address is None:
            infix = "" if port == "public" else f"{port.upper()}_"
            raise Refusal(
                Reason.AUTHORITY_UNREACHABLE,
                f"nobody told this process where {service} is",
                remedy=f"set RUNWAY_{service.upper()}_{infix}ADDRESS, or host {service} here",
                retry_after_ms=5_000,
            )
        return make(self.channel(address))

    def channel(self, address: str) -> CarryingChannel:
        """The channel to an address, opened once; it carries the installation's secret."""
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(address, secret=self._secret)
        return channel

    async def ask(self, call: Callable[..., Awaitable[A]], request: Message, *, deadline_ms: int | None = None) -> A:
        """One unary call of a stub's method (`stub.Method`), with refusals instead of gRPC errors."""
        return await self._outside(call, request, deadline_ms)

    async def close(self) -> None:
        """Closes every channel."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    @staticmethod
    async def _outside(call: Callable[..., Awaitable[A]], request: Message, deadline_ms: int | None) -> A:
        try:
            return await call(request, timeout=_limit_s(deadline_ms))
        except grpc.aio.AioRpcError as error:
            raise refusal_of(error) from None

    @staticmethod
    async def _inside(handle: Callable[[Q], Awaitable[A]], request: Q, answer: type[A], deadline_ms: int | None) -> A:
        raw = request.SerializeToString()

        async def across() -> bytes:
            arrived = type(request).FromString(raw)
            check_message(arrived)
            return (await handle(arrived)).SerializeToString()

        limit_s = _limit_s(deadline_ms)
        try:
            async with asyncio.timeout(limit_s):
                return answer.FromString(await asyncio.get_running_loop().create_task(across(), context=Context()))
        except Refusal:
            raise
        except TimeoutError:
            raise Refusal(
                Reason.DEADLINE_EXCEEDED,
                f"no answer within {limit_s:g} s",
                remedy="what became of the call is unknown; repeat it with the same ids",
                retry_after_ms=500,
                detail={"commit": "unknown"},
            ) from None
        except Exception as error:
            trace = trace_id_for_error()
            log.error("a handler failed", message=type(request).__name__, trace_id=trace, exc_info=error)
            raise internal(trace) from None


def _limit_s(deadline_ms: int | None) -> float:
    """A deadline of its own, but never beyond that of the call being handled."""
    return remaining_s() if deadline_ms is None else min(remaining_s(), deadline_ms / 1000)
