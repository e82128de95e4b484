"""Authoritative for whether this process still holds its lease at etcd, by this process's own monotonic clock.

`lost` is set when two thirds of the TTL have passed since the last *acknowledged* renewal was *sent*, whatever the network
does: before etcd gives the lease's keys to anybody else, however slow the answer was.

Can go wrong: a process that was paused. It finds its deadline passed when it runs again, so whoever acts asks `alive`
just before, and the condition in the database decides anyway.
"""

import asyncio
import contextlib

import grpc

from libs.authority.client import EtcdClient, EtcdUnavailable
from libs.kernel.clock import Clock

_LOOK_EVERY_S = 0.05
_FAREWELL_S = 0.5


class SessionLost(Exception):
    """The lease is gone, or may be."""


class Session:
    """One lease, kept alive while `run` runs."""

    def __init__(self, client: EtcdClient, clock: Clock, *, ttl_ms: int = 5_000) -> None:
        self._client = client
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._deadline_ms = 0
        self.lease = 0
        self.lost = asyncio.Event()
        self.why = ""
        self.round_trip_ms = 0
        """How long the newest renewal took."""

    @property
    def alive(self) -> bool:
        """Whether what this session won may still be acted on."""
        return self.lease != 0 and not self.lost.is_set() and self._clock.monotonic_ms() < self._deadline_ms

    def judge(self) -> bool:
        """`alive`, and for good: a session whose deadline has passed is lost, whatever answers come later."""
        if self._clock.monotonic_ms() >= self._deadline_ms:
            self._lose(f"not renewed for {self._ttl_ms * 2 // 3} ms by our own clock")
        return self.alive

    async def open(self) -> None:
        """Takes the lease. Raises EtcdUnavailable."""
        sent_ms = self._clock.monotonic_ms()
        self.lease = await self._client.grant(-(-self._ttl_ms // 1000))
        self._renewed(sent_ms)

    async def run(self) -> None:
        """Keeps the lease until it is lost; returns then."""
        keeping = asyncio.create_task(self._keep(), name="etcd lease")
        try:
            while not self.lost.is_set():
                left_ms = self._deadline_ms - self._clock.monotonic_ms()
                if not self.judge():
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.lost.wait(), min(left_ms / 1000, _LOOK_EVERY_S))
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def close(self) -> bool:
        """Gives the lease back, so that others need not wait for it to die; whether etcd heard it in time."""
        self._lose("closed")
        if not self.lease:
            return True
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await self._client.revoke(self.lease)
        except (TimeoutError, EtcdUnavailable, grpc.aio.AioRpcError):
            return False
        return True

    def _renewed(self, sent_ms: int) -> None:
        self.round_trip_ms = self._clock.monotonic_ms() - sent_ms
        self._deadline_ms = sent_ms + self._ttl_ms * 2 // 3

    def _lose(self, why: str) -> None:
        if not self.lost.is_set():
            self.why = why
            self.lost.set()

    async def _keep(self) -> None:
        pause_s = self._ttl_ms / 5_000
        while not self.lost.is_set():
            try:
                async with contextlib.aclosing(self._client.keep_alive(self.lease)) as beats:
                    sent_ms = self._clock.monotonic_ms()
                    async for left_s in beats:
                        if left_s <= 0:
                            self._lose("the lease expired at etcd")
                            return
                        self._renewed(sent_ms)
                        await asyncio.sleep(pause_s)
                        sent_ms = self._clock.monotonic_ms()
            except EtcdUnavailable:
                await asyncio.sleep(min(pause_s, 0.2))
