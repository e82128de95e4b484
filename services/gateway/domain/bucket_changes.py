"""Authoritative for what operators may change of a bucket. Pure.

Can go wrong: a change that nobody can explain later. Without a reason and an actor none is stored, and none is ever forgotten.
"""

from dataclasses import replace

from libs.kernel.refusal import Reason, Refusal, invalid_field
from libs.kernel.values import value
from services.gateway.domain.buckets import TOKENS, Bucket, Kind, Name, filled

MOST = 1_000_000_000
MOST_WEIGHT = 1_000_000


@value(frozen=True, slots=True)
class Change:
    """Who changes it, and why."""

    actor: str
    reason: str

    def check(self) -> None:
        """Refuses a change without either."""
        for name in ("actor", "reason"):
            if not getattr(self, name).strip():
                raise invalid_field(name, "is empty", "say who changes buckets, and why: it is kept")


@value(frozen=True, slots=True)
class BucketAsk:
    """What a bucket shall be."""

    capacity: int
    per_minute: int
    expected_version: int | None = None


def check_name(name: Name) -> None:
    """Refuses what cannot be counted, or read."""
    if not name.name.isprintable():
        raise invalid_field("name.name", "has characters that cannot be printed", "give the name as it is configured")
    if name.unit == TOKENS and name.kind == Kind.TOOL:
        raise invalid_field("name.unit", "tokens are what models use, and this is a tool", "count calls")


def no_bucket(name: Name) -> Refusal:
    """There is none of that name."""
    return Refusal(
        Reason.NOT_FOUND, f"there is no bucket of {name.text}", field="name", remedy="`runway bucket list` says which there are"
    )


def check_version(expected: int | None, standing: int) -> None:
    """Refuses a change on top of what is not there any more."""
    if expected is not None and expected != standing:
        raise Refusal(
            Reason.VERSION_CONFLICT,
            f"the bucket is at version {standing}, not {expected}",
            field="expected_version",
            remedy="read it and decide again",
            detail={"current_version": str(standing)},
        )


def next_bucket(former: Bucket | None, name: Name, ask: BucketAsk, version: int, steady_ms: int, now_ms: int) -> Bucket:
    """What a bucket becomes: full where it is new, else with what is in it, as far as that fits."""
    if not 1 <= ask.capacity <= MOST:
        raise invalid_field("capacity", f"must be between 1 and {MOST}", "give the largest burst that the provider allows")
    if not 0 <= ask.per_minute <= MOST:
        raise invalid_field("per_minute", f"must be between 0 and {MOST}", "give the provider's limit a minute")
    if former is None:
        return Bucket(name, ask.capacity, ask.per_minute, float(ask.capacity), steady_ms, version, now_ms)
    now = filled(former, steady_ms)
    level = min(now.level, float(ask.capacity))
    return replace(now, capacity=ask.capacity, per_minute=ask.per_minute, level=level, version=version, changed_ms=now_ms)
