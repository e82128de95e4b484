"""Authoritative for what a token bucket is: what flows in, who may take, how tenants share it. Pure.

A bucket holds at most its capacity and fills by elapsed time. Tenants that want at the same time share what flows in by
their weights: who took more than its part lately must leave `floor` in the bucket, which only those below their part may
take. Alone, a tenant takes everything. What was taken lately is an average that forgets half of itself in `half_life_ms`.

Times are those of steady clocks: a process' wall clock when it began, moved on by its monotonic one, so that no jump of a
wall clock fills or dries a bucket. Can go wrong: a bucket that was last touched by a process whose clock was ahead. It
fills again once that time has come; who finds it further ahead than clocks differ, and touches it for the first time, sets
it back, once.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from libs.kernel.values import value

SKEW_MS = 10_000
"""What clocks of processes may differ by."""
WANT_MS = 5_000
"""Who wanted something this long ago still counts as one that wants, at least."""
LEAST_WAIT_MS = 20
SHARE_WAIT_MS = 250
LONGEST_WAIT_MS = 60_000
CALLS, TOKENS = "calls", "tokens"


class Kind(StrEnum):
    """What a bucket stands before."""

    TOOL = "tool"
    MODEL = "model"
    PROVIDER = "provider"


class Name(NamedTuple):
    """Names a bucket."""

    kind: str
    name: str
    unit: str

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.kind} {self.name} ({self.unit})"


@value(frozen=True, slots=True)
class Bucket:
    """What was decided of a bucket, and what is in it as of `at_ms`."""

    name: Name
    capacity: int
    per_minute: int
    level: float
    at_ms: int
    version: int = 0
    changed_ms: int = 0

    @property
    def window_ms(self) -> int:
        """After so long, half of what a tenant took is forgotten, and who did not ask wants nothing any more: the time in which
        an empty bucket fills, so that one with a slow flow knows its tenants for longer."""
        if not self.per_minute:
            return LONGEST_WAIT_MS
        return min(max(WANT_MS, self.capacity * 60_000 // self.per_minute), 3_600_000)


@value(frozen=True, slots=True)
class Use:
    """What a tenant took lately of a bucket, and when it last wanted something."""

    taken: float = 0.0
    at_ms: int = 0
    wanted_ms: int = 0

    def now(self, now_ms: int, half_life_ms: int) -> float:
        """What it took, as of now."""
        return self.taken * math.exp2(-max(0, now_ms - self.at_ms) / half_life_ms)


@value(frozen=True, slots=True)
class Want:
    """A tenant wants at least `least` units, and takes up to `most`."""

    tenant: str
    least: float
    most: float


@value(frozen=True, slots=True)
class Got:
    """What it got: all it needs or nothing, and then when it may be worth asking again."""

    units: float
    wait_ms: int = 0


@dataclass(slots=True)
class Standing:
    """A bucket with its tenants, as a decision leaves it."""

    bucket: Bucket
    uses: dict[str, Use]


def filled(bucket: Bucket, now_ms: int, *, first_touch: bool = False) -> Bucket:
    """The bucket as of now."""
    if now_ms <= bucket.at_ms:
        ahead = bucket.at_ms - now_ms > SKEW_MS
        return replace(bucket, at_ms=now_ms) if ahead and first_touch else bucket
    came = bucket.per_minute * (now_ms - bucket.at_ms) / 60_000
    return replace(bucket, level=min(float(bucket.capacity), bucket.level + came), at_ms=now_ms)


@dataclass(slots=True)
class _Shares:
    """What tenants that want something took of a bucket lately, all as of one moment."""

    taken: dict[str, float]
    weights: Mapping[str, int]
    whole: float
    parts: int

    def over(self, tenant: str) -> bool:
        """Whether it took more than its part, while others want something."""
        if len(self.taken) < 2 or self.whole <= 0 or tenant not in self.taken:
            return False
        return self.taken[tenant] * self.parts > self.whole * self.weights.get(tenant, 1) * (1 + 1e-9)

    def took(self, tenant: str, units: float) -> None:
        self.taken[tenant] = self.taken.get(tenant, 0.0) + units
        self.whole += units


def _shares(bucket: Bucket, uses: Mapping[str, Use], weights: Mapping[str, int], now_ms: int) -> _Shares:
    window = bucket.window_ms
    taken = {tenant: use.now(now_ms, window) for tenant, use in uses.items() if now_ms - use.wanted_ms <= window}
    return _Shares(taken, weights, sum(taken.values()), sum(weights.get(tenant, 1) for tenant in taken))


def over(bucket: Bucket, uses: Mapping[str, Use], weights: Mapping[str, int], now_ms: int) -> set[str]:
    """Tenants that took more than their part, while others want something."""
    shares = _shares(bucket, uses, weights, now_ms)
    return {tenant for tenant in shares.taken if shares.over(tenant)}


def floor(bucket: Bucket) -> float:
    """What tenants that are over their part leave in it: half, and at least what one call of another may need."""
    return max(bucket.capacity / 2, min(1.0, float(bucket.capacity)))


def take(
    standing: Standing, weights: Mapping[str, int], wants: Sequence[Want], now_ms: int, *, first_touch: bool = False
) -> tuple[Standing, list[Got]]:
    """Who gets what, those who are furthest below their part first. Together never more than is in the bucket."""
    bucket = filled(standing.bucket, now_ms, first_touch=first_touch)
    uses = dict(standing.uses)
    window = bucket.window_ms
    for want in wants:
        use = uses.get(want.tenant, Use(at_ms=now_ms))
        uses[want.tenant] = Use(use.now(now_ms, window), now_ms, max(now_ms, use.wanted_ms))
    ordered = sorted(range(len(wants)), key=lambda place: uses[wants[place].tenant].taken / weights.get(wants[place].tenant, 1))
    shares = _shares(bucket, uses, weights, now_ms)
    level, got = bucket.level, [Got(0.0)] * len(wants)
    for place in ordered:
        want = wants[place]
        left = floor(bucket) if shares.over(want.tenant) else 0.0
        least = min(want.least, float(bucket.capacity))
        if level - least < left:
            got[place] = Got(0.0, wait_ms(bucket, level, least + left))
            continue
        units = max(least, min(want.most, level - left))
        level -= units
        shares.took(want.tenant, units)
        use = uses[want.tenant]
        uses[want.tenant] = replace(use, taken=use.taken + units)
        got[place] = Got(units)
    return Standing(replace(bucket, level=level), uses), got


def give_back(standing: Standing, tenant: str, units: float, now_ms: int) -> Standing:
    """What was taken and not used; negative: used beyond what was taken. A debt beyond a whole bucket is forgiven."""
    bucket = filled(standing.bucket, now_ms)
    level = max(-float(bucket.capacity), min(float(bucket.capacity), bucket.level + units))
    uses = dict(standing.uses)
    use = uses.get(tenant)
    if use is not None:
        uses[tenant] = Use(max(0.0, use.now(now_ms, bucket.window_ms) - units), now_ms, use.wanted_ms)
    return Standing(replace(bucket, level=level), uses)


def wait_ms(bucket: Bucket, level: float, wanted: float) -> int:
    """How long until so much is in the bucket, if nobody takes anything meanwhile."""
    if not bucket.per_minute:
        return LONGEST_WAIT_MS
    if wanted > bucket.capacity:  # it must fall below its part first
        return SHARE_WAIT_MS
    return min(LONGEST_WAIT_MS, max(LEAST_WAIT_MS, math.ceil((wanted - level) * 60_000 / bucket.per_minute)))
