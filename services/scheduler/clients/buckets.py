"""Buckets, asked of the gateway's control port. Implements `loops.BucketReads`."""

from collections.abc import Sequence

from runway.internal.gateway.v1 import gateway_internal_pb2, gateway_internal_pb2_grpc

from libs.kernel.clock import Clock
from libs.runtime.peers import Peers
from services.scheduler.domain.buckets import View

DEADLINE_MS = 2_000


class GatewayBuckets:
    """One small call, twice a second."""

    def __init__(self, peers: Peers, clock: Clock) -> None:
        self._peers = peers
        self._clock = clock

    async def read(self) -> Sequence[View]:
        """Every bucket that stands before a tool or model; as of when it was asked, so that nothing is counted twice."""
        stub = self._peers.stub("gateway", gateway_internal_pb2_grpc.BucketViewServiceStub, port="control")
        asked_ms = self._clock.monotonic_ms()
        answer = await self._peers.ask(stub.ReadBuckets, gateway_internal_pb2.ReadBucketsRequest(), deadline_ms=DEADLINE_MS)
        return [
            View(
                b.name,
                frozenset(b.calls),
                b.capacity,
                b.per_minute,
                b.level - b.waiting,
                b.typical,
                b.floor,
                frozenset(b.over),
                asked_ms,
            )
            for b in answer.buckets
        ]
