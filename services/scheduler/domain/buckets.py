"""Authoritative for what the scheduler makes of rate limits outside: whether a ticket's calls would find their buckets
empty. Pure.

The gateway decides each call in the row of its bucket. What is here only keeps leases from waiting at an empty one: a ticket
waits as a ticket. Two levels bound what is granted: the gateway's, of calls made, as of its last view; and our own, which
counts one usual call for each lease that may still call (app/gauges.py). So neither a view that is half a second old nor steps
that call late let more begin than the bucket feeds. Can go wrong: a step that calls more often waits at the gateway then.
"""

import math
from collections.abc import Mapping, Sequence

from libs.kernel.values import value

LONGEST_WAIT_MS = 60_000

Wants = tuple[tuple[str, int], ...]
"""Calls of a tool or model of which more than one is wanted, or of a provider, and how many. More than a bucket can hold means
a full one."""


@value(frozen=True, slots=True)
class View:
    """A bucket, as the gateway told it at `at_ms` of our monotonic clock."""

    name: str
    calls: frozenset[str]
    capacity: float
    per_minute: float
    level: float
    typical: float
    floor: float
    over: frozenset[str]
    at_ms: int

    def level_at(self, now_ms: int) -> float:
        """What is in it now, if nobody took anything."""
        return min(self.capacity, self.level + self.per_minute * max(0, now_ms - self.at_ms) / 60_000)


def by_call(views: Sequence[View]) -> Mapping[str, Sequence[View]]:
    """The buckets that each tool and model takes from."""
    before: dict[str, list[View]] = {}
    for view in views:
        for call in view.calls:
            before.setdefault(call, []).append(view)
    return before


class Allowance:
    """What a claim cycle may grant of tickets whose calls take from buckets. Counts down as the cycle grants."""

    __slots__ = ("_before", "_kept", "_level", "kept_back")

    def __init__(
        self,
        views: Sequence[View],
        own: Mapping[str, float],
        now_ms: int,
        before: Mapping[str, Sequence[View]] | None = None,
    ) -> None:
        """`before`: what `by_call` makes of the views, where it is at hand."""
        self._level = {view.name: min(view.level_at(now_ms), own.get(view.name, view.capacity)) for view in views}
        self.kept_back = False
        """Whether something was kept back."""
        self._before = by_call(views) if before is None else before
        self._kept: set[tuple[str, str]] = set()

    def __bool__(self) -> bool:
        return bool(self._before)

    def dry(self, tenant: str, calls: Sequence[str], wants: Wants = ()) -> View | None:
        """The bucket that has too little for a call of this tenant, or for as many as it wants; None where all have enough."""
        for call in everything(calls, wants):
            for view in self._before.get(call, ()):
                if self._level[view.name] < needed(tenant, view, wants) or self.kept_for(tenant, view):
                    self.kept_back = True
                    return view
        return None

    def keep(self, tenant: str, calls: Sequence[str], wants: Wants) -> None:
        """A ticket has waited long for many calls: of the buckets that have too little for it, other tickets of its tenant take
        nothing more in this cycle, so that they fill. Nothing is kept beside a bucket that would not fill."""
        short = [
            view
            for call in everything(calls, wants)
            for view in self._before.get(call, ())
            if self._level[view.name] < needed(tenant, view, wants)
        ]
        if all(view.per_minute > 0 and needed(tenant, view, wants) <= view.capacity for view in short):
            self._kept.update((tenant, view.name) for view in short if times(view, wants) > 1)

    def kept_for(self, tenant: str, view: View) -> bool:
        """Whether what is in a bucket waits for a ticket of this tenant that has waited long."""
        return (tenant, view.name) in self._kept

    def take(self, calls: Sequence[str], wants: Wants = ()) -> None:
        """One call of each, or as many as are wanted."""
        for name, units in usual(self._before, calls, wants).items():
            self._level[name] -= units

    def wait_ms(self, tenant: str, view: View, wants: Wants = ()) -> int:
        """How long until the bucket has enough, if nobody takes anything meanwhile; at most `LONGEST_WAIT_MS` is told."""
        fills_ms = self._fills_ms(tenant, view, wants)
        return LONGEST_WAIT_MS if fills_ms is None else min(LONGEST_WAIT_MS, fills_ms)

    def slowest(self, tenant: str, calls: Sequence[str], wants: Wants = ()) -> tuple[str, int | None]:
        """Of the buckets that have too little for these calls, the one that takes longest, and how long, however long that is;
        None where it never has enough as it is set up. No name where all have enough."""
        found: tuple[str, int | None] = ("", 0)
        for view in (view for call in calls for view in self._before.get(call, ())):
            fills_ms = self._fills_ms(tenant, view, wants)
            if fills_ms is None and self._level[view.name] < needed(tenant, view, wants):
                return view.name, None
            if fills_ms is not None and found[1] is not None and fills_ms > found[1]:
                found = view.name, fills_ms
        return found

    def _fills_ms(self, tenant: str, view: View, wants: Wants) -> int | None:
        """How long until it has enough, however long; None where it never has."""
        wanted = needed(tenant, view, wants)
        if view.per_minute <= 0 or wanted > view.capacity:
            return None
        return max(0, math.ceil((wanted - self._level[view.name]) * 60_000 / view.per_minute))


def everything(calls: Sequence[str], wants: Wants) -> Sequence[str]:
    """What a step may call, and what it wants beside that: calls of a provider."""
    return (*calls, *(call for call, _ in wants if call not in calls)) if wants else calls


def times(view: View, wants: Wants) -> int:
    """How many calls are wanted of a bucket."""
    return max((calls for call, calls in wants if call in view.calls), default=1)


def needed(tenant: str, view: View, wants: Wants = ()) -> float:
    """What must be in a bucket for this tenant."""
    floor = view.floor if tenant in view.over else 0.0
    one = view.typical + floor
    return max(one, min(view.typical * times(view, wants) + floor, view.capacity))


def usual(before: Mapping[str, Sequence[View]], calls: Sequence[str], wants: Wants = ()) -> dict[str, float]:
    """What one call of each takes, or as many as are wanted, by bucket."""
    found = {view.name: view for call in everything(calls, wants) for view in before.get(call, ())}
    return {name: max(view.typical, min(view.typical * times(view, wants), view.capacity)) for name, view in found.items()}


EMPTY = Allowance((), {}, 0)
