"""Authoritative for real time: the only clock of a running process. Everything else gets it as a parameter."""

import time


class SystemClock:
    """The machine's two clocks (see libs.kernel.clock)."""

    def now_ms(self) -> int:
        """Wall time, milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Never falls; for leases and intervals."""
        return time.monotonic_ns() // 1_000_000
