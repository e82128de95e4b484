"""Buckets as of now, for the scheduler and for people. Authoritative for nothing: what is seen was so a moment ago."""

from collections.abc import Mapping, Sequence

from libs.kernel.capacity import PROVIDER, through
from libs.kernel.values import value
from services.gateway.app.draw_buckets import REMEMBER_MS, Buckets
from services.gateway.domain.buckets import CALLS, Bucket, Kind, Use, filled, floor, over
from services.gateway.ports import Tools

FIRST_TOKENS = 1_000.0
"""What a call of a model is thought to use before one was seen."""


@value(frozen=True, slots=True)
class TenantSeen:
    """A tenant at a bucket."""

    tenant: str
    weight: int
    taken: float
    over: bool


@value(frozen=True, slots=True)
class Seen:
    """A bucket with what is in it now."""

    bucket: Bucket
    tenants: tuple[TenantSeen, ...]
    calls: tuple[str, ...]
    typical: float
    floor: float
    waiting: float


async def view_buckets(buckets: Buckets, tools: Tools) -> list[Seen]:
    """All of them, by name."""
    rows, now_ms = buckets.rows, buckets.steady_ms
    found = await rows.buckets()
    if not found:
        return []
    weights, uses = await rows.weights(), await rows.uses(now_ms - REMEMBER_MS)
    return [
        Seen(
            filled(bucket, now_ms),
            tuple(_tenants(bucket, weights.get(bucket.name, {}), uses.get(bucket.name, {}), now_ms)),
            tuple(_calls(bucket, tools)),
            min(buckets.typical.get(bucket.name, 1.0 if bucket.name.unit == CALLS else FIRST_TOKENS), float(bucket.capacity)),
            floor(bucket),
            buckets.waiting(bucket.name),
        )
        for bucket in found
    ]


def _tenants(bucket: Bucket, weights: Mapping[str, int], uses: Mapping[str, Use], now_ms: int) -> Sequence[TenantSeen]:
    beyond = over(bucket, uses, weights, now_ms)
    return [
        TenantSeen(
            name, weights.get(name, 1), uses[name].now(now_ms, bucket.window_ms) if name in uses else 0.0, name in beyond
        )
        for name in sorted({*weights, *uses})
    ]


def _calls(bucket: Bucket, tools: Tools) -> Sequence[str]:
    """Tools whose every call takes from it; and of a provider, under a name that says so, those whose calls may."""
    kind, name = bucket.name.kind, bucket.name.name
    if kind == Kind.PROVIDER:
        always = [tool.name for tool in tools.all() if tool.provider_always == name]
        return [*always, *(through(tool.name, PROVIDER + name) for tool in tools.all() if tool.reaches(name))]
    return [f"model:{name}" if kind == Kind.MODEL else name]
