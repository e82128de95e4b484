"""The gateway's timers: tries of dead processes, tries never made, old rows, and what does not move. Each calls one verb."""

from runway.internal.inbox.v1 import inbox_pb2

from libs.pg import Database
from libs.runtime.sender import stuck_outbox
from libs.runtime.service import Every
from services.gateway.app.abort_calls import abort_calls
from services.gateway.app.adopt_tries import adopt_tries, mend_own
from services.gateway.app.draw_buckets import Buckets
from services.gateway.app.run_calls import Calls
from services.gateway.ports import Ports
from services.gateway.settings import GatewaySettings

FORGET_INTERVAL_MS = 600_000
BUCKETS_INTERVAL_MS = 500
KINDS = {"unknown": "unknown_effect", "needs_reconciliation": "effect_needs_reconciliation", "requested": "effect_under_way"}


def loops(ports: Ports, calls: Calls, settings: GatewaySettings) -> list[Every]:
    """What runs while the gateway serves."""

    async def adopt() -> None:
        while await adopt_tries(ports) >= ports.limits.adopt_rows:
            continue

    async def forget() -> None:
        await ports.processes.forget(ports.clock.now_ms() - settings.process_keep_ms)

    return [
        Every(settings.adopt_interval_ms, adopt, "adopt_tries"),
        Every(settings.abort_interval_ms, lambda: abort_calls(ports, calls), "abort_calls"),
        Every(settings.adopt_interval_ms, lambda: mend_own(ports, calls), "mend_own"),
        Every(FORGET_INTERVAL_MS, forget, "forget_processes"),
    ]


def bucket_loops(buckets: Buckets) -> list[Every]:
    """Every gateway has what was decided within a second, and keeps nothing that it does not use."""
    return [
        Every(BUCKETS_INTERVAL_MS, buckets.refresh, "refresh_buckets"),
        Every(BUCKETS_INTERVAL_MS, buckets.give_back, "give_back_buckets"),
        Every(FORGET_INTERVAL_MS, buckets.forget, "forget_bucket_uses"),
    ]


class GatewayStuck:
    """What of the gateway does not move; answers `ListStuck`."""

    def __init__(self, ports: Ports, db: Database) -> None:
        self._ports = ports
        self._db = db

    async def list_stuck(self, request: inbox_pb2.ListStuckRequest) -> inbox_pb2.ListStuckResponse:
        """Undelivered events, dead letters, effects that wait for a look-up, a person or their own call."""
        before = self._ports.clock.now_ms() - request.older_than_ms
        limit = request.limit or 200
        items = list(await stuck_outbox(self._db, before, limit))
        for stuck in await self._ports.store.stuck(before, limit):
            text = f"{stuck.tool} in slot {stuck.name.slot} of step {stuck.name.step_key} is {stuck.state}"
            items.append(
                inbox_pb2.StuckItem(
                    kind=KINDS[stuck.state],
                    run_id=stuck.name.run_id.bytes,
                    since_ms=stuck.since_ms,
                    detail=text,
                    step_key=stuck.name.step_key,
                    slot=stuck.name.slot,
                    dispatch=stuck.dispatch,
                    tool=stuck.tool,
                )
            )
        return inbox_pb2.ListStuckResponse(items=sorted(items, key=lambda item: item.since_ms)[:limit])
