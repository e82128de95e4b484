"""gRPC of buckets, for operators and the scheduler: parse → app → translate."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from runway.gateway.v1 import bucket_service_pb2 as pb
from runway.gateway.v1 import bucket_service_pb2_grpc
from runway.internal.gateway.v1 import gateway_internal_pb2 as internal_pb
from runway.internal.gateway.v1 import gateway_internal_pb2_grpc

from services.gateway import translate
from services.gateway.app.draw_buckets import Buckets, Rows
from services.gateway.app.view_buckets import Seen, view_buckets
from services.gateway.domain.bucket_changes import BucketAsk, Change, check_name, no_bucket
from services.gateway.domain.buckets import CALLS, TOKENS, Bucket, Kind, Name
from services.gateway.ports import Tools

MOST_TENANTS = 1_000
DEFAULT_CHANGES = 100
NEWEST = 2**62
KINDS: Mapping[str, "pb.BucketKind.ValueType"] = {
    Kind.TOOL: pb.BUCKET_KIND_TOOL,
    Kind.MODEL: pb.BUCKET_KIND_MODEL,
    Kind.PROVIDER: pb.BUCKET_KIND_PROVIDER,
}
UNITS: Mapping[str, "pb.BucketUnit.ValueType"] = {CALLS: pb.BUCKET_UNIT_CALLS, TOKENS: pb.BUCKET_UNIT_TOKENS}
_KIND_OF = {number: kind for kind, number in KINDS.items()}
_UNIT_OF = {number: unit for unit, number in UNITS.items()}


class KeptBuckets(Rows, Protocol):
    """Where buckets are kept, with their history."""

    async def put_bucket(self, name: Name, ask: BucketAsk, change: Change, steady_ms: int, now_ms: int) -> Bucket:
        """As decided, with who and why."""
        ...

    async def remove_bucket(self, name: Name, expected: int | None, change: Change, now_ms: int) -> int:
        """Gone, with who and why."""
        ...

    async def put_weight(self, name: Name, tenant: str, weight: int, change: Change, now_ms: int) -> Bucket:
        """A tenant's weight, with who and why."""
        ...

    async def changes(self, before: int, limit: int) -> list[Mapping[str, Any]]:
        """The newest changes before a version."""
        ...


class BucketServicer(bucket_service_pb2_grpc.BucketServiceServicer):
    """Decided by operators."""

    def __init__(self, kept: KeptBuckets, buckets: Buckets, tools: Tools) -> None:
        self._kept = kept
        self._buckets = buckets
        self._tools = tools

    async def ListBuckets(self, request: pb.ListBucketsRequest, context: Any) -> pb.ListBucketsResponse:
        """See the contract."""
        version = await self._kept.version()
        return pb.ListBucketsResponse(buckets=[_message(seen) for seen in await self._seen()], version=version)

    async def PutBucket(self, request: pb.PutBucketRequest, context: Any) -> pb.PutBucketResponse:
        """See the contract."""
        name, change = _name(request.name), _change(request)
        expected = request.expected_version if request.HasField("expected_version") else None
        ask = BucketAsk(request.capacity, request.per_minute, expected)
        clock = self._buckets.clock
        await self._kept.put_bucket(name, ask, change, self._buckets.steady_ms, clock.now_ms())
        return pb.PutBucketResponse(bucket=await self._one(name))

    async def RemoveBucket(self, request: pb.RemoveBucketRequest, context: Any) -> pb.RemoveBucketResponse:
        """See the contract."""
        name, change = _name(request.name), _change(request)
        expected = request.expected_version if request.HasField("expected_version") else None
        version = await self._kept.remove_bucket(name, expected, change, self._buckets.clock.now_ms())
        await self._buckets.refresh()
        return pb.RemoveBucketResponse(version=version)

    async def PutBucketWeight(self, request: pb.PutBucketWeightRequest, context: Any) -> pb.PutBucketWeightResponse:
        """See the contract."""
        name, change = _name(request.name), _change(request)
        tenant = request.tenant
        await self._kept.put_weight(name, tenant, request.weight, change, self._buckets.clock.now_ms())
        return pb.PutBucketWeightResponse(bucket=await self._one(name))

    async def ListBucketChanges(self, request: pb.ListBucketChangesRequest, context: Any) -> pb.ListBucketChangesResponse:
        """See the contract."""
        found = await self._kept.changes(request.before_version or NEWEST, request.page_size or DEFAULT_CHANGES)
        return pb.ListBucketChangesResponse(changes=[_told(row) for row in found])

    async def _seen(self) -> Sequence[Seen]:
        await self._buckets.refresh()
        return await view_buckets(self._buckets, self._tools)

    async def _one(self, name: Name) -> pb.Bucket:
        for seen in await self._seen():
            if seen.bucket.name == name:
                return _message(seen)
        raise no_bucket(name)  # taken away a moment later


class BucketViewServicer(gateway_internal_pb2_grpc.BucketViewServiceServicer):
    """Seen by the scheduler."""

    def __init__(self, buckets: Buckets, tools: Tools) -> None:
        self._buckets = buckets
        self._tools = tools

    async def ReadBuckets(self, request: internal_pb.ReadBucketsRequest, context: Any) -> internal_pb.ReadBucketsResponse:
        """See the contract. Asked again and again: that there are none, memory says, half a second old."""
        if not self._buckets.bounded:
            return internal_pb.ReadBucketsResponse()
        return internal_pb.ReadBucketsResponse(
            buckets=[
                internal_pb.BucketView(
                    name=seen.bucket.name.text,
                    calls=seen.calls,
                    capacity=seen.bucket.capacity,
                    per_minute=seen.bucket.per_minute,
                    level=seen.bucket.level,
                    typical=seen.typical,
                    floor=seen.floor,
                    waiting=seen.waiting,
                    over=[t.tenant for t in seen.tenants if t.over][:MOST_TENANTS],
                )
                for seen in await view_buckets(self._buckets, self._tools)
                if seen.calls
            ]
        )


def _name(message: pb.BucketName) -> Name:
    name = Name(_KIND_OF[message.kind], message.name, _UNIT_OF[message.unit])
    check_name(name)
    return name


def _change(request: pb.PutBucketRequest | pb.RemoveBucketRequest | pb.PutBucketWeightRequest) -> Change:
    change = Change(request.actor, request.reason)
    change.check()
    return change


def _named(kind: str, name: str, unit: str) -> pb.BucketName:
    return pb.BucketName(kind=KINDS[kind], name=name, unit=UNITS[unit])


def _told(row: Mapping[str, Any]) -> pb.BucketChange:
    return pb.BucketChange(
        version=row["version"],
        name=_named(row["kind"], row["name"], row["unit"]),
        tenant=row["tenant"],
        changed_at=translate.timestamp(row["at_ms"]),
        actor=row["actor"],
        reason=row["reason"],
        former=row["former"],
        became=row["became"],
    )


def _message(seen: Seen) -> pb.Bucket:
    bucket = seen.bucket
    tenants = [
        pb.BucketTenant(tenant=t.tenant, weight=t.weight, taken=t.taken, over=t.over) for t in seen.tenants[:MOST_TENANTS]
    ]
    return pb.Bucket(
        name=_named(*bucket.name),
        capacity=bucket.capacity,
        per_minute=bucket.per_minute,
        level=bucket.level,
        version=bucket.version,
        changed_at=translate.timestamp(bucket.changed_ms),
        tenants=tenants,
    )
