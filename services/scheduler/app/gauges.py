"""What this process knows of buckets outside: the gateway's last view, and what it granted itself. Memory.

Can go wrong: a gateway that does not answer. Its last view goes on filling; the gateway itself still refuses what is too much.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from libs.kernel.clock import Clock
from services.scheduler.domain.buckets import EMPTY, Allowance, View, usual


@dataclass(slots=True)
class Gauges:
    """Of one process."""

    clock: Clock
    views: Sequence[View] = ()
    kept_back: bool = False
    """Whether a ticket was kept back since somebody looked."""
    _own: dict[str, float] = field(default_factory=dict)
    _before: Mapping[str, Sequence[View]] = field(default_factory=dict)
    _filled_ms: int = 0

    def see(self, views: Sequence[View]) -> None:
        """What the gateway says now."""
        self._fill()
        self.views = views
        names = {view.name for view in views}
        self._own = {name: units for name, units in self._own.items() if name in names}
        before: dict[str, list[View]] = {}
        for view in views:
            for call in view.calls:
                before.setdefault(call, []).append(view)
        self._before = before

    def allowance(self) -> Allowance:
        """For a claim cycle."""
        return Allowance(self.views, self._own, self._fill()) if self.views else EMPTY

    def granted(self, calls: Sequence[str]) -> None:
        """A lease that may call each of these."""
        if self._before and calls:
            self._fill()
            for name, units in usual(self._before, calls).items():
                self._own[name] -= units

    def _fill(self) -> int:
        """What flowed in since, as fast as the buckets themselves fill."""
        now_ms = self.clock.monotonic_ms()
        passed_ms, self._filled_ms = max(0, now_ms - self._filled_ms), now_ms
        for view in self.views:
            held = self._own.get(view.name, view.capacity)
            self._own[view.name] = min(view.capacity, held + view.per_minute * passed_ms / 60_000)
        return now_ms
