"""Authoritative for how long a resolved API key is believed: 30 s when known, 2 s when unknown, and up to 10 minutes while
the authority cannot be asked.

Can go wrong: a revoked key works for the rest of its 30 s, or of the ten minutes of an outage. That is the price of a public
port that survives its directory; whoever needs it harder raises a fence of the tenant.
"""

import asyncio
from collections import OrderedDict
from contextvars import Context
from dataclasses import dataclass

from libs.kernel.clock import Clock
from libs.kernel.refusal import Reason, Refusal
from libs.rpc.identity import Caller, CallerDirectory
from libs.telemetry.catalogue import CALLER_CACHE


@dataclass(frozen=True, slots=True)
class _Entry:
    caller: Caller | None
    read_ms: int


class CachedDirectory:
    """A CallerDirectory in front of another: bounded, one look-up at a time per key."""

    def __init__(
        self,
        directory: CallerDirectory,
        clock: Clock,
        *,
        known_ttl_ms: int = 30_000,
        unknown_ttl_ms: int = 2_000,
        outage_ttl_ms: int = 600_000,
        size: int = 10_000,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._known_ttl_ms = known_ttl_ms
        self._unknown_ttl_ms = unknown_ttl_ms
        self._outage_ttl_ms = outage_ttl_ms
        self._size = size
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Caller | None]] = {}

    async def resolve(self, key_digest: bytes) -> Caller | None:
        """The caller behind a key, from memory while that may be believed."""
        entry = self._entries.get(key_digest)
        if entry is not None and self._age_ms(entry) < (self._unknown_ttl_ms if entry.caller is None else self._known_ttl_ms):
            CALLER_CACHE.labels("hit").inc()
            return entry.caller
        asking = self._asking.get(key_digest)
        if asking is None:
            asking = asyncio.get_running_loop().create_task(self._ask(key_digest), context=Context())
            self._asking[key_digest] = asking
        return await asyncio.shield(asking)

    async def _ask(self, key_digest: bytes) -> Caller | None:
        """Runs in a task of its own, so that a caller who goes away takes nobody's answer along."""
        try:
            caller = await self._directory.resolve(key_digest)
        except Refusal as refusal:
            entry = self._entries.get(key_digest)
            away = refusal.status in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
            if away and entry is not None and entry.caller is not None and self._age_ms(entry) < self._outage_ttl_ms:
                CALLER_CACHE.labels("stale").inc()
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
        self._entries[key_digest] = _Entry(caller, self._clock.monotonic_ms())
        self._entries.move_to_end(key_digest)
        while len(self._entries) > self._size:
            self._entries.popitem(last=False)
        return caller

    def _age_ms(self, entry: _Entry) -> int:
        return self._clock.monotonic_ms() - entry.read_ms
