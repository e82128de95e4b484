"""Authoritative for real time: the only clock of a running process. Everything else gets it as a parameter.

Can go wrong: a clock that jumps. `OffsetClock` is one, for drills; it is inert unless faults are armed.
"""

import os
import time
from collections.abc import Mapping

from libs.kernel.clock import Clock
from libs.telemetry.logs import get_logger

OFFSET_FILE = "RUNWAY_CLOCK_OFFSET_FILE"
"""Drills only, and only where RUNWAY_FAULTS_ARMED=development: milliseconds that wall time is ahead, read at every look."""


class SystemClock:
    """The machine's two clocks (see libs.kernel.clock)."""

    def now_ms(self) -> int:
        """Wall time, milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Never falls; for leases and intervals."""
        return time.monotonic_ns() // 1_000_000


class OffsetClock(SystemClock):
    """A machine whose wall clock is set wrong, by as much as a file says. Its monotonic clock never jumps."""

    def __init__(self, path: str) -> None:
        self._path = path

    def now_ms(self) -> int:
        """Wall time, wrong on purpose."""
        try:
            with open(self._path) as file:
                return super().now_ms() + int(file.read() or 0)
        except (OSError, ValueError):
            return super().now_ms()


def clock_of(environ: Mapping[str, str] = os.environ) -> Clock:
    """The clock of this process."""
    path = environ.get(OFFSET_FILE)
    if not path or environ.get("RUNWAY_FAULTS_ARMED") != "development":
        return SystemClock()
    get_logger(__name__).warning("this process' clock is set by a file", path=path)
    return OffsetClock(path)
