"""Launches a second per tenant, before anything is stored: a token bucket in this process's memory.

Authoritative for nothing durable: each replica has its own, and a restart fills them.
"""

from libs.kernel.clock import Clock
from libs.kernel.refusal import Reason, Refusal


class LaunchRate:
    """`per_s` launches a second and `burst` at once for each tenant."""

    _KEPT = 10_000

    def __init__(self, clock: Clock, per_s: int, burst: int) -> None:
        self._clock = clock
        self._per_s = per_s
        self._burst = burst
        self._buckets: dict[str, tuple[float, int]] = {}

    def take(self, tenant: str, count: int = 1) -> None:
        """Takes `count` launches from the tenant's bucket, or refuses QUOTA_EXCEEDED saying when they fit."""
        now = self._clock.monotonic_ms()
        if len(self._buckets) > self._KEPT:
            self._buckets.clear()
        level, at = self._buckets.get(tenant, (float(self._burst), now))
        level = min(float(self._burst), level + (now - at) * self._per_s / 1000)
        if level < min(count, self._burst):
            wait_ms = int((min(count, self._burst) - level) * 1000 / self._per_s) + 1
            self._buckets[tenant] = (level, now)
            raise Refusal(
                Reason.QUOTA_EXCEEDED,
                f"tenant {tenant!r} launches more than {self._per_s} runs a second",
                remedy="repeat the same call after the time given; nothing was stored",
                retry_after_ms=wait_ms,
            )
        self._buckets[tenant] = (level - count, now)
