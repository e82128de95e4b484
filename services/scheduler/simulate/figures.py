"""Figures of a replay: waits and shares by tenant, project or class, and how both went over time. Pure.

Authoritative for what is counted. A share is of slot time while two rows or more waited: who has what while nobody else wants
more says nothing about shares. Can go wrong: an average over a day that hides an hour. The series are there for that.
"""

import bisect
from collections.abc import Callable, Sequence
from itertools import accumulate

from libs.kernel.values import value
from services.scheduler.domain.replay import NEVER, Item, Replayed

BUCKETS = 60
Span = tuple[int, int]


@value(frozen=True, slots=True)
class Waits:
    """Of those that started; milliseconds."""

    p50: int
    p95: int
    most: int


@value(frozen=True, slots=True)
class Group:
    """One row."""

    name: str
    tickets: int
    never: int
    waits: Waits
    share: float
    """Of slot time while at least two rows waited; 0 where that never was."""
    waiting: Sequence[float]
    """How many waited on average, by bucket."""
    running: Sequence[float]


def waits_of(found: Sequence[int]) -> Waits:
    """Percentiles by the nearest rank."""
    if not found:
        return Waits(0, 0, 0)
    ordered = sorted(found)
    return Waits(ordered[(len(ordered) - 1) // 2], ordered[-(-len(ordered) * 95 // 100) - 1], ordered[-1])


def end_of(items: Sequence[Item], replayed: Replayed) -> int:
    """When the last one ended, or came where nothing started."""
    ends = [start + item.duration_ms for item, start in zip(items, replayed.started_ms, strict=True) if start != NEVER]
    return max([*ends, *replayed.ready_ms], default=0)


def groups_of(items: Sequence[Item], replayed: Replayed, name_of: Callable[[Item], str], span: Span) -> list[Group]:
    """Rows, those with most tickets first. `span`: the time that buckets divide."""
    times = list(zip(items, replayed.ready_ms, replayed.started_ms, strict=True))
    rows: dict[str, list[tuple[Item, int, int]]] = {}
    for one in times:
        rows.setdefault(name_of(one[0]), []).append(one)
    contended = contention([[(ready, start) for _, ready, start in mine if start > ready] for mine in rows.values()])
    busy = {
        name: sum(_within(contended, (start, start + item.duration_ms)) for item, _, start in mine if start != NEVER)
        for name, mine in rows.items()
    }
    whole = sum(busy.values()) or 1
    found = [_group(name, mine, busy[name] / whole, span) for name, mine in rows.items()]
    return sorted(found, key=lambda group: (-group.tickets, group.name))


def _group(name: str, mine: Sequence[tuple[Item, int, int]], share: float, span: Span) -> Group:
    started = [(item, ready, start) for item, ready, start in mine if start != NEVER]
    return Group(
        name,
        len(mine),
        len(mine) - len(started),
        waits_of([start - ready for _, ready, start in started]),
        share,
        _series([(ready, start if start != NEVER else span[1]) for _, ready, start in mine if ready != NEVER], span),
        _series([(start, start + item.duration_ms) for item, _, start in started], span),
    )


Times = tuple[list[int], list[int], list[int]]
"""Times that do not meet, in order: beginnings, ends, and the length of all before each beginning."""


def contention(rows: Sequence[Sequence[Span]]) -> Times:
    """When at least two rows have a span open."""
    changes = sorted(
        (at, by, row) for row, spans in enumerate(rows) for begins, ends in spans for at, by in ((begins, 1), (ends, -1))
    )
    waiting, many, since = [0] * len(rows), 0, 0
    found: list[Span] = []
    for at, by, row in changes:
        before, waiting[row] = many, waiting[row] + by
        many += (by > 0 and waiting[row] == 1) - (by < 0 and waiting[row] == 0)
        if many >= 2 > before:
            since = at
        elif before >= 2 > many and at > since:
            found.append((since, at))
    lengths = [0, *accumulate(ends - begins for begins, ends in found)]
    return [begins for begins, _ in found], [ends for _, ends in found], lengths


def _within(times: Times, span: Span) -> int:
    """How much of a span is covered."""
    return _covered(times, span[1]) - _covered(times, span[0])


def _covered(times: Times, at: int) -> int:
    begins, ends, lengths = times
    place = bisect.bisect_right(begins, at) - 1
    return 0 if place < 0 else lengths[place] + min(at, ends[place]) - begins[place]


def _series(spans: Sequence[Span], whole: Span) -> list[float]:
    """How many spans there were on average in each bucket: exact at both ends, a running sum in between."""
    first, width = whole[0], max(1, -(-(whole[1] - whole[0]) // BUCKETS))
    parts, steps = [0.0] * (BUCKETS + 1), [0] * (BUCKETS + 1)
    for begins, ends in spans:
        low, high = min((begins - first) // width, BUCKETS), min((ends - first) // width, BUCKETS)
        if low == high:
            parts[low] += ends - begins
            continue
        parts[low] += first + (low + 1) * width - begins
        parts[high] += ends - first - high * width
        steps[low + 1] += 1
        steps[high] -= 1
    full = accumulate(steps)
    return [round((part + count * width) / width, 3) for part, count in zip(parts, full, strict=True)][:BUCKETS]
