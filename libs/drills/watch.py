"""Looks on: which host serves, who leads which shard; changes are facts. Detection times come from here.

Can go wrong: a look that waits for what is paused. Each has half a second.
"""

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from libs.drills.finals import SQL, ask
from libs.drills.history import History
from libs.drills.installation import Installation
from libs.kernel.refusal import Refusal

EVERY_S = 0.25
PATIENCE_S = 0.5
SHARDS_EVERY = 4


class Watch:
    """Runs beside a drill until it is cancelled."""

    def __init__(self, installation: Installation, history: History) -> None:
        self._installation = installation
        self._history = history
        self._serving: dict[str, bool] = {}
        self._leaders: dict[int, tuple[int, str]] = {}

    async def run(self) -> None:
        """Looks every quarter of a second."""
        channels: dict[str, grpc.aio.Channel] = {}
        try:
            for turn in range(1 << 30):
                looks = [self._health(channels, place) for place in range(len(self._installation.hosts))]
                if turn % SHARDS_EVERY == 0:
                    looks.append(self._shards())
                await asyncio.gather(*looks)
                await asyncio.sleep(EVERY_S)
        finally:
            for channel in channels.values():
                await channel.close()

    async def _health(self, channels: dict[str, grpc.aio.Channel], place: int) -> None:
        host = self._installation.hosts[place]
        if host.public not in channels:
            channels[host.public] = grpc.aio.insecure_channel(host.public, options=[("grpc.max_reconnect_backoff_ms", 300)])
        stub = health_pb2_grpc.HealthStub(channels[host.public])
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
            serving = answer.status == health_pb2.HealthCheckResponse.SERVING
        except grpc.aio.AioRpcError:
            serving = False
        name = f"{'+'.join(host.services)}#{place}"
        if self._serving.get(name) != serving:
            self._serving[name] = serving
            self._history.note("probe", "health", host=name, serving=serving)

    async def _shards(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                rows = await ask(self._installation.urls["scheduler"], SQL.shards)
        except (Refusal, TimeoutError, OSError):
            return
        for row in rows:
            found = (row["authority_epoch"], row["holder"])
            if found[0] and self._leaders.get(row["shard_id"]) != found:
                self._leaders[row["shard_id"]] = found
                self._history.note("probe", "leader", shard=row["shard_id"], epoch=found[0], holder=found[1])
