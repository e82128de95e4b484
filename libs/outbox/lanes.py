"""Authoritative for what of one receiver and lane waits in memory, and when it may be sent. No I/O.

Can go wrong: more waits than there is room for. Then the lane takes no more and the rest stays in the table. A timer fires
early, or time moves between two looks at the clock: at one and the same moment a lane that has something either gives a batch
or says how long it still waits, or is full of batches in flight; never none of them, or what waits would wait for ever. An
event that overtakes another of its key: patient ones go before whatever follows them.
"""

from collections import deque
from collections.abc import Iterable
from uuid import UUID

from libs.outbox.model import Outgoing
from libs.outbox.settings import RelaySettings

GRAIN_S = 0.0005
"""A shorter wait is none: the event loop's timers know whole milliseconds."""


class Lane:
    """Events for one receiver that go by one RPC. Times are seconds of the event loop."""

    def __init__(self, receiver: str, name: str, settings: RelaySettings) -> None:
        self.receiver = receiver
        self.name = name
        self.in_flight = 0
        self.timed_s = float("inf")
        self._settings = settings
        self._queue: deque[Outgoing] = deque()
        self._held = 0
        self._held_bytes = 0
        self._failures = 0
        self._not_before_s = 0.0
        self._started_s = float("-inf")
        self._gathered = False
        self._patient: dict[UUID, list[Outgoing]] = {}
        self._patient_started_s = float("-inf")
        self._patient_gathered = False
        self._patient_since_s: float | None = None

    @property
    def full(self) -> bool:
        """Whether it has no room."""
        return self._held >= self._settings.lane_events or self._held_bytes >= self._settings.lane_bytes

    @property
    def roomy(self) -> bool:
        """Whether it has room for many."""
        return self._held <= self._settings.lane_events // 2 and self._held_bytes <= self._settings.lane_bytes // 2

    def admit(self, event: Outgoing) -> None:
        """Takes an event into memory, at the end of the queue."""
        self._held += 1
        self._held_bytes += len(event.payload)
        if event.patient:
            self._patient.setdefault(event.key, []).append(event)
            return
        if self._patient:
            self._queue.extend(self._patient.pop(event.key, ()))
            if not self._patient:
                self._patient_since_s = None
        self._queue.append(event)

    def again(self, events: Iterable[Outgoing]) -> None:
        """Queues events that are in memory already."""
        self._queue.extend(events)

    def leave(self, event: Outgoing) -> None:
        """Gives up the room of an event that left memory."""
        self._held -= 1
        self._held_bytes -= len(event.payload)

    def clear(self) -> None:
        """Empties the queue; who empties it gives up the room of each event."""
        self._queue.clear()
        self._patient.clear()
        self._patient_since_s = None

    def take(self, now_s: float) -> list[Outgoing]:
        """The next batch, when one may be sent now; else nothing."""
        if self.in_flight >= self._settings.in_flight or self.waits_s(now_s) > 0:
            return []
        if self._patient and self._patient_due_s(now_s) - now_s <= GRAIN_S:
            self._release(now_s)
        batch: list[Outgoing] = []
        size = 0
        while self._queue and len(batch) < self._settings.batch_events:
            size += len(self._queue[0].payload)
            if batch and size > self._settings.batch_bytes:
                break
            batch.append(self._queue.popleft())
        if batch:
            self._started_s, self._gathered = now_s, len(batch) > 1
        return batch

    def waits_s(self, now_s: float) -> float:
        """How long what is queued still waits: for a receiver that failed, and for company; the latter only where the batch
        before had some, so that batches grow under load and a lonely event goes at once. Patient ones wait longer for it."""
        if not self._queue and not self._patient:
            return 0.0
        due_s = float("inf")
        if self._queue:
            spaced = self._gathered and len(self._queue) < min(self._settings.worth_events, self._settings.batch_events)
            due_s = self._started_s + self._settings.spacing_ms / 1000 if spaced else now_s
        if self._patient:
            due_s = min(due_s, self._patient_due_s(now_s))
        due_s = max(due_s, self._not_before_s)
        return due_s - now_s if due_s - now_s > GRAIN_S else 0.0

    def _patient_due_s(self, now_s: float) -> float:
        """When those that nothing waits for go: a while after the last of them went, or, where that one went alone, a short
        while after they were first looked at."""
        if self._patient_since_s is None:
            self._patient_since_s = now_s
        alone_s = self._patient_since_s + self._settings.lone_patience_ms / 1000
        return max(alone_s, self._patient_started_s + self._settings.patience_ms / 1000) if self._patient_gathered else alone_s

    def _release(self, now_s: float) -> None:
        """Patient events into the queue, those of a key together."""
        released = [event for events in self._patient.values() for event in events]
        self._patient.clear()
        self._patient_since_s = None
        self._queue.extend(released)
        self._patient_started_s, self._patient_gathered = now_s, len(released) > 1

    def succeeded(self) -> None:
        """The receiver answered."""
        self._failures = 0
        self._not_before_s = 0.0

    def failed(self, now_s: float) -> float:
        """The receiver did not answer: how long the lane pauses, in seconds."""
        pause_s = pause(self._failures, self._settings)
        self._failures += 1
        self._not_before_s = now_s + pause_s
        return pause_s


def pause(failures: int, settings: RelaySettings) -> float:
    """Seconds to wait after so many earlier failures."""
    return min(settings.retry_first_ms << min(failures, 20), settings.retry_longest_ms) / 1000
