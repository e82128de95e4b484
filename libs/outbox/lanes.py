"""Authoritative for what of one receiver and lane waits in memory, and when it may be sent. No I/O.

Can go wrong: more waits than there is room for. Then the lane takes no more and the rest stays in the table. A timer fires
early, or time moves between two looks at the clock: at one and the same moment a lane that has something either gives a batch
or says how long it still waits, or is full of batches in flight; never none of them, or what waits would wait for ever.
"""

from collections import deque
from collections.abc import Iterable

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

    def take(self, now_s: float) -> list[Outgoing]:
        """The next batch, when one may be sent now; else nothing."""
        if self.in_flight >= self._settings.in_flight or self.waits_s(now_s) > 0:
            return []
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
        before had some, so that batches grow under load and a lonely event goes at once."""
        if not self._queue:
            return 0.0
        due_s = self._not_before_s
        if self._gathered and len(self._queue) < self._settings.batch_events:
            due_s = max(due_s, self._started_s + self._settings.spacing_ms / 1000)
        return due_s - now_s if due_s - now_s > GRAIN_S else 0.0

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
