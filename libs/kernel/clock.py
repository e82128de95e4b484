"""Authoritative for what a clock is. The real one lives in `libs.runtime`; time is a parameter everywhere else."""

from typing import Protocol


class Clock(Protocol):
    """Two readings that must not be mixed up."""

    def now_ms(self) -> int:
        """Wall time, milliseconds since the Unix epoch. May jump. For people, deadlines and settle windows."""
        ...

    def monotonic_ms(self) -> int:
        """Never falls, means nothing to another process. For leases and intervals."""
        ...
