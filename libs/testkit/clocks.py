"""A clock that stands still until a test moves it. Implements `libs.kernel.clock.Clock`."""

START_MS = 1_800_000_000_000


class ManualClock:
    """Wall and monotonic time, moved together by `advance`, apart by `jump` (a wall clock that was set)."""

    def __init__(self, now_ms: int = START_MS, monotonic_ms: int = 1_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms

    def now_ms(self) -> int:
        """Wall time."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Time since some start."""
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        """Lets time pass."""
        if ms < 0:
            raise ValueError("time does not run backwards; `jump` sets the wall clock")
        self._now_ms += ms
        self._monotonic_ms += ms

    def jump(self, ms: int) -> None:
        """Sets the wall clock forward or back; monotonic time does not notice."""
        self._now_ms += ms
