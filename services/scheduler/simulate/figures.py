"""Figures of a replay: waits and shares by tenant, project or class, and how both went over time. Pure.

Authoritative for what is counted. A share is of slot time while anybody waited: who has what while nobody wants more says
nothing about shares. Can go wrong: an average over a day that hides an hour. The series are there for that.
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
    contended = _union([(ready, start) for _, ready, start in times if NEVER not in (ready, start) and start > ready])
    rows: dict[str, list[tuple[Item, int, int]]] = {}
    for one in times:
        rows.setdefault(name_of(one[0]), []).append(one)
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


def _union(spans: Sequence[Span]) -> tuple[list[int], list[int], list[int]]:
    """Times covered by any, as beginnings, ends, and the length before each beginning."""
    merged: list[list[int]] = []
    for begins, ends in sorted(spans):
        if merged and begins <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], ends)
        else:
            merged.append([begins, ends])
    lengths = [0, *accumulate(ends - begins for begins, ends in merged)]
    return [m[0] for m in merged], [m[1] for m in merged], lengths


def _within(union: tuple[list[int], list[int], list[int]], span: Span) -> int:
    """How much of a span is covered."""
    return _covered(union, span[1]) - _covered(union, span[0])


def _covered(union: tuple[list[int], list[int], list[int]], at: int) -> int:
    begins, ends, lengths = union
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
