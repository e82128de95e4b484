"""Authoritative for which events their receiver does not want now wait in memory, which are put aside, and when those are sent
again. No I/O.

A receiver that says RETRY says what the event waits for. A few that wait for the same are each sent again by themselves. A
crowd would fill its lane and keep everybody else's events out, so what is beyond the few leaves memory: the table keeps it, its
id stays here, and a page of the oldest is sent now and then. While most is taken, the next and larger one follows at once.

Can go wrong: an id that is remembered here and whose row is gone, or that another relay delivers. Asking for it finds nothing,
and it is forgotten. More ids than there is room for are left to the sweep, which finds their rows when their time has passed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from libs.outbox.settings import RelaySettings


@dataclass(slots=True, eq=False)
class Crowd:
    """Events of one lane that wait for the same."""

    receiver: str
    lane: str
    reason: str
    page: int
    due_s: float = 0.0
    here: set[UUID] = field(default_factory=set)
    """In memory, each sent again by itself."""
    aside: dict[UUID, None] = field(default_factory=dict)
    """Only in the table, the oldest first."""
    asked: set[UUID] = field(default_factory=set)
    """Of the page that was sent again and is not judged yet."""
    taken: int = 0
    size: int = 0


class Aside:
    """What receivers do not want now."""

    def __init__(self, settings: RelaySettings) -> None:
        self._settings = settings
        self._crowds: dict[tuple[str, str, str], Crowd] = {}
        self._of: dict[UUID, Crowd] = {}

    def __len__(self) -> int:
        return sum(len(crowd.aside) for crowd in self._crowds.values())

    def why(self, event_id: UUID) -> str:
        """What an event waits for, in its receiver's words; empty where nobody said."""
        crowd = self._of.get(event_id)
        return crowd.reason if crowd else ""

    def refused(self, event_id: UUID, receiver: str, lane: str, reason: str, now_s: float) -> bool:
        """The receiver does not want it now; whether it leaves memory."""
        former = self._of.get(event_id)
        key = (receiver, lane, reason)
        crowd = self._crowds.get(key)
        if crowd is None:
            crowd = self._crowds[key] = Crowd(*key, self._settings.aside_page)
        if former is crowd and event_id in crowd.here:
            return False
        was_asked = former is not None and event_id in former.asked
        self._leave(event_id, now_s, taken=former is not crowd)
        if not was_asked and not crowd.aside and len(crowd.here) < self._settings.crowd_events:
            crowd.here.add(event_id)
            self._of[event_id] = crowd
            return False
        if len(self._of) < self._settings.aside_events:
            if not crowd.aside and not crowd.asked:
                crowd.due_s = max(crowd.due_s, now_s + self._settings.aside_every_ms / 1000)
            crowd.aside[event_id] = None
            self._of[event_id] = crowd
        return True

    def settled(self, event_id: UUID, now_s: float) -> None:
        """It was taken, or refused for good."""
        self._leave(event_id, now_s, taken=True)

    def due(self, now_s: float) -> list[tuple[Crowd, list[UUID]]]:
        """The next page of each crowd whose time has come."""
        found = []
        for key, crowd in list(self._crowds.items()):
            if not (crowd.here or crowd.aside or crowd.asked):
                del self._crowds[key]
            elif crowd.aside and not crowd.asked and crowd.due_s <= now_s:
                ids = [event_id for event_id, _ in zip(crowd.aside, range(crowd.page), strict=False)]
                found.append((crowd, ids))
        return found

    def ask(self, crowd: Crowd, ids: Iterable[UUID], there: set[UUID]) -> None:
        """A page is sent again: those whose rows are there; the others are forgotten."""
        for event_id in ids:
            crowd.aside.pop(event_id, None)
            if event_id in there:
                crowd.asked.add(event_id)
            elif self._of.get(event_id) is crowd:
                del self._of[event_id]
        crowd.taken, crowd.size = 0, len(crowd.asked)

    def unasked(self, crowd: Crowd, ids: Iterable[UUID], now_s: float) -> None:
        """There was no room for these: later."""
        for event_id in ids:
            crowd.asked.discard(event_id)
            crowd.aside[event_id] = None
        if not crowd.asked:
            crowd.due_s = now_s + self._settings.aside_every_ms / 1000

    def next_s(self) -> float:
        """When something is due; infinity where nothing is."""
        waiting = [crowd.due_s for crowd in self._crowds.values() if crowd.aside and not crowd.asked]
        return min(waiting, default=float("inf"))

    def _leave(self, event_id: UUID, now_s: float, *, taken: bool) -> None:
        crowd = self._of.pop(event_id, None)
        if crowd is None:
            return
        crowd.here.discard(event_id)
        crowd.aside.pop(event_id, None)
        if event_id in crowd.asked:
            crowd.asked.discard(event_id)
            crowd.taken += taken
            if not crowd.asked:
                most = crowd.taken * 2 >= crowd.size
                crowd.page = min(crowd.page * 2, self._settings.page_rows) if most else self._settings.aside_page
                crowd.due_s = now_s if most else now_s + self._settings.aside_every_ms / 1000
