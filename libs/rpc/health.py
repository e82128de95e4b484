"""Authoritative for whether a service says SERVING: standard gRPC health, by short service name (`launch`), by full gRPC name,
and for the process as a whole (the empty name: every hosted service serves).

Can go wrong: a check that hangs. Each has a second to answer; silence is NOT_SERVING.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio

from libs.telemetry.catalogue import SERVICE_HEALTHY
from libs.telemetry.logs import get_logger

log = get_logger(__name__)


class HealthBoard:
    """The health of everything one process hosts; the same on all its ports."""

    def __init__(self) -> None:
        self.servicer = aio.HealthServicer()
        self._names: dict[str, tuple[str, ...]] = {}
        self._serving: dict[str, bool] = {}
        self._draining = False

    async def add(self, service: str, grpc_names: Sequence[str]) -> None:
        """Knows a service, NOT_SERVING until its first good check."""
        self._names[service] = (service, *grpc_names)
        await self.set(service, serving=False)

    async def set(self, service: str, *, serving: bool) -> None:
        """Says whether a service serves now."""
        if self._draining or self._serving.get(service) == serving:
            return
        self._serving[service] = serving
        SERVICE_HEALTHY.labels(service).set(1 if serving else 0)
        log.info("health changed", service=service, serving=serving)
        for name in self._names[service]:
            await self.servicer.set(name, _status(serving))
        await self.servicer.set("", _status(all(self._serving.values())))

    def serves(self, service: str) -> bool:
        """What was last said about a service."""
        return self._serving.get(service, False) and not self._draining

    async def check(self, service: str, healthy: Callable[[], Awaitable[bool]], timeout_ms: int = 1000) -> bool:
        """Asks the service once and says what it answered; failing and silent are both no."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                serving = await healthy()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.warning("a health check failed", service=service, error=str(error))
            serving = False
        await self.set(service, serving=serving)
        return serving

    async def drain(self) -> None:
        """NOT_SERVING for good."""
        self._draining = True
        for service in self._names:
            SERVICE_HEALTHY.labels(service).set(0)
        await self.servicer.enter_graceful_shutdown()


def _status(serving: bool) -> "health_pb2.HealthCheckResponse.ServingStatus":
    return health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
