"""A relay on its stand: a receiver that answers as told, and a database of its own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from uuid import UUID

from libs.outbox import (
    Outgoing,
    Relay,
    RelaySettings,
    SendResult,
    Verdict,
    append,
)
from libs.pg import Database, Statement
from libs.testkit import ManualClock, SeededIds

ROWS = Statement("rows", "SELECT event_id FROM outbox")
KEPT = Statement("kept", "SELECT event_id, incarnation FROM outbox_kept")
NOTE = Statement(
    "note", "INSERT INTO fact (event_id, note) SELECT * FROM unnest($1::uuid[], $2::text[]) ON CONFLICT DO NOTHING"
)
NOTES = Statement("notes", "SELECT note FROM fact ORDER BY note")
QUICK = RelaySettings(retry_first_ms=2, retry_longest_ms=20, acknowledge_every_ms=2, sweep_every_ms=30)


class Receiver:
    """What is on the other side. `judge` says what becomes of a payload; `hold` keeps calls waiting."""

    def __init__(self) -> None:
        self.incarnation = 256
        self.calls: list[tuple[str, str, list[bytes]]] = []
        self.applied: list[bytes] = []
        self.in_flight = 0
        self.most_in_flight: dict[tuple[str, str], int] = {}
        self.hold = asyncio.Event()
        self.hold.set()
        self.arrived = asyncio.Event()
        self.away: Exception | None = None
        self.judge: Callable[[bytes], tuple[Verdict, str, bytes]] = lambda payload: (Verdict.APPLIED, "", b"")
        self._now: dict[tuple[str, str], int] = {}

    async def send(self, receiver: str, lane: str, payloads: Sequence[bytes]) -> SendResult:
        key = (receiver, lane)
        self._now[key] = self._now.get(key, 0) + 1
        self.most_in_flight[key] = max(self.most_in_flight.get(key, 0), self._now[key])
        try:
            self.calls.append((receiver, lane, list(payloads)))
            self.arrived.set()
            await self.hold.wait()
            if self.away is not None:
                raise self.away
            verdicts = [self.judge(payload) for payload in payloads]
            self.applied += [p for p, (verdict, _, _) in zip(payloads, verdicts, strict=True) if verdict is Verdict.APPLIED]
            return SendResult(self.incarnation, verdicts)
        finally:
            self._now[key] -= 1


class Stand:
    """One outbox, its receiver and the relays of this test."""

    def __init__(self, db: Database, clock: ManualClock, ids: SeededIds) -> None:
        self.db, self.clock, self.ids = db, clock, ids
        self.receiver = Receiver()

    def event(self, text: str, *, receiver: str = "readiness", kind: str = "run_launched") -> Outgoing:
        return Outgoing(self.ids.random128(), receiver, kind, self.ids.uuid7(), text.encode())

    async def commit(self, *events: Outgoing) -> None:
        async with self.db.tx() as tx:
            await append(tx, events, self.clock.now_ms())

    @asynccontextmanager
    async def relay(
        self,
        *,
        settings: RelaySettings = QUICK,
        on_answers: Callable[[list[tuple[Outgoing, bytes]]], Awaitable[None]] | None = None,
        on_dead_letter: Callable[[Outgoing, str], None] | None = None,
        db: Database | None = None,
    ) -> AsyncIterator[Relay]:
        relay = Relay(
            db or self.db, self.receiver, self.clock, on_answers=on_answers, on_dead_letter=on_dead_letter, settings=settings
        )
        task = asyncio.create_task(relay.run())
        try:
            yield relay
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def rows(self) -> set[UUID]:
        return {row["event_id"] for row in await self.db.fetch(ROWS)}
