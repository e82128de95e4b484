"""Checkpoint's timers, and what does not move."""

from runway.internal.inbox.v1 import inbox_pb2

from libs.kernel.clock import Clock
from libs.runtime.service import Every
from services.checkpoint.app.sweep_chunks import ABANDONED_MS, sweep_chunks
from services.checkpoint.ports import Ports
from services.checkpoint.settings import CheckpointSettings
from services.checkpoint.store.reads import CheckpointReads, ChunkRows

_BATCH = 500


def loops(ports: Ports, settings: CheckpointSettings) -> list[Every]:
    """What runs while checkpoint serves."""

    async def sweep() -> None:
        while await sweep_chunks(ports, _BATCH) == _BATCH:
            continue

    return [Every(settings.sweep_interval_ms, sweep, "sweep_chunks")]


class CheckpointStuck:
    """What of checkpoint does not move; answers `ListStuck`."""

    def __init__(self, reads: CheckpointReads, rows: ChunkRows, clock: Clock) -> None:
        self._reads = reads
        self._rows = rows
        self._clock = clock

    async def list_stuck(self, request: inbox_pb2.ListStuckRequest) -> inbox_pb2.ListStuckResponse:
        """Steps whose newest checkpoint is damaged, and sweeps that were given up."""
        now, limit = self._clock.now_ms(), request.limit or 200
        items = [
            inbox_pb2.StuckItem(
                kind="damaged_checkpoint",
                run_id=run_id.bytes,
                since_ms=since,
                detail=f"the newest checkpoint of step {step_key} is damaged; attempts resume from an older one",
            )
            for run_id, step_key, since in await self._reads.damaged(now - request.older_than_ms, limit)
        ]
        count, since = await self._rows.unfinished(now - max(request.older_than_ms, 2 * ABANDONED_MS))
        if count:
            items.append(inbox_pb2.StuckItem(kind="unfinished_sweep", since_ms=since, detail=f"{count} chunks"))
        return inbox_pb2.ListStuckResponse(items=sorted(items, key=lambda item: item.since_ms)[:limit])
