"""End silent leases: the domain decides, this gathers what speaks against ourselves and commits what was decided.

Can go wrong: a sweep that ran late itself. Its own lateness counts as evidence, like the process' and the database's.
"""

from typing import Protocol

from libs.telemetry.catalogue import SWEEPS_HELD
from libs.telemetry.logs import get_logger
from services.scheduler.app.book import Book
from services.scheduler.app.end_attempts import end_attempts
from services.scheduler.domain.expiry import Evidence, sweep
from services.scheduler.ports import Ports

log = get_logger(__name__)


class Doubts(Protocol):
    """Evidence against ourselves that the process gathers."""

    @property
    def loop_lag_ms(self) -> float:
        """How late our timers are."""
        ...

    @property
    def etcd_ms(self) -> float:
        """How long etcd took to answer last."""
        ...

    async def draining(self) -> None:
        """Returns once the process is on its way out."""
        ...


class Expiry:
    """Ends silent leases. `sweep` decides; this gathers what speaks against ourselves and commits."""

    def __init__(self, ports: Ports, book: Book, doubts: Doubts, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._due_ms = 0
        self._ports = ports
        self._book = book
        self._doubts = doubts

    async def run(self) -> None:
        """One sweep."""
        book, limits = self._book, self._ports.limits
        now_ms = self._ports.clock.monotonic_ms()
        late_ms = max(self._doubts.loop_lag_ms, now_ms - self._due_ms) if self._due_ms else 0.0
        self._due_ms = now_ms + self._interval_ms
        evidence = Evidence(late_ms, book.database_ms, self._doubts.etcd_ms, book.heard)
        book.database_ms, book.heard = 0.0, 0
        live = [lease for lease in book.leases.values() if book.epoch(lease.shard) is not None]
        found = sweep(live, now_ms, limits.first_beat_ms, limits.lease_ttl_ms, evidence, book.hold)
        if found.held and found.hold != book.hold:
            SWEEPS_HELD.inc()
            log.warning("an expiry sweep is held: the evidence is against ourselves", evidence=str(evidence))
        book.hold = found.hold
        await end_attempts(self._ports, book, found.endings)
