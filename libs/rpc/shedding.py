"""Authoritative for which waiting calls start, which are shed and which have lapsed, as a pure decision over what waits.

Not called by the interceptor yet: it holds no call, knows no method and reads no clock.

Can go wrong: shedding a person's call while bulk work waits, or starting a call whose client has gone. Criticality is given by
the caller of this file, who must take it from records and never from metadata.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Criticality(IntEnum):
    """How much a call matters; the higher is started first and shed last."""

    BULK = 0
    NORMAL = 1
    CRITICAL = 2


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many calls may be under way and how many may wait."""

    under_way: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call that waits. `arrival` is unique and grows with each call that comes."""

    arrival: int
    criticality: Criticality
    deadline_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of the calls, each in the order in which to act. Who is named in none goes on waiting."""

    start: tuple[Waiting, ...]
    shed: tuple[Waiting, ...]
    lapsed: tuple[Waiting, ...]


def decide(waiting: Iterable[Waiting], under_way: int, bounds: Bounds, now_ms: int) -> Decision:
    """Sets aside what has lapsed, fills the free places, then sheds what exceeds the bound on waiting."""
    queue = sorted(waiting, key=_start_order)
    lapsed = tuple(call for call in queue if _lapsed(call, now_ms))
    alive = [call for call in queue if not _lapsed(call, now_ms)]
    free = max(0, bounds.under_way - under_way)
    left = sorted(alive[free:], key=_shed_order)
    return Decision(tuple(alive[:free]), tuple(left[: max(0, len(left) - bounds.waiting)]), lapsed)


def retry_after_ms(backlog: int, bounds: Bounds, least_ms: int, most_ms: int) -> int:
    """When a shed call should come again: grows with the backlog in units of the places, between the two limits."""
    return min(most_ms, least_ms + least_ms * backlog // max(1, bounds.under_way))


def _lapsed(call: Waiting, now_ms: int) -> bool:
    return call.deadline_ms is not None and call.deadline_ms <= now_ms


def _start_order(call: Waiting) -> tuple[int, int]:
    return -call.criticality, call.arrival


def _shed_order(call: Waiting) -> tuple[int, int]:
    """Bulk: the oldest first, since its caller has most likely given up. The rest: the latest, so that a place is kept."""
    return call.criticality, call.arrival if call.criticality is Criticality.BULK else -call.arrival
