"""Launch's timers: deadlines, waiters of other replicas, and what does not move. Each calls one verb."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from runway.internal.inbox.v1 import inbox_pb2

from libs.pg import Database
from libs.runtime.sender import stuck_outbox
from libs.runtime.service import Every
from libs.telemetry.logs import get_logger
from services.launch.app.adopt_runs import adopt_all
from services.launch.app.close_runs import expire_runs
from services.launch.app.expire_approvals import expire_approvals
from services.launch.app.mend_trees import mend_trees
from services.launch.app.spawn_children import judge_held
from services.launch.app.stop_scopes import Switches
from services.launch.app.wait_runs import WaitHub
from services.launch.ports import Ports, Promotion
from services.launch.settings import LaunchSettings

log = get_logger(__name__)


def loops(ports: Ports, hub: WaitHub, settings: LaunchSettings) -> list[Every]:
    """What runs while launch serves."""

    async def expire() -> None:
        while await expire_runs(ports):
            continue

    async def expire_asked() -> None:
        while await expire_approvals(ports):
            continue

    async def held() -> None:
        while await judge_held(ports):
            continue

    return [
        Every(settings.expire_interval_ms, expire, "expire_runs"),
        Every(settings.expire_interval_ms, held, "judge_held_spawns"),
        Every(settings.expire_interval_ms, expire_asked, "expire_approvals"),
        Every(settings.watch_poll_ms, hub.poll, "poll_waiters"),
        Every(settings.mend_interval_ms, lambda: mend_trees(ports), "mend_trees"),
    ]


class Incarnations(Promotion, Protocol):
    """What the adoption waits for."""

    @property
    def incarnation(self) -> int:
        """The newest."""
        ...

    async def changed(self) -> None:
        """Returns once there is one that is not adopted."""
        ...


def adoption(ports: Ports, promotion: Incarnations, switches: Switches) -> Callable[[], Awaitable[None]]:
    """Adopts runs whenever the database was promoted. What a point refuses ends it; it is begun again, with pauses."""

    async def run() -> None:
        while True:
            await promotion.changed()
            incarnation = promotion.incarnation
            log.warning("launch's database is in another incarnation: reading the points", incarnation=incarnation)
            await adopt_all(ports, promotion, incarnation, switches)
            log.warning("launch answers again", incarnation=incarnation)

    return run


class LaunchStuck:
    """What of launch does not move; answers `ListStuck`."""

    def __init__(self, ports: Ports, db: Database) -> None:
        self._ports = ports
        self._db = db

    async def list_stuck(self, request: inbox_pb2.ListStuckRequest) -> inbox_pb2.ListStuckResponse:
        """Undelivered events, dead letters, accepted runs nobody began, decided runs that do not settle."""
        before = self._ports.clock.now_ms() - request.older_than_ms
        limit = request.limit or 200
        items = list(await stuck_outbox(self._db, before, limit))
        for kind, rows, text in (
            ("run_not_taken_up", await self._ports.reads.idle_runs(before, limit), "accepted, and no attempt has begun"),
            ("run_not_settled", await self._ports.reads.unsettled_runs(before, limit), "decided, and not terminal"),
        ):
            items += [
                inbox_pb2.StuckItem(kind=kind, run_id=run_id.bytes, since_ms=since, detail=text) for run_id, since in rows
            ]
        return inbox_pb2.ListStuckResponse(items=sorted(items, key=lambda item: item.since_ms)[:limit])
