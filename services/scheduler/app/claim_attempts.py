"""Claims: polls wait here; each cycle plans over a snapshot and commits the plan with one compare-and-set for all shards.

A claim names itself: repeated, it gets the same leases with fresh tokens. What a grant of ours lost (another commit was faster,
the gate is cold, paused or closed) is explained and put where it belongs.

A process that drains answers every poll with nothing, and grants nothing from then on.

Can go wrong: an answer that never reaches the worker. The lease is not taken up and is ended soon; a repeat of the claim finds
it. A commit whose answer was lost: the rows are read again before anything else is granted of them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from uuid import UUID

from libs.kernel.epochs import StepFence
from libs.kernel.refusal import Refusal
from libs.runtime.faults import fault_point
from libs.telemetry.catalogue import CLAIM_CYCLE_SECONDS, GRANTS
from libs.telemetry.logs import get_logger
from services.scheduler.app.book import Book
from services.scheduler.app.claims import AnsweredClaims, ClaimAsk, Direct, GrantedLease, Taken, Waiting, heard_of, scopes_of
from services.scheduler.app.explain_lost import explain, look_again
from services.scheduler.app.queue import Ready
from services.scheduler.domain.asker import Asker
from services.scheduler.domain.commits import GrantAsk, Granted
from services.scheduler.domain.lease import Lease
from services.scheduler.domain.lines import TenantQueue, queued
from services.scheduler.domain.planner import Grant, plan
from services.scheduler.domain.polls import Poll
from services.scheduler.domain.ticket import Key, Ticket, TicketRow
from services.scheduler.ports import Ports, Tx

log = get_logger(__name__)
REFUSED_PAUSE_S = 0.1
"""Whoever refused a cycle gets a moment: the polls still wait, and the next plan begins anew."""
SETTLE_PAUSE_S = 0.005
CLASS_NAMES = {1: "interactive", 2: "automation", 3: "migration", 4: "approval_resume"}


@dataclass(slots=True)
class ClaimDesk:
    """The polls of one process."""

    ports: Ports
    book: Book
    _waiting: dict[int, Waiting] = field(default_factory=dict)
    _by_name: dict[tuple[Asker, UUID], Waiting] = field(default_factory=dict)
    _answered: AnsweredClaims = field(default_factory=AnsweredClaims)
    _numbers: int = 0
    draining: Callable[[], bool] = lambda: False
    """Whether the process is on its way out, known before `close` is called."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Every poll was answered for the last time."""

    @property
    def closed(self) -> bool:
        """Whether nothing is granted any more."""
        return self.ended.is_set() or self.draining()

    @property
    def waiting(self) -> int:
        """Polls that wait."""
        return len(self._waiting)

    async def claim(self, ask: ClaimAsk, wait_ms: int) -> list[GrantedLease]:
        """Leases for free slots, at once or within the wait; none when it passed."""
        self.book.see_worker(heard_of(ask, self.ports.clock.now_ms()))
        earlier = self._by_name.get(ask.name)
        if earlier is not None and earlier.busy:
            if wait_ms <= 0:
                self._leave(earlier)
            return list(await asyncio.shield(earlier.answer))
        if earlier is not None:
            self._settle(earlier, [])
        remembered = await self._repeat(ask)
        if remembered is not None or self.closed:
            return remembered or []
        return await self._wait(ask, wait_ms)

    async def _wait(self, ask: ClaimAsk, wait_ms: int) -> list[GrantedLease]:
        self._numbers += 1
        waiting = Waiting(ask, self._numbers, asyncio.get_running_loop().create_future())
        self._waiting[waiting.number] = waiting
        self._by_name[ask.name] = waiting
        self.book.wake.set()
        try:
            if wait_ms > 0:
                async with asyncio.timeout(wait_ms / 1000):
                    return list(await asyncio.shield(waiting.answer))
            await self.cycle()
        except TimeoutError:
            pass
        except BaseException:
            self._leave(waiting)
            raise
        self._leave(waiting)
        return list(await asyncio.shield(waiting.answer))

    def _idle(self) -> list[Waiting]:
        """Polls that may be served now: no plan has them, and nobody holds their worker back."""
        holds = self.book.shelf.holds
        waiting = [w for w in self._waiting.values() if not w.busy]
        return [w for w in waiting if not holds.stops_worker(w.ask.who.owner, w.ask.worker_id)] if holds else waiting

    def polls(self) -> list[Poll]:
        """What the next cycle would plan for."""
        return [] if self.closed else [w.poll() for w in self._idle()]

    def answer_idle(self) -> None:
        """Answers polls that no plan has with nothing: those who lead are others now, and workers ask them anew."""
        for waiting in [w for w in self._waiting.values() if not w.busy]:
            self._settle(waiting, [])

    async def settled(self) -> None:
        """Returns once every plan that is under way now is over."""
        under_way = [w for w in self._waiting.values() if w.busy]
        while under_way := [w for w in under_way if w.busy]:  # noqa: ASYNC110 - of many plans, each cycle has its own
            await asyncio.sleep(SETTLE_PAUSE_S)  # commits end in milliseconds, and holds change seldom

    def _leave(self, waiting: Waiting) -> None:
        """Waits no longer; what a commit under way grants is still its answer."""
        waiting.leaving = True
        if not waiting.busy:
            self._settle(waiting, [])

    async def _repeat(self, ask: ClaimAsk) -> list[GrantedLease] | None:
        """The leases that this claim got before and that live; None where it is new."""
        answered = self._answered.get(ask.name)
        held, known = dict(answered or {}), answered is not None
        for lease in self.book.leases_of_claim(ask.claim_id):
            if lease.is_held_by(ask.who, ask.worker_id):
                held[lease.key] = lease.fence
        if not known and not held:
            return None
        live = [self.book.leases[key] for key, fence in held.items() if self._lives(key, fence)]
        live = [lease for lease in live if lease.is_held_by(ask.who, ask.worker_id)]
        if not live:
            return []
        inputs = await self.ports.db.inputs([lease.key for lease in live])
        again = []
        for lease in live:
            if lease.key in inputs and self._lives(lease.key, lease.fence):
                signed = self.ports.tokens.sign(lease, lease.epoch)
                again.append(GrantedLease(lease, *inputs[lease.key], signed))
        return again

    def _lives(self, key: Key, fence: StepFence) -> bool:
        lease = self.book.leases.get(key)
        return lease is not None and lease.fence == fence and not lease.stopping

    def _settle(self, waiting: Waiting, answer: list[GrantedLease]) -> None:
        self._waiting.pop(waiting.number, None)
        if self._by_name.get(waiting.ask.name) is waiting:
            del self._by_name[waiting.ask.name]
        if not waiting.answer.done():
            waiting.answer.set_result(answer)

    def close(self) -> None:
        """Answers every poll with nothing: the process drains."""
        self.ended.set()
        for waiting in list(self._waiting.values()):
            self._leave(waiting)

    async def run(self) -> None:
        """Cycles whenever something may be granted."""
        while True:
            await self.book.wake.wait()
            self.book.wake.clear()
            try:
                while await self.cycle():
                    continue
            except Refusal as no:
                log.warning("a claim cycle was refused", reason=no.reason.value, message=no.message)
                await asyncio.sleep(REFUSED_PAUSE_S)
                self.book.wake.set()

    async def cycle(self) -> int:
        """One plan, committed; how many leases it granted."""
        if self.closed:
            return 0
        polls = self.polls()
        grants = self._plan(polls, self.book.ready.for_polls(polls)) if polls and len(self.book.ready) else []
        taken: list[Taken] = []
        for grant in grants:
            ready = self.book.ready.get(grant.key)
            if ready is not None and self.book.epoch(ready.shard) is not None and not self.book.shelf.stops(ready):
                taken.append((self._waiting[grant.poll], ready))
        if not taken:
            return 0
        epochs = {ready.shard: self.book.epochs[ready.shard] for _, ready in taken}
        for holder, ready in taken:
            holder.busy = True
            self.book.ready.remove(ready.candidate.key)
            self.book.granting.add(ready.candidate.key)
        answers: dict[int, list[GrantedLease]] = {}
        try:
            with CLAIM_CYCLE_SECONDS.time():
                answers, lost = await self._commit(taken, epochs)
        except Refusal:
            await look_again(self.ports, self.book, [ready for _, ready in taken])
            raise
        except BaseException:
            self.book.awaited.update(ready.candidate.key for _, ready in taken)  # the rows say what became of them
            raise
        finally:
            self.book.granting.difference_update(ready.candidate.key for _, ready in taken)
            self._answer(taken, answers)
        if lost:
            try:
                await explain(self.ports, self.book, lost)
            except Refusal:
                self.book.awaited.update(ready.candidate.key for ready in lost)
                raise
        return sum(len(leases) for leases in answers.values())

    def _plan(self, polls: Sequence[Poll], queues: Mapping[str, TenantQueue]) -> list[Grant]:
        standing = self.book.usage.standing(queues)
        grants = plan(polls, queues, standing)
        if standing.allowance.kept_back:
            self.book.usage.gauges.kept_back = True
        return grants

    async def _commit(
        self, taken: Sequence[Taken], epochs: dict[int, int]
    ) -> tuple[dict[int, list[GrantedLease]], list[Ready]]:
        """What each poll gets, and tickets that were not granted."""
        now_ms = self.ports.clock.now_ms()
        scopes = {s for _, ready in taken for s in scopes_of(ready.candidate.tenant, ready.candidate.project)}
        runs = {ready.candidate.key[0] for _, ready in taken}
        incarnation = self.book.incarnation
        fault_point("scheduler.before_grant")
        async with self.ports.db.commit(epochs, runs, incarnation=incarnation, scopes=scopes) as tx:
            asks = self._asks([pair for pair in taken if pair[1].shard not in tx.deposed], epochs)
            granted = await self._grant(tx, asks, now_ms)
        lost = [ready for _, ready in taken if ready.candidate.key not in granted and ready.shard not in tx.deposed]
        return self._hand_out(taken, asks, granted, epochs), lost

    def _asks(self, taken: Sequence[Taken], epochs: dict[int, int]) -> list[GrantAsk]:
        return [
            GrantAsk(
                key=ready.candidate.key,
                ticket_sequence=ready.ticket_sequence,
                lease_epoch=ready.lease_epoch,
                authority_epoch=epochs[ready.shard],
                attempt_id=self.ports.ids.random128(),
                worker_id=waiting.ask.worker_id,
                claim_id=waiting.ask.claim_id,
                fleet=waiting.ask.who.fleet_name,
                wanted=ready.row.wanted,
            )
            for waiting, ready in taken
        ]

    async def _grant(self, tx: Tx, asks: Sequence[GrantAsk], now_ms: int) -> dict[Key, Granted]:
        """Grants in a transaction that holds the locks."""
        granted = await tx.grant(asks, now_ms)
        await self._tell_first(tx, granted, now_ms)
        met = [self.ports.notices.capacity(ask.key, ask.wanted, now_ms) for ask in asks if ask.wanted and ask.key in granted]
        if met:
            await tx.send(met, now_ms)
        return granted

    async def _tell_first(self, tx: Tx, granted: Mapping[Key, Granted], now_ms: int) -> None:
        """A run's first lease is told once."""
        first = sorted({key[0] for key, row in granted.items() if row.first})
        if first:
            await tx.mark_first_lease(first, now_ms)
            await tx.send([self.ports.notices.first_lease(run_id, now_ms) for run_id in first], now_ms)

    def _answer(self, taken: Sequence[Taken], answers: Mapping[int, list[GrantedLease]]) -> None:
        """Polls of a plan go on waiting, or have their answer."""
        for holder in {waiting.number: waiting for waiting, _ in taken}.values():
            holder.busy = False
            if answers.get(holder.number) or holder.leaving:
                self._settle(holder, answers.get(holder.number, []))

    def scopes_to_lock(self, tickets: Sequence[Ticket]) -> set[tuple[str, str]]:
        """Scopes of new tickets that may be granted as they come, because somebody waits for such."""
        wanted = {(w.ask.tenant, handler) for w in self._idle() for handler in w.ask.handlers}
        some = [t for t in tickets if (t.tenant, t.contract.handler) in wanted or ("", t.contract.handler) in wanted]
        return {scope for ticket in some for scope in scopes_of(ticket.tenant, ticket.project)}

    def plan_directly(
        self, rows: Sequence[TicketRow], scopes: AbstractSet[tuple[str, str]], epochs: dict[int, int], incarnation: int
    ) -> Direct | None:
        """Plans grants of tickets in the transaction that stores them, where polls wait and nothing older fits them.

        The same planner decides. `done_directly` must follow, whatever becomes of the commit.
        """
        polls = [w.poll() for w in self._idle()]
        if self.closed or not polls or self.book.ready.serves(polls):
            return None
        fresh = {row.key: self.book.ready_of(row) for row in rows if row.grantable(incarnation)}
        fresh = {
            key: ready
            for key, ready in fresh.items()
            if scopes >= set(scopes_of(ready.candidate.tenant, ready.candidate.project)) and not self.book.shelf.stops(ready)
        }
        grants = self._plan(polls, queued(ready.candidate for ready in fresh.values()))
        if not grants:
            return None
        taken = [(self._waiting[grant.poll], fresh[grant.key]) for grant in grants]
        for waiting, _ in taken:
            waiting.busy = True
        return Direct(taken, self._asks(taken, epochs), {})

    async def grant_directly(
        self, tx: Tx, rows: Sequence[TicketRow], scopes: AbstractSet[tuple[str, str]], epochs: dict[int, int], now_ms: int
    ) -> Direct | None:
        """As planned directly, and granted: one commit less. The same statement judges as in a cycle."""
        direct = self.plan_directly(rows, scopes, epochs, tx.incarnation)
        if direct is None:
            return None
        try:
            fault_point("scheduler.before_grant")
            direct.granted = await self._grant(tx, direct.asks, now_ms)
        except BaseException:
            self._answer(direct.taken, {})
            raise
        return direct

    async def put_leased(self, tx: Tx, direct: Direct, tickets: Mapping[Key, Ticket], now_ms: int, first: int) -> None:
        """Stores what was planned directly as leased, where the step was never met before; of the rest nothing is planned."""
        fault_point("scheduler.before_grant")
        planned = [tickets[ask.key] for ask in direct.asks]
        direct.granted = await tx.put_leased(planned, direct.asks, now_ms, first)
        await self._tell_first(tx, direct.granted, now_ms)

    def done_directly(self, direct: Direct, epochs: dict[int, int], *, committed: bool) -> set[Key]:
        """After the commit: hands out what was granted; its keys. Where it failed, polls go on waiting."""
        answers: dict[int, list[GrantedLease]] = {}
        try:
            if committed:
                answers = self._hand_out(direct.taken, direct.asks, direct.granted, epochs)
        finally:
            self._answer(direct.taken, answers)  # whatever happened: nobody else ends the wait of these polls
        return set(direct.granted) if committed else set()

    def _hand_out(
        self,
        taken: Sequence[Taken],
        asks: Sequence[GrantAsk],
        granted: Mapping[Key, Granted],
        epochs: dict[int, int],
    ) -> dict[int, list[GrantedLease]]:
        """Leases into memory, tokens signed; by poll."""
        fault_point("scheduler.after_grant")
        answers: dict[int, list[GrantedLease]] = {}
        by_key = {ask.key: ask for ask in asks}
        given: list[tuple[Waiting, Lease, Granted]] = []
        for waiting, ready in taken:
            row = granted.get(ready.candidate.key)
            if row is None:
                continue
            ask = by_key[ready.candidate.key]
            fence = StepFence(ask.authority_epoch, row.lease_epoch, ask.attempt_id)
            lease = self.book.new_lease(ready.row, fence, row.epoch, leased_ms=row.leased_ms)
            lease.worker_id, lease.claim_id, lease.fleet = ask.worker_id, ask.claim_id, ask.fleet
            if self.book.still(ready.shard, epochs[ready.shard]):
                self.book.add_lease(lease)
            given.append((waiting, lease, row))
        classes: dict[int, int] = {}
        tokens = self.ports.tokens.sign_many([(lease, row.epoch) for _, lease, row in given])
        for (waiting, lease, row), signed in zip(given, tokens, strict=True):
            if isinstance(signed, Refusal):  # the lease is not taken up and ends by itself; its neighbours go out
                log.error("a token cannot be made", run_id=str(lease.run_id), step_key=lease.step_key, message=signed.message)
                continue
            answers.setdefault(waiting.number, []).append(GrantedLease(lease, row.input, row.traceparent, signed))
            self._answered.add(waiting.ask.name, lease.key, lease.fence)
            classes[lease.run_class] = classes.get(lease.run_class, 0) + 1
            self.book.paces.note(lease.tenant, lease.contract.handler)
        for number, count in classes.items():
            GRANTS.labels(CLASS_NAMES.get(number, "automation")).inc(count)
        return answers
