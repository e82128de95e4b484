"""Ids that are the same in every run of a test. Implements `libs.kernel.ids.IdSource`."""

import random
from uuid import UUID

from libs.testkit.clocks import START_MS, ManualClock


class SeededIds:
    """UUIDv7 in the order they are made, and 128 random bits, both from a seed."""

    def __init__(self, seed: int = 1, clock: ManualClock | None = None) -> None:
        self._random = random.Random(seed)  # noqa: S311
        self._clock = clock
        self._made = 0

    def uuid7(self) -> UUID:
        """A time-ordered id; those of one millisecond keep their order."""
        now_ms = self._clock.now_ms() if self._clock is not None else START_MS
        self._made += 1
        counter = self._made % (1 << 12)
        return UUID(int=(now_ms % (1 << 48)) << 80 | 0x7 << 76 | counter << 64 | 0b10 << 62 | self._random.getrandbits(62))

    def random128(self) -> UUID:
        """128 random bits."""
        return UUID(int=self._random.getrandbits(128))
