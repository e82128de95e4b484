"""Migrations that borrowed slots are asked to give them back, once a second, and the ask is withdrawn when nobody needs them.

Authoritative for nothing: the ask is a mark in memory, told with the next heartbeat; who hears it ends at its next checkpoint
(or goes on: nothing is ever killed). Each process looks at its own leases and tickets. Can go wrong: a mark that outlives its
need. Every look marks anew, and unmarks the rest.
"""

from services.scheduler.app.book import Book
from services.scheduler.app.claim_attempts import ClaimDesk
from services.scheduler.domain.rank import MIGRATION
from services.scheduler.domain.reclaim import DEAF_MS, Held, asked, wanted


class Reclaim:
    """The looks of one process."""

    def __init__(self, book: Book, desk: ClaimDesk) -> None:
        self._book = book
        self._desk = desk
        self._before = 0
        self._marked = False

    async def look(self) -> None:
        """Marks leases that should end at their next checkpoint, and unmarks the others."""
        book = self._book
        now = []
        if book.usage.shared.get(MIGRATION) and len(book.ready):
            polls, queues = self._desk.polls(), book.ready.queues
            standing = book.usage.standing(list(queues))
            now = wanted(self._held(), polls, queues, standing)
        keys = asked(now, self._before)
        self._before = len(now)
        now_ms = book.clock.monotonic_ms()
        for lease in book.leases.values() if keys or self._marked else ():
            if lease.key not in keys:
                lease.give_back = False
            elif not lease.give_back:
                lease.give_back, lease.asked_ms = True, now_ms
        self._marked = bool(keys)

    def _held(self) -> list[Held]:
        """Migrations on shared workers, with what their workers carry; of a worker not heard of here nothing is known."""
        found, now_ms = [], self._book.clock.monotonic_ms()
        for lease in self._book.leases.values():
            if lease.run_class != MIGRATION or not lease.shared or lease.stopping:
                continue
            worker = self._book.workers.get((lease.fleet, lease.worker_id))
            if worker is not None and worker.handlers:
                told = worker.handlers, worker.capabilities, lease.contract.resources, worker.resources
                deaf = lease.give_back and now_ms - lease.asked_ms >= DEAF_MS
                found.append(Held(lease.key, lease.granted_ms, lease.give_back, *told, deaf))
        return found
