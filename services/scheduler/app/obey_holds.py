"""Holds and stopped scopes as the tables say them into this process' memory, and the word that it acts on them.

Every process reads the table every few hundred milliseconds; the one that changed it reads at once. Tickets that are held
go from what may be granted to the shelf, what is held no more goes back in the order in which it came. A change is
acknowledged once no plan made before it is under way. What lives of a killed tenant or project is ended as if it had
yielded: it comes again, with no attempt counted, once its scope is open. Can go wrong: the database is away. What was read
last stays in force.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from libs.kernel.clock import Clock
from libs.kernel.epochs import Mode
from services.scheduler.app.book import Book
from services.scheduler.app.claim_attempts import ClaimDesk
from services.scheduler.app.held import place_of, place_of_lease
from services.scheduler.domain.ending import Ending
from services.scheduler.domain.holds import Holds
from services.scheduler.domain.ticket import End, Failure

STEP = 1_000
"""Tickets that move between two turns of the event loop."""
DAY_MS = 86_400_000
KILLED = Failure("yield", "its tenant or project was stopped", "SCOPE_STOPPED")
SAY_AGAIN_MS = 60_000
"""How often it is said anew which changes are acted upon."""


class HoldReads(Protocol):
    """What is held."""

    async def in_force(self) -> Holds:
        """The holds in force, and the revision of which they are."""
        ...

    async def acknowledge(self, member_id: str, revision: int, now_ms: int) -> None:
        """This process acts on every change up to a revision."""
        ...

    async def sign_off(self, member_id: str) -> None:
        """This process grants nothing any more."""
        ...

    async def forget(self, before_ms: int, silent_ms: int) -> None:
        """What ended before a time; processes not heard of since another."""
        ...


@dataclass(slots=True)
class Obedience:
    """Follows the table for one process."""

    rows: HoldReads
    book: Book
    desk: ClaimDesk
    clock: Clock
    member_id: str
    end: Callable[[Sequence[Ending]], Awaitable[object]]
    """Ends attempts that are still exactly these."""
    _followed: bool = False
    """Memory changed since it was last waited for plans made before."""
    _said: int = -1
    _said_ms: int = 0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def obey(self) -> None:
        """Acts on the table as it stands, and says so."""
        async with self._turn:
            holds = await self._follow()
            if self._followed:
                await self.desk.settled()
                self._followed = False
            if Mode.CLOSED in holds.stopped.values():
                killed = [lease for lease in self.book.leases.values() if holds.killed(place_of_lease(lease))]
                await self.end([Ending(lease.run_id, lease.step_key, lease.fence, End.YIELDED, KILLED) for lease in killed])
            now_ms = self.clock.now_ms()
            if holds.revision != self._said or now_ms - self._said_ms >= SAY_AGAIN_MS:
                await self.rows.acknowledge(self.member_id, holds.revision, now_ms)
                self._said, self._said_ms = holds.revision, now_ms

    async def before_leading(self) -> None:
        """A word that this process lives, whatever etcd says of it so far, and then memory as the table stands: a change that
        is not read here comes after the word, so who makes it hears of this process and waits for it."""
        async with self._turn:
            await self.rows.acknowledge(self.member_id, max(self._said, 0), self.clock.now_ms())
            await self._follow()

    async def _follow(self) -> Holds:
        holds = await self.rows.in_force()
        former = self.book.shelf.holds
        if (holds.revision, holds.stopped) != (former.revision, former.stopped):
            self._followed = True
            await follow(self.book, holds)
        return holds

    async def leave(self) -> None:
        """Nobody waits for this process any more."""
        await self.rows.sign_off(self.member_id)

    async def forget(self, keep_ms: int) -> None:
        """History has an end."""
        now_ms = self.clock.now_ms()
        await self.rows.forget(now_ms - keep_ms, now_ms - DAY_MS)


async def follow(book: Book, holds: Holds) -> None:
    """Memory under these holds. From the first line on no plan grants what they stop."""
    book.shelf.holds = holds
    shelf = book.shelf.tickets
    lifted = sorted(shelf.values(), key=lambda ready: ready.candidate.place)
    for place, ready in enumerate(lifted):
        if place % STEP == STEP - 1:
            await asyncio.sleep(0)
        key = ready.candidate.key
        if shelf.get(key) is ready and not holds.stops(place_of(ready)):
            del shelf[key]
            book.admit(ready)
    stopped = [ready for ready in book.ready if holds.stops(place_of(ready))] if holds else []
    for place, ready in enumerate(reversed(stopped)):  # from the end, where taking one out of its bucket moves no other
        if place % STEP == STEP - 1:
            await asyncio.sleep(0)
        if book.ready.get(ready.candidate.key) is ready:
            book.ready.remove(ready.candidate.key)
            book.admit(ready)
