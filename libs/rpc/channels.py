"""Authoritative for how one of our programs calls another: keepalive, quick reconnects, no retries by the channel (a fenced
call must not be repeated by a layer that cannot judge), and the metadata each call carries.

The metadata (service secret, trace context) and a deadline are added where the stub makes a call, not by gRPC client
interceptors, which cost a task for each call.

Can go wrong: a call without a deadline. Unary calls without one get what is left of the call being handled, or 30 s.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from libs.rpc.admission import TRACE_METADATA
from libs.rpc.identity import in_call
from libs.rpc.policy import SECRET_METADATA
from libs.telemetry.traces import traceparent

DEFAULT_TIMEOUT_S = 30.0
_LARGEST = 64 * 1024 * 1024
OPTIONS: list[tuple[str, int]] = [
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),  # or a ping is waited for for a minute, whatever the keepalive says
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", _LARGEST),
    ("grpc.max_send_message_length", _LARGEST),
    ("grpc.max_metadata_size", 64 * 1024),
    ("grpc.absolute_max_metadata_size", 128 * 1024),
]
Metadata = tuple[tuple[str, str | bytes], ...]


def open_channel(address: str, *, secret: str | None = None, metadata: Metadata = ()) -> "CarryingChannel":
    """A channel to one of our servers. Connects when it is first used; close it."""
    always = (*metadata, *(((SECRET_METADATA, secret),) if secret else ()))
    return CarryingChannel(grpc.aio.insecure_channel(address, options=OPTIONS), always)


class CarryingChannel(grpc.aio.Channel):  # type: ignore[misc]
    """A channel whose calls carry our metadata and a deadline."""

    def __init__(self, channel: Any, always: Metadata) -> None:
        self._channel = channel
        self._always = always

    async def __aenter__(self) -> "CarryingChannel":
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """Closes the connection."""
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """State of the connection."""
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Waits until the state is another."""
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Waits for a connection."""
        await self._channel.channel_ready()

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        """A callable of one request and one answer."""
        return self._carrying(self._channel.unary_unary(*args, **kwargs), limited=True)

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        """A callable of one request and many answers."""
        return self._carrying(self._channel.unary_stream(*args, **kwargs), limited=False)

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        """A callable of many requests and one answer."""
        return self._carrying(self._channel.stream_unary(*args, **kwargs), limited=False)

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        """A callable of many requests and many answers."""
        return self._carrying(self._channel.stream_stream(*args, **kwargs), limited=False)

    def _carrying(self, make_call: Callable[..., Any], *, limited: bool) -> Callable[..., Any]:
        always = self._always

        def call(
            request: Any = None,
            *,
            timeout: float | None = None,
            metadata: Sequence[tuple[str, str | bytes]] | None = None,
            **kwargs: Any,
        ) -> Any:
            trace = traceparent()
            carried = (*always, *(metadata or ()), *(((TRACE_METADATA, trace),) if trace else ()))
            if timeout is None and limited:
                timeout = remaining_s()
            return make_call(request, timeout=timeout, metadata=carried, **kwargs)

        return call


def remaining_s() -> float:
    """What is left of the call being handled, at most the default; the default outside of one."""
    call = in_call()
    if call is None or call.ends_at_s is None:
        return DEFAULT_TIMEOUT_S
    return min(DEFAULT_TIMEOUT_S, max(0.0, call.ends_at_s - asyncio.get_running_loop().time()))
