"""What this process knows of buckets outside: the gateway's last view, and what it granted itself. Memory.

Our own level of a bucket is the gateway's less one usual call for each lease that may still call. What a lease is counted for
comes back as the bucket itself fills, and once it is over and a view was asked for since: that one knows what it called.

Can go wrong: a gateway that does not answer. Its last view goes on filling; the gateway itself still refuses what is too much.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from libs.kernel.clock import Clock
from services.scheduler.domain.buckets import EMPTY, Allowance, View, Wants, by_call, usual

MOST_ENDED = 100_000


@dataclass(slots=True)
class Gauges:
    """Of one process."""

    clock: Clock
    views: Sequence[View] = ()
    kept_back: bool = False
    """Whether a ticket was kept back since somebody looked."""
    _own: dict[str, float] = field(default_factory=dict)
    _before: Mapping[str, Sequence[View]] = field(default_factory=dict)
    _ended: deque[tuple[int, str, float]] = field(default_factory=lambda: deque(maxlen=MOST_ENDED))
    _filled_ms: int = 0

    def see(self, views: Sequence[View]) -> None:
        """What the gateway says now."""
        self._fill()
        own, asked_ms = self._own, max((view.at_ms for view in views), default=0)
        while self._ended and self._ended[0][0] < asked_ms:
            _, name, units = self._ended.popleft()
            if name in own:
                own[name] += units
        formerly = {view.name: view for view in self.views}
        for view in views:
            former = formerly.get(view.name)
            if former is not None:  # more than flowed in: given back, or decided
                own[view.name] += max(0.0, view.level - former.level_at(view.at_ms))
        self._own = {view.name: min(own.get(view.name, view.level), view.level) for view in views}
        self.views = views
        self._before = by_call(views)
        if not views:
            self._ended.clear()

    def allowance(self) -> Allowance:
        """For a claim cycle."""
        return Allowance(self.views, self._own, self._fill(), self._before) if self.views else EMPTY

    def granted(self, calls: Sequence[str], wants: Wants = ()) -> None:
        """A lease that may call each of these, or as often as it waited for."""
        if self._before and calls:
            self._fill()
            for name, units in usual(self._before, calls, wants).items():
                self._own[name] -= units

    def ended(self, calls: Sequence[str], wants: Wants = ()) -> None:
        """It calls no more; what it called, the next view knows."""
        if self._before and calls:
            now_ms = self.clock.monotonic_ms()
            self._ended.extend((now_ms, name, units) for name, units in usual(self._before, calls, wants).items())

    def _fill(self) -> int:
        """What flowed in since, as fast as the buckets themselves fill."""
        now_ms = self.clock.monotonic_ms()
        passed_ms, self._filled_ms = max(0, now_ms - self._filled_ms), now_ms
        for view in self.views:
            held = self._own.get(view.name, view.level)
            self._own[view.name] = min(view.capacity, held + view.per_minute * passed_ms / 60_000)
        return now_ms
