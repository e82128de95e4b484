"""Authoritative for how long a resolved API key is believed: a second from when it was asked for, half a second where it is
unknown, and up to 10 minutes while the authority cannot be asked. One that expires is refused at once.

A key that is in use is asked for again, beside the calls, before its second is over, so that no call waits for it. Can go
wrong: the authority is away, or slower than `patience_ms`. Then what was known is believed on, and asked for again each
second: a key that was revoked meanwhile works until the authority answers. That is the price of a public port that survives
its directory; whoever needs it harder raises a fence of the tenant.
"""

import asyncio
from collections import OrderedDict
from contextvars import Context
from dataclasses import dataclass, replace

from libs.kernel.clock import Clock
from libs.kernel.refusal import Reason, Refusal
from libs.rpc.identity import Caller, CallerDirectory
from libs.telemetry.catalogue import CALLER_CACHE

AWAY_MS = 5_000
"""How long after the authority did not answer nobody waits for it again."""


@dataclass(frozen=True, slots=True)
class _Entry:
    caller: Caller | None
    read_ms: int
    failed_ms: int | None = None
    """When the authority did not answer, since."""


class CachedDirectory:
    """A CallerDirectory in front of another: bounded, one look-up at a time per key."""

    def __init__(
        self,
        directory: CallerDirectory,
        clock: Clock,
        *,
        known_ttl_ms: int = 1_000,
        unknown_ttl_ms: int = 500,
        outage_ttl_ms: int = 600_000,
        patience_ms: int = 500,
        size: int = 10_000,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._known_ttl_ms = known_ttl_ms
        self._unknown_ttl_ms = unknown_ttl_ms
        self._outage_ttl_ms = outage_ttl_ms
        self._patience_ms = patience_ms
        self._size = size
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Caller | None]] = {}

    async def resolve(self, key_digest: bytes) -> Caller | None:
        """The caller behind a key, from memory while that may be believed."""
        entry = self._entries.get(key_digest)
        if entry is None or entry.caller is None:
            if entry is not None and self._age_ms(entry) < self._unknown_ttl_ms:
                CALLER_CACHE.labels("hit").inc()
                return None
            return self._in_force(await asyncio.shield(self._asked(key_digest)))
        age_ms = self._age_ms(entry)
        if 2 * age_ms >= self._known_ttl_ms:
            asking = self._asked(key_digest)
            if age_ms >= self._known_ttl_ms and not self._away(entry):
                done, _ = await asyncio.wait({asking}, timeout=self._patience_ms / 1000)
                if done or age_ms >= self._outage_ttl_ms:
                    return self._in_force(await asyncio.shield(asking))
            elif age_ms >= self._outage_ttl_ms:
                return self._in_force(await asyncio.shield(asking))
        CALLER_CACHE.labels("hit").inc()
        return self._in_force(entry.caller)

    def _away(self, entry: _Entry) -> bool:
        """Whether the authority did not answer a moment ago: nobody waits for it again so soon."""
        return entry.failed_ms is not None and self._clock.monotonic_ms() - entry.failed_ms < AWAY_MS

    def _in_force(self, caller: Caller | None) -> Caller | None:
        expired = caller is not None and 0 < caller.expires_ms <= self._clock.now_ms()
        return None if expired else caller

    def _asked(self, key_digest: bytes) -> "asyncio.Task[Caller | None]":
        asking = self._asking.get(key_digest)
        if asking is None:
            asking = asyncio.get_running_loop().create_task(self._ask(key_digest), context=Context())
            asking.add_done_callback(_looked_at)
            self._asking[key_digest] = asking
        return asking

    async def _ask(self, key_digest: bytes) -> Caller | None:
        """Runs in a task of its own, so that a caller who goes away takes nobody's answer along. The answer is as old as the
        question: a key may have been revoked while it was on its way."""
        began_ms = self._clock.monotonic_ms()
        try:
            caller = await self._directory.resolve(key_digest)
        except Refusal as refusal:
            entry = self._entries.get(key_digest)
            away = refusal.status in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
            if away and entry is not None and entry.caller is not None and self._age_ms(entry) < self._outage_ttl_ms:
                CALLER_CACHE.labels("stale").inc()
                self._entries[key_digest] = replace(entry, failed_ms=self._clock.monotonic_ms())
                return entry.caller
            if away:
                raise Refusal(
                    Reason.AUTHORITY_UNREACHABLE,
                    "the directory of API keys cannot be reached now",
                    remedy="repeat the same call; nothing was decided",
                    retry_after_ms=500,
                ) from None
            raise
        finally:
            self._asking.pop(key_digest, None)
        CALLER_CACHE.labels("unknown" if caller is None else "miss").inc()
        self._entries[key_digest] = _Entry(caller, began_ms)
        self._entries.move_to_end(key_digest)
        while len(self._entries) > self._size:
            self._entries.popitem(last=False)
        return caller

    def _age_ms(self, entry: _Entry) -> int:
        return self._clock.monotonic_ms() - entry.read_ms


def _looked_at(asking: "asyncio.Task[Caller | None]") -> None:
    """An answer that nobody waits for is no fault."""
    if not asking.cancelled():
        asking.exception()
