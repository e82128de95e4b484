"""Readiness' timers: backoffs and waits that passed, old notes, and what does not move."""

from collections.abc import Callable
from uuid import UUID

from runway.internal.inbox.v1 import inbox_pb2

from libs.pg import Database
from libs.runtime.retention import interval_ms
from libs.runtime.sender import stuck_outbox
from libs.runtime.service import Every
from services.readiness.app.apply_facts import fire_retries
from services.readiness.ports import HouseKeeping, Ports
from services.readiness.settings import ReadinessSettings

BATCH = 500


def loops(ports: Ports, house: HouseKeeping, settings: ReadinessSettings) -> list[Every]:
    """What runs while readiness serves."""

    looked_ms = ports.clock.monotonic_ms() - 3_600_000

    async def retry() -> None:
        nonlocal looked_ms
        before_ms = ports.clock.monotonic_ms() - looked_ms
        if not house.retry_may_be_due(ports.clock.now_ms(), before_ms):
            return
        looked_ms = ports.clock.monotonic_ms()
        while await fire_retries(ports):
            continue

    async def forget() -> None:
        await house.forget_closed(ports.clock.now_ms() - settings.early_keep_ms)

    async def forget_signals() -> None:
        before_ms = ports.clock.now_ms() - settings.signal_keep_ms
        while await house.forget_signals(before_ms, BATCH) == BATCH:
            continue

    return [
        Every(settings.retry_poll_ms, retry, "fire_retries"),
        Every(interval_ms(settings.early_keep_ms), forget, "forget_closed"),
        Every(interval_ms(settings.signal_keep_ms), forget_signals, "forget_signals"),
    ]


class ReadinessStuck:
    """What of readiness does not move; answers `ListStuck`."""

    def __init__(self, ports: Ports, house: HouseKeeping, db: Database, why: Callable[[UUID], str]) -> None:
        self._ports = ports
        self._house = house
        self._db = db
        self._why = why

    async def list_stuck(self, request: inbox_pb2.ListStuckRequest) -> inbox_pb2.ListStuckResponse:
        """Undelivered events, dead letters, steps that wait for an effect's outcome."""
        now = self._ports.clock.now_ms()
        limit = request.limit or 200
        items = list(await stuck_outbox(self._db, now - request.older_than_ms, limit, self._why))
        for run_id, step_key, slots in await self._house.waiting_long(limit):
            text = f"step {step_key} waits for the outcome of {slots}"
            items.append(inbox_pb2.StuckItem(kind="step_waits_for_effect", run_id=run_id.bytes, since_ms=now, detail=text))
        return inbox_pb2.ListStuckResponse(items=sorted(items, key=lambda item: item.since_ms)[:limit])
