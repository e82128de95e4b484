"""The scheduler's timers, each calling one verb; and what of it does not move."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from runway.internal.inbox.v1 import inbox_pb2

from libs.kernel.ids import NIL, shard_of
from libs.kernel.refusal import Refusal
from libs.pg import Database
from libs.runtime.sender import stuck_outbox
from libs.runtime.service import Every, Loop
from libs.telemetry.catalogue import LEASES_LIVE, TICKETS_WAITING
from libs.telemetry.logs import get_logger
from services.scheduler.app.acknowledge_raises import look_at_awaited
from services.scheduler.app.book import Book
from services.scheduler.app.claim_attempts import CLASS_NAMES, ClaimDesk
from services.scheduler.app.decide_shares import Exchange, Shares, refresh
from services.scheduler.app.expire_leases import Doubts, Expiry
from services.scheduler.app.explain_lost import reconsider_parked
from services.scheduler.app.obey_gates import look_for_raises
from services.scheduler.app.obey_holds import Obedience
from services.scheduler.app.reclaim_slots import Reclaim
from services.scheduler.app.roll import Heard, Left
from services.scheduler.clients.leaders import Leaders
from services.scheduler.domain.buckets import View
from services.scheduler.domain.holds import Place
from services.scheduler.domain.resources import text_of
from services.scheduler.domain.ticket import POINT_NAMES
from services.scheduler.ports import Ports
from services.scheduler.settings import SchedulerSettings

log = get_logger(__name__)
KEY_KEEP_MS = 86_400_000
WORKER_KEEP_MS = 86_400_000
CARRIED_MS = 60_000
FORGET_INTERVAL_MS = 3_600_000


class HouseKeeping(Protocol):
    """What is written down now and then."""

    async def put_workers(self, workers: list[tuple[str, str, str, str, str, int, bool, str, str]]) -> None:
        """Workers seen."""
        ...

    async def leave_workers(self, workers: Sequence[tuple[str, str, int, str]]) -> None:
        """Workers that claim nothing more."""
        ...

    async def forget_workers(self, before_ms: int) -> None:
        """Workers not seen for long."""
        ...

    async def put_key(self, key_id: bytes, public_key: bytes, now_ms: int) -> None:
        """Our key, once more."""
        ...

    async def forget_keys(self, before_ms: int) -> None:
        """Keys of processes that are gone."""
        ...


NOTE_INTERVAL_MS = 500
LEFT_KEEP_MS = 60_000
"""A beat that comes later than this after its worker signed off would make it a worker again."""
RECLAIM_INTERVAL_MS = 1_000
SHARES_INTERVAL_MS = 500
LEADERS_INTERVAL_MS = 500
BUCKETS_INTERVAL_MS = 500
BUCKETS_WAKE_MS = 100
HOLDS_SHARE = 2
"""How much more seldom holds are looked for than raised gates: people make them."""


def _worker_row(heard: Heard) -> tuple[str, str, str, str, str, int, bool, str, str]:
    handlers, capabilities = "\n".join(sorted(heard.handlers)), "\n".join(sorted(heard.capabilities))
    return (
        heard.tenant,
        heard.worker_id,
        heard.project,
        handlers,
        capabilities,
        heard.seen_ms,
        heard.fleet,
        text_of(heard.resources),
        heard.process.hex(),
    )


def loops(
    ports: Ports,
    control: Ports,
    book: Book,
    desk: ClaimDesk,
    house: HouseKeeping,
    doubts: Doubts,
    key: tuple[bytes, bytes],
    settings: SchedulerSettings,
) -> list[Every | Loop]:
    """What runs while the scheduler serves."""
    expiry = Expiry(control, book, doubts, settings.expiry_interval_ms)

    async def obey() -> None:
        for turn in itertools.count():
            try:
                async with asyncio.timeout(settings.notice_interval_ms / 1000):
                    await book.raised.wait()
            except TimeoutError:
                pass
            await look_for_raises(control, book, turn)
            await look_at_awaited(control, book)

    noted: set[tuple[str, str]] = set()
    told: dict[tuple[str, str], Left] = {}

    async def note_workers() -> None:
        """New worker processes, and those that signed off, at once: people look for them when they start and when they end."""
        gone = {name: left for name, left in book.left.items() if told.get(name) != left}
        await house.leave_workers([(*name, left.at_ms, left.process.hex()) for name, left in sorted(gone.items())])
        told.update(gone)
        noted.difference_update(gone)
        new = [heard for name, heard in book.workers.items() if name not in noted]
        if new:
            await house.put_workers([_worker_row(heard) for heard in new])
            noted.update((heard.tenant, heard.worker_id) for heard in new)

    async def keep_house() -> None:
        now_ms = ports.clock.now_ms()
        await house.put_workers([_worker_row(heard) for heard in book.workers.values()])
        noted.intersection_update(book.workers)
        await house.put_key(*key, now_ms)
        await house.forget_keys(now_ms - KEY_KEEP_MS)
        await house.forget_workers(now_ms - WORKER_KEEP_MS)
        book.workers = {name: w for name, w in book.workers.items() if w.seen_ms > now_ms - WORKER_KEEP_MS}
        book.left = {name: left for name, left in book.left.items() if left.at_ms > now_ms - LEFT_KEEP_MS}
        for name in told.keys() - book.left.keys():
            del told[name]

    async def measure() -> None:
        LEASES_LIVE.set(len(book.leases))
        counts = book.ready.by_class()
        for number, name in CLASS_NAMES.items():
            TICKETS_WAITING.labels(name).set(counts.get(number, 0))

    async def drain() -> None:
        await doubts.draining()
        desk.close()
        await asyncio.Event().wait()

    async def reconsider() -> None:
        reconsider_parked(book)

    return [
        Loop("claim_cycle", desk.run),
        Loop("obey_gates", obey),
        Loop("drain_claims", drain),
        Every(settings.expiry_interval_ms, expiry.run, "expire_leases"),
        Every(NOTE_INTERVAL_MS, note_workers, "note_workers"),
        Every(settings.worker_interval_ms, keep_house, "keep_house"),
        Every(1_000, reconsider, "reconsider_parked"),
        Every(RECLAIM_INTERVAL_MS, Reclaim(book, desk).look, "reclaim_slots"),
        Every(1_000, measure, "measure"),
    ]


def share_loops(shares: Shares, book: Book, holder: str) -> list[Every | Loop]:
    """Every leader has what was decided within a second, and knows what the others use."""

    async def look() -> None:
        await refresh(shares, book)

    async def tell() -> None:
        book.room.count_aside((book.parked.values(), book.shelf.tickets.values()))
        if await exchange.run():
            book.reconsider()

    exchange = Exchange(shares, book.usage, holder)
    return [Every(SHARES_INTERVAL_MS, look, "refresh_shares"), Every(SHARES_INTERVAL_MS, tell, "exchange_use")]


class BucketReads(Protocol):
    """Buckets outside."""

    async def read(self) -> Sequence[View]:
        """All that stand before a tool or model."""
        ...


def bucket_loops(buckets: BucketReads, book: Book) -> list[Every | Loop]:
    """Tickets wait for buckets, not leases; and go on once there is enough."""
    gauges = book.usage.gauges

    async def look() -> None:
        with contextlib.suppress(Refusal):  # the gateway is away: what it said last goes on filling
            gauges.see(await buckets.read())

    async def wake() -> None:
        book.lapse()
        if gauges.kept_back:
            gauges.kept_back = False
            book.reconsider()

    return [Every(BUCKETS_INTERVAL_MS, look, "read_buckets"), Every(BUCKETS_WAKE_MS, wake, "reconsider_buckets")]


class LeaderRows(Protocol):
    """Who leads, as confirmed."""

    async def shards(self) -> list[Mapping[str, Any]]:
        """All shards."""
        ...


def leader_loops(
    leaders: Leaders, rows: LeaderRows, hears_etcd: Callable[[], bool], on_others: Callable[[], None]
) -> list[Every | Loop]:
    """Who leads is read from the rows for as long as etcd is not heard."""

    async def read() -> None:
        found: dict[int, tuple[str, str]] = {}
        if not hears_etcd():
            found = {row["shard_id"]: (row["holder"], row["address"]) for row in await rows.shards()}
        if leaders.confirmed(found) and found:
            on_others()

    return [Every(LEADERS_INTERVAL_MS, read, "read_leaders")]


def obedience_loops(obedience: Obedience, settings: SchedulerSettings) -> list[Every | Loop]:
    """What follows operators' holds."""
    return [
        Every(settings.notice_interval_ms * HOLDS_SHARE, obedience.obey, "obey_holds"),
        Every(FORGET_INTERVAL_MS, lambda: obedience.forget(settings.hold_keep_ms), "forget_holds"),
    ]


class StuckReads(Protocol):
    """What does not move."""

    async def carried(self, since_ms: int) -> set[str]:
        """Handlers that workers seen since then carry."""
        ...

    async def waiting_long(self, before_ms: int, limit: int) -> list[Mapping[str, Any]]:
        """Tickets that have waited for long."""
        ...

    async def ending_long(self, before_ms: int, limit: int) -> list[Mapping[str, Any]]:
        """Ends that wait for a point."""
        ...

    async def shards(self) -> list[Mapping[str, Any]]:
        """All shards."""
        ...


class SchedulerStuck:
    """What of the scheduler does not move; answers `ListStuck`."""

    def __init__(
        self, ports: Ports, book: Book, reads: StuckReads, db: Database, leaderless: "Leaderless", stuck_ticket_ms: int
    ) -> None:
        self._ports = ports
        self._book = book
        self._reads = reads
        self._db = db
        self._leaderless = leaderless
        self._stuck_ticket_ms = stuck_ticket_ms

    async def list_stuck(self, request: inbox_pb2.ListStuckRequest) -> inbox_pb2.ListStuckResponse:
        """Undelivered events, dead letters, tickets that nobody carries, ends that points do not acknowledge, shards without
        a leader."""
        now_ms = self._ports.clock.now_ms()
        limit = request.limit or 200
        before_ms = now_ms - request.older_than_ms
        items = list(await stuck_outbox(self._db, before_ms, limit))
        carried = {handler for worker in self._book.workers.values() for handler in worker.handlers}
        carried |= await self._reads.carried(now_ms - CARRIED_MS)
        for row in await self._reads.waiting_long(now_ms - max(request.older_than_ms, self._stuck_ticket_ms), limit):
            items.append(_item("ticket_waits", row, row["enqueued_ms"], self._why(row, carried)))
        for row in await self._reads.ending_long(before_ms, limit):
            text = f"the end of step {row['step_key']} is not acknowledged by {_points(row['raise_need'])}"
            items.append(_item("end_not_acknowledged", row, row["ended_ms"], text))
        for shard in self._leaderless.without_leader():
            text = f"shard {shard} has no leader"
            items.append(inbox_pb2.StuckItem(kind="shard_without_leader", since_ms=now_ms, detail=text))
        return inbox_pb2.ListStuckResponse(items=sorted(items, key=lambda item: item.since_ms)[:limit])

    def _why(self, row: Mapping[str, Any], carried: set[str]) -> str:
        mine = (row["run_id"], row["step_key"])
        place = Place(shard_of(mine[0]), row["tenant"], row["project"], row["handler"], (), *mine)
        held = self._book.shelf.holds.on(place)
        if held:
            words = [f"{hold.kind.name.lower()} {hold.name} by {hold.actor} ({hold.reason})" for hold in held]
            return f"step {row['step_key']} is held back: {', '.join(words)}"
        if row["raise_need"]:
            return f"step {row['step_key']} waits until {_points(row['raise_need'])} acknowledged its last end"
        if row["handler"] not in carried:
            return f"step {row['step_key']} waits: no worker seen lately carries {row['handler']}"
        return f"step {row['step_key']} waits for a free worker with {row['handler']}"


class Leaderless(Protocol):
    """Who knows which shards nobody leads."""

    def without_leader(self) -> list[int]:
        """Shards without a leader, as last heard."""
        ...


def _points(bits: int) -> str:
    return " and ".join(name for bit, name in POINT_NAMES.items() if bits & bit) or "nobody"


def _item(kind: str, row: Mapping[str, Any], since_ms: int, text: str) -> inbox_pb2.StuckItem:
    run_id = row["run_id"] if row["run_id"] is not None else NIL
    return inbox_pb2.StuckItem(kind=kind, run_id=run_id.bytes, since_ms=since_ms, detail=text)
