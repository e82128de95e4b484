"""Authoritative for how a crowd that its receiver does not want now leaves memory, and comes back by pages (`aside.py`).

Can go wrong: the database is away. Then what should leave stays in memory and is sent again by itself, and what should come
back waits for the next turn.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from uuid import UUID

from libs.kernel.clock import Clock
from libs.kernel.refusal import Refusal
from libs.outbox import store
from libs.outbox.aside import Aside
from libs.outbox.lanes import Lane
from libs.outbox.model import Outgoing
from libs.outbox.settings import RelaySettings
from libs.pg import Database


class Recall:
    """What one relay put aside. `take` puts events into memory and answers those that have no room there, `later` calls after
    so many seconds, `begin` runs beside the sends."""

    def __init__(
        self,
        db: Database,
        clock: Clock,
        settings: RelaySettings,
        take: Callable[[Sequence[Outgoing]], set[UUID]],
        later: Callable[[float, Callable[[], None]], None],
        begin: Callable[[Callable[[], Coroutine[None, None, None]]], None],
    ) -> None:
        self._db, self._clock, self._settings = db, clock, settings
        self._take, self._later, self._begin = take, later, begin
        self._aside = Aside(settings)
        self._turn_s = float("inf")
        self._leaving: set[UUID] = set()
        """Their rows are being left alone: not asked for before that."""

    def why(self, event_id: UUID) -> str:
        """What an event waits for; empty where nobody said."""
        return self._aside.why(event_id)

    def settled(self, events: Iterable[Outgoing]) -> None:
        """They were taken, or refused for good."""
        for event in events:
            self._aside.settled(event.event_id, _now_s())

    async def put_off(self, lane: Lane, unwanted: Mapping[Outgoing, str], drop: Callable[[Outgoing], None]) -> list[Outgoing]:
        """Puts aside what is one of a crowd, out of memory; answers what stays there."""
        now_s = _now_s()
        leaving = {
            event.event_id: event
            for event, reason in unwanted.items()
            if self._aside.refused(event.event_id, lane.receiver, lane.name, reason, now_s)
        }
        if leaving:
            self._leaving.update(leaving)
            try:
                await store.put_aside(self._db, leaving.values(), self._clock.now_ms() + self._settings.aside_ms)
            except Refusal:
                self.settled(leaving.values())
                return list(unwanted)
            finally:
                self._leaving.difference_update(leaving)
            for event in leaving.values():
                drop(event)
        return [event for event in unwanted if event.event_id not in leaving]

    def turn(self) -> None:
        """Comes back when some crowd is due."""
        due_s = self._aside.next_s()
        if due_s < self._turn_s:
            self._turn_s = due_s
            self._later(max(0.0, due_s - _now_s()), lambda: self._now(due_s))

    def _now(self, due_s: float) -> None:
        if self._turn_s == due_s:
            self._begin(self._ask)

    async def _ask(self) -> None:
        """A page of each crowd that is due goes into memory and is sent."""
        for crowd, page in self._aside.due(_now_s()):
            ids = [event_id for event_id in page if event_id not in self._leaving]
            try:
                found = await store.take_back(self._db, ids, self._clock.now_ms() + self._settings.claim_ms) if ids else []
            except Refusal:
                ids, found = [], []
            self._aside.ask(crowd, ids, {event.event_id for event in found})
            self._aside.unasked(crowd, self._take(found), _now_s())
        self._turn_s = float("inf")
        self.turn()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
