"""Authoritative for the order of epochs, gates and step fences (the fencing protocol).

Can go wrong: comparing parts instead of the whole. The tuples here compare lexicographically, and merging is maximum, so
raising is idempotent, commutative and safe to repeat late.
"""

from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

from libs.kernel.ids import NIL

COUNTER_BITS = 40
"""An epoch is `incarnation << 40 | counter` in one signed 64-bit integer."""


class Mode(IntEnum):
    """How far a run or scope is open."""

    OPEN = 0
    DRAINING = 1
    CLOSED = 2


def make_epoch(incarnation: int, counter: int) -> int:
    """The epoch that a database of this incarnation issues with this counter."""
    return incarnation << COUNTER_BITS | counter


def incarnation_of(epoch: int) -> int:
    """The incarnation that issued an epoch."""
    return epoch >> COUNTER_BITS


def counter_of(epoch: int) -> int:
    """The counter inside its incarnation."""
    return epoch & ((1 << COUNTER_BITS) - 1)


def next_epoch(current: int, incarnation: int) -> int:
    """The epoch after `current` issued by `incarnation`: greater than `current` whichever incarnation issued that."""
    return max(current + 1, make_epoch(incarnation, counter_of(current) + 1))


@dataclass(frozen=True, slots=True, order=True)
class Gate:
    """The fence of a run or scope, compared by (epoch, mode)."""

    epoch: int
    mode: Mode


@dataclass(frozen=True, slots=True, order=True)
class StepFence:
    """The fence of a step, compared by (authority_epoch, lease_epoch, attempt_id)."""

    authority_epoch: int
    lease_epoch: int
    attempt_id: UUID

    @property
    def held(self) -> bool:
        """Whether some attempt holds the step under this value."""
        return self.attempt_id != NIL


NO_FENCE = StepFence(0, 0, NIL)
"""Below every fence that was ever issued."""
