"""Why tickets of a run are not granted: rows and gates say whether they may be, memory of the leader what else keeps them.

Asked at the leader it knows everything; elsewhere it says what the rows say, and that nobody leads. Reads only, decides
nothing. Can go wrong: a ticket that moves between two reads. Then one answer says so (UNDER_WAY), and the next one is right.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol
from uuid import UUID

from libs.kernel.blockers import Block, Blocker, Estimate, Position, blocker
from libs.kernel.clock import Clock
from libs.kernel.epochs import Mode
from libs.kernel.values import value
from services.scheduler.app.book import Book
from services.scheduler.app.claim_attempts import ClaimDesk
from services.scheduler.app.held import place_of
from services.scheduler.app.queue import Ready
from services.scheduler.domain import remedies
from services.scheduler.domain.commits import GateState
from services.scheduler.domain.estimate import estimate
from services.scheduler.domain.explain import Carrier, Explained, Snapshot, StoppedScope, WorkerRow, explain, held
from services.scheduler.domain.holds import Hold, HoldKind, Place
from services.scheduler.domain.planner import Standing
from services.scheduler.domain.ticket import POINT_NAMES, TicketRow, TicketState, Wanted

SEEN_MS = 60_000
"""A worker heard of since then counts."""
TICKETS_MOST = 1_000
REST = 4
"""Times as long as an explanation took: explanations take at most a fifth of the process."""


@value(frozen=True, slots=True)
class Told:
    """One ticket, explained."""

    row: TicketRow
    blockers: Sequence[Blocker]
    position: Position | None = None
    estimate: Estimate | None = None


class ExplainReads(Protocol):
    """What is read for an answer."""

    async def tickets(self, run_id: UUID, step_keys: Collection[str], limit: int) -> list[TicketRow]:
        """Of these steps, or every open one of the run."""
        ...

    async def gate(self, run_id: UUID) -> GateState | None:
        """The run's gate."""
        ...

    async def stopped(self, tenant: str, project: str) -> list[StoppedScope]:
        """Scopes of a run that are not open."""
        ...

    async def workers(self, since_ms: int, handlers: Collection[str]) -> list[WorkerRow]:
        """Workers seen since then that carry one of these."""
        ...


class Turns:
    """One explanation at a time, and after each a rest: whoever asks without end takes a small part of the process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._rested_ms = 0

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """What is done inside is paid for by the next."""
        async with self._lock:
            rest_ms = self._rested_ms - self._clock.monotonic_ms()
            if rest_ms > 0:
                await asyncio.sleep(rest_ms / 1_000)
            began_ms = self._clock.monotonic_ms()
            try:
                yield
            finally:
                ended_ms = self._clock.monotonic_ms()
                self._rested_ms = ended_ms + REST * (ended_ms - began_ms)


class Explainer:
    """All of it, in one process."""

    def __init__(self, reads: ExplainReads, book: Book, desk: ClaimDesk, clock: Clock) -> None:
        self._reads = reads
        self._book = book
        self._desk = desk
        self._clock = clock
        self._turns = Turns(clock)

    async def explain(self, run_id: UUID, step_keys: Collection[str]) -> list[Told]:
        """What is known of these steps' tickets; of all that are open where none is named."""
        rows = await self._reads.tickets(run_id, step_keys, TICKETS_MOST)
        waiting = [row for row in rows if row.state is TicketState.READY]
        gate = await self._reads.gate(run_id) if waiting else None
        stopped = await self._reads.stopped(waiting[0].tenant, waiting[0].project) if waiting else []  # a run has one owner
        since_ms = self._clock.now_ms() - SEEN_MS
        seen = await self._reads.workers(since_ms, {row.contract.handler for row in waiting}) if waiting else []
        async with self._turns.one():
            snapshot = self._snapshot(seen, since_ms)
            return [self._told(row, gate, stopped, snapshot) for row in rows]

    def _told(self, row: TicketRow, gate: GateState | None, stopped: Sequence[StoppedScope], snapshot: Snapshot) -> Told:
        if row.state is TicketState.ENDING:
            return Told(row, [_raise_pending(row.raise_need, row.ended_ms, "what its attempt may still do is ended")])
        if row.state is not TicketState.READY:
            return Told(row, [])
        barred = _barred(row, gate, stopped)
        if self._book.epoch(row.shard) is None:
            text = f"shard {row.shard}, which its run belongs to, has no leader that answers"
            holds = [] if barred else self._held_by_row(row)
            return Told(row, [*barred, *holds, blocker(Block.NO_LEADER, text, shard=row.shard)])
        if barred:
            return Told(row, [*barred, *self._held_by_row(row)])
        ready = self._book.ready.get(row.key) or self._book.shelf.tickets.get(row.key)
        if ready is None or ready.ticket_sequence != row.ticket_sequence:
            return Told(row, [self._elsewhere(row)])
        return self._competing(row, ready, snapshot)

    def _competing(self, row: TicketRow, ready: Ready, snapshot: Snapshot) -> Told:
        ticket = ready.candidate
        found: Explained = explain(ticket, self._book.shelf.holds.on(place_of(ready)), snapshot)
        pace = self._book.paces.of(ticket.tenant, ticket.handler)
        blockers = _until(found.blockers, row.wanted)
        return Told(row, blockers, found.position, estimate(ticket, found, pace, self._clock.now_ms()))

    def _held_by_row(self, row: TicketRow) -> list[Blocker]:
        place = Place(row.shard, row.tenant, row.project, row.contract.handler, (), *row.key)
        return [held(hold) for hold in self._book.shelf.holds.on(place)]

    def _elsewhere(self, row: TicketRow) -> Blocker:
        """Waits by its row, and is in no queue."""
        if row.key in self._book.parked:
            text = "its run's gate could not be read, or was closed to it a moment ago; it is tried again each second"
            return blocker(Block.GATE_UNREAD, text)
        what = "is being granted" if row.key in self._book.granting else "is looked at again by its leader"
        return blocker(Block.UNDER_WAY, f"its ticket {what} at this moment")

    def _snapshot(self, seen: Sequence[WorkerRow], since_ms: int) -> Snapshot:
        """What the next cycle would be given, over all tenants whose tickets are here."""
        polls = self._desk.polls()
        queues = self._book.ready.queues
        return Snapshot(polls, queues, self._standing(queues), self._carriers(seen, since_ms))

    def _standing(self, tenants: Mapping[str, object]) -> Standing:
        return self._book.usage.standing(list(tenants))

    def _carriers(self, seen: Sequence[WorkerRow], since_ms: int) -> list[Carrier]:
        """Workers by memory and by the table: a leader of this very second has not heard of all."""
        rows = {(row.owner, row.worker_id): row for row in seen}
        known = {name: row for name, row in rows.items() if not self._book.has_left(*name, row.process)}
        for heard in self._book.workers.values():
            if heard.seen_ms >= since_ms and heard.handlers:
                told = heard.handlers, heard.capabilities, heard.fleet, heard.resources
                row = WorkerRow(heard.tenant, heard.worker_id, heard.project, *told)
                known[(row.owner, row.worker_id)] = row
        return [self._carrier(row) for row in known.values()]

    def _carrier(self, row: WorkerRow) -> Carrier:
        hold: Hold | None = self._book.shelf.holds.of(HoldKind.WORKER, f"{row.owner}/{row.worker_id}")
        return Carrier("" if row.fleet else row.owner, row.project, row.handlers, row.labels, hold, row.resources)


def _barred(row: TicketRow, gate: GateState | None, stopped: Sequence[StoppedScope]) -> list[Blocker]:
    """What the grant's own statement would refuse."""
    found = []
    for scope in stopped:
        if scope.scope_id in (row.contract.calls if scope.kind == "tool" else (row.tenant, f"{row.tenant}/{row.project}")):
            how = "being drained" if scope.mode is Mode.DRAINING else "stopped"
            text = f"{scope.kind} {scope.scope_id} is {how}"
            remedy = remedies.scope(scope.kind, scope.scope_id)
            found.append(blocker(Block.SCOPE_STOPPED, text, remedy=remedy, kind=scope.kind, scope=scope.scope_id))
    if gate is not None and gate.mode is Mode.CLOSED:
        found.append(blocker(Block.RUN_ENDED, f"its run is closed: {gate.outcome or 'its outcome is decided'}"))
    elif gate is not None and gate.mode is Mode.DRAINING:
        remedy = f"resume it: `runway run resume {row.run_id}`"
        found.append(blocker(Block.RUN_PAUSED, "its run is paused: nothing new of it is granted", remedy=remedy))
    if row.raise_need:
        found.append(_raise_pending(row.raise_need, row.ended_ms, "its former attempt is fenced off"))
    return found


def _until(blockers: Sequence[Blocker], wanted: Wanted | None) -> list[Blocker]:
    """What a bucket keeps back goes without it when the time of its wait has passed."""
    if wanted is None:
        return list(blockers)
    told = {"slot": wanted.slot, "calls": str(wanted.calls)}
    return [
        replace(found, until_ms=wanted.until_ms, detail={**found.detail, **told}) if found.code is Block.BUCKET_EMPTY else found
        for found in blockers
    ]


def _raise_pending(bits: int, since_ms: int, what: str) -> Blocker:
    points = " and ".join(name for bit, name in POINT_NAMES.items() if bits & bit)
    text = f"it waits until {points} confirmed that {what}" if points else "its attempt's end is being told"
    return blocker(Block.RAISE_PENDING, text, since_ms=since_ms, points=points)
