"""Channels to an installation: where it is, which key to show. Nothing here retries but OVERLOADED: of that
nothing was decided, and the refusal says when to come again. For all else each caller knows what may be repeated.

Can go wrong: a key in the wrong place. It travels in metadata only and is never part of an error or a repr.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from runway_sdk.errors import Overloaded, RunwayError, error_of

A = TypeVar("A", bound=Message)
S = TypeVar("S")
LEAST_PAUSE_S = 0.05
PROFILE = Path(".runway") / "profile.json"
"""Written by `runway dev`; found from the working directory upwards."""
_OPTIONS = [
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),  # or a ping is waited for for a minute, whatever the keepalive says
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
]


@dataclass(frozen=True, slots=True)
class Target:
    """An installation as a caller sees it. `control_address` empty: the public port serves those calls too.

    `services` and `control_services` name services that have addresses of their own, where no proxy joins them.
    """

    address: str
    api_key: str = field(repr=False)
    control_address: str = ""
    tls: bool = False
    services: Mapping[str, str] = field(default_factory=dict)
    control_services: Mapping[str, str] = field(default_factory=dict)
    reviewer_key: str = field(default="", repr=False)
    """Of a `runway dev`: a second person's key, who may approve what the first one launches."""

    @property
    def as_reviewer(self) -> "Target":
        """The same installation for whoever approves: with his key where the profile has one."""
        return replace(self, api_key=self.reviewer_key) if self.reviewer_key else self


def find_target(start: Path | None = None) -> Target:
    """RUNWAY_ADDRESS and RUNWAY_API_KEY (RUNWAY_CONTROL_ADDRESS, RUNWAY_TLS=1), else the profile that RUNWAY_PROFILE names,
    else that of a `runway dev` in this folder or above. RUNWAY_API_KEY alone: the profile's address with this key. An address
    alone is refused: a profile's key is for its own installation."""
    address, key = os.environ.get("RUNWAY_ADDRESS", ""), os.environ.get("RUNWAY_API_KEY", "")
    if address and key:
        return Target(address, key, os.environ.get("RUNWAY_CONTROL_ADDRESS", ""), os.environ.get("RUNWAY_TLS", "") == "1")
    if address:
        raise RunwayError(
            "RUNWAY_ADDRESS is set, and RUNWAY_API_KEY is not",
            reason="NO_TARGET",
            remedy="set both, or neither: a profile's key is for its own installation",
        )
    found = _profiled(start)
    return replace(found, api_key=key, reviewer_key="") if key else found


def _profiled(start: Path | None) -> Target:
    named = os.environ.get("RUNWAY_PROFILE", "")
    if named:
        return read_profile(Path(named))
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        profile = folder / PROFILE
        if profile.is_file():
            return read_profile(profile)
    raise RunwayError(
        "no installation is named",
        reason="NO_TARGET",
        remedy="set RUNWAY_ADDRESS and RUNWAY_API_KEY, or RUNWAY_PROFILE, or start `runway dev` here",
    )


def read_profile(profile: Path) -> Target:
    """The installation that a profile file names."""
    try:
        found = json.loads(profile.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise _no_profile(profile, str(error)) from None
    if not isinstance(found, dict):
        raise _no_profile(profile, "it holds no object")
    target = Target(
        found.get("address"),  # type: ignore[arg-type]  # checked below
        found.get("api_key"),  # type: ignore[arg-type]
        found.get("control_address", ""),
        services=found.get("services", {}),
        control_services=found.get("control_services", {}),
        reviewer_key=found.get("reviewer_api_key", ""),
    )
    maps = (target.services, target.control_services)
    if not target.address or not target.api_key or not all(isinstance(named, dict) for named in maps):
        raise _no_profile(profile, "it names no address and api_key")
    texts = (target.address, target.api_key, target.control_address, target.reviewer_key, *maps[0].values(), *maps[1].values())
    if not all(isinstance(text, str) for text in texts):
        raise _no_profile(profile, "it has an address that is no text")
    return target


def _no_profile(profile: Path, why: str) -> RunwayError:
    return RunwayError(
        f"{profile} is no profile: {why}", reason="NO_TARGET", remedy="name the profile.json that `runway dev` wrote"
    )


class Connection:
    """Channels by address, opened once: for ordinary calls, and for those that must not queue behind them."""

    def __init__(self, target: Target, *, alone: bool = False) -> None:
        """`alone`: shares no socket with another connection of this process, so that a new one is new indeed."""
        self.target = target
        self._options = [*_OPTIONS, ("grpc.use_local_subchannel_pool", 1)] if alone else _OPTIONS
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._stubs: dict[tuple[str, Callable[..., Any]], Any] = {}
        self.metadata: tuple[tuple[str, str | bytes], ...] = (("authorization", f"Bearer {target.api_key}"),)

    def public(self, service: str) -> grpc.aio.Channel:
        """The channel for ordinary calls of a service."""
        return self._channel(self.target.services.get(service, self.target.address))

    def stub(self, service: str, make: Callable[[grpc.aio.Channel], S]) -> S:
        """A generated stub for ordinary calls of a service, made once."""
        found = self._stubs.get((service, make))
        if found is None:
            found = self._stubs[(service, make)] = make(self.public(service))
        made: S = found
        return made

    def stub_of_control(self, service: str, make: Callable[[grpc.aio.Channel], S]) -> S:
        """A generated stub for calls of a service's control port."""
        return make(self.control(service))

    def control(self, service: str) -> grpc.aio.Channel:
        """The channel for heartbeats, cancels and operators."""
        public = self.target.services.get(service, "")
        own = self.target.control_services.get(service, "") or public or self.target.control_address
        return self._channel(own or self.target.address)

    def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._open(address)
        return channel

    def _open(self, address: str) -> grpc.aio.Channel:
        if self.target.tls:
            return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(), options=self._options)
        return grpc.aio.insecure_channel(address, options=self._options)

    async def call(
        self,
        method: Callable[..., Awaitable[A]],
        request: Message | Any,
        *,
        timeout_s: float = 30.0,
        lease: bytes = b"",
        traceparent: str = "",
    ) -> A:
        """One unary call; raises the typed error. Sent away for overload, it comes again as it was told, within its time."""
        metadata = self.with_lease(lease, traceparent)
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while True:
            try:
                return await method(request, timeout=max(0.0, end - loop.time()), metadata=metadata)
            except grpc.aio.AioRpcError as error:
                refused = error_of(error)
            pause_s = max(LEAST_PAUSE_S, refused.retry_after_ms / 1000)
            if not isinstance(refused, Overloaded) or loop.time() + pause_s >= end:
                raise refused
            await asyncio.sleep(pause_s)

    def with_lease(self, lease: bytes = b"", traceparent: str = "") -> tuple[tuple[str, str | bytes], ...]:
        """The metadata of a call made under a lease."""
        metadata = self.metadata
        if lease:
            metadata = (*metadata, ("runway-lease-bin", lease))
        return (*metadata, ("traceparent", traceparent)) if traceparent else metadata

    async def close(self) -> None:
        """Closes every channel."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()
