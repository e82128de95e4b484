"""Claims: polls wait here; each cycle plans over a snapshot and commits the plan with one compare-and-set for all shards.

A claim names itself: repeated, it gets the same leases with fresh tokens. What a grant of ours lost (another commit was faster,
the gate is cold, paused or closed) is explained and put where it belongs.

Can go wrong: an answer that never reaches the worker. The lease is not taken up and is ended soon; a repeat of the claim finds
it. A commit whose answer was lost: the rows are read again before anything else is granted of them.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from libs.kernel.epochs import StepFence
from libs.kernel.refusal import Reason, Refusal
from libs.runtime.faults import fault_point
from libs.telemetry.catalogue import CLAIM_CYCLE_SECONDS, GRANTS
from libs.telemetry.logs import get_logger
from services.scheduler.app.book import Book, Heard, Ready
from services.scheduler.domain.lease import Lease
from services.scheduler.domain.planner import Poll, plan
from services.scheduler.domain.ticket import Key, TicketState
from services.scheduler.ports import GrantAsk, Granted, Holder, Ports, Signed

log = get_logger(__name__)
CLAIMS_REMEMBERED = 20_000
CLASS_NAMES = {1: "interactive", 2: "automation", 3: "migration", 4: "approval_resume"}


@dataclass(frozen=True, slots=True)
class ClaimAsk:
    """Free slots of one worker process."""

    claim_id: UUID
    worker_id: str
    tenant: str
    project: str
    handlers: frozenset[str]
    capabilities: frozenset[str]
    slots: int

    @property
    def name(self) -> tuple[str, UUID]:
        """What a repeat is known by."""
        return (self.tenant, self.claim_id)


@dataclass(frozen=True, slots=True)
class GrantedLease:
    """A lease with what its attempt needs."""

    lease: Lease
    input: bytes
    traceparent: str
    signed: Signed


@dataclass(slots=True)
class _Waiting:
    ask: ClaimAsk
    number: int
    answer: "asyncio.Future[list[GrantedLease]]"
    busy: bool = False
    leaving: bool = False

    def poll(self) -> Poll:
        ask = self.ask
        return Poll(self.number, ask.tenant, ask.project, ask.handlers, ask.capabilities, ask.slots)


@dataclass(slots=True)
class ClaimDesk:
    """The polls of one process."""

    ports: Ports
    book: Book
    _waiting: dict[int, _Waiting] = field(default_factory=dict)
    _by_name: dict[tuple[str, UUID], _Waiting] = field(default_factory=dict)
    _claims: "OrderedDict[tuple[str, UUID], dict[Key, StepFence]]" = field(default_factory=OrderedDict)
    _numbers: int = 0
    closed: bool = False

    @property
    def waiting(self) -> int:
        """Polls that wait."""
        return len(self._waiting)

    async def claim(self, ask: ClaimAsk, wait_ms: int) -> list[GrantedLease]:
        """Leases for free slots, at once or within the wait; none when it passed."""
        self.book.see_worker(
            Heard(ask.tenant, ask.project, ask.worker_id, ask.handlers, ask.capabilities, self.ports.clock.now_ms())
        )
        earlier = self._by_name.get(ask.name)
        if self.closed:
            return []
        if earlier is not None and earlier.busy:
            if wait_ms <= 0:
                self._leave(earlier)
            return list(await asyncio.shield(earlier.answer))
        if earlier is not None:
            self._settle(earlier, [])
        remembered = await self._repeat(ask)
        if remembered is not None:
            return remembered
        return await self._wait(ask, wait_ms)

    async def _wait(self, ask: ClaimAsk, wait_ms: int) -> list[GrantedLease]:
        self._numbers += 1
        waiting = _Waiting(ask, self._numbers, asyncio.get_running_loop().create_future())
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

    def _leave(self, waiting: _Waiting) -> None:
        """Waits no longer; what a commit under way grants is still its answer."""
        waiting.leaving = True
        if not waiting.busy:
            self._settle(waiting, [])

    async def _repeat(self, ask: ClaimAsk) -> list[GrantedLease] | None:
        """The leases that this claim got before and that live; None where it is new."""
        held = dict(self._claims.get(ask.name, {}))
        known = ask.name in self._claims
        for lease in self.book.leases_of_claim(ask.claim_id):
            if lease.belongs_to(ask.tenant, ask.project):
                held[lease.key] = lease.fence
        if not known and not held:
            return None
        live = [self.book.leases[key] for key, fence in held.items() if self._lives(key, fence)]
        live = [lease for lease in live if lease.belongs_to(ask.tenant, ask.project)]
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

    def _settle(self, waiting: _Waiting, answer: list[GrantedLease]) -> None:
        self._waiting.pop(waiting.number, None)
        if self._by_name.get(waiting.ask.name) is waiting:
            del self._by_name[waiting.ask.name]
        if not waiting.answer.done():
            waiting.answer.set_result(answer)

    def close(self) -> None:
        """Answers every poll with nothing: the process drains."""
        self.closed = True
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
                await asyncio.sleep(0.1)
                self.book.wake.set()

    async def cycle(self) -> int:
        """One plan, committed; how many leases it granted."""
        waiting = [w for w in self._waiting.values() if not w.busy]
        polls = [w.poll() for w in waiting]
        grants = plan(polls, self.book.ready.for_polls(polls)) if polls and len(self.book.ready) else []
        if not grants:
            return 0
        taken: list[tuple[_Waiting, Ready]] = []
        epochs: dict[int, int] = {}
        for grant in grants:
            ready = self.book.ready.get(grant.key)
            epoch = self.book.epoch(ready.shard) if ready is not None else None
            if ready is not None and epoch is not None:
                epochs[ready.shard] = epoch
                taken.append((self._waiting[grant.poll], ready))
        if not taken:
            return 0
        for holder, ready in taken:
            holder.busy = True
            self.book.ready.remove(ready.candidate.key)
        answers: dict[int, list[GrantedLease]] = {}
        try:
            with CLAIM_CYCLE_SECONDS.time():
                answers = await self._commit(taken, epochs)
        finally:
            for holder in {w.number: w for w, _ in taken}.values():
                holder.busy = False
                if answers.get(holder.number) or holder.leaving:
                    self._settle(holder, answers.get(holder.number, []))
        return sum(len(leases) for leases in answers.values())

    async def _commit(self, taken: Sequence[tuple[_Waiting, Ready]], epochs: dict[int, int]) -> dict[int, list[GrantedLease]]:
        now_ms = self.ports.clock.now_ms()
        asks = [
            GrantAsk(
                key=ready.candidate.key,
                ticket_sequence=ready.ticket_sequence,
                lease_epoch=ready.lease_epoch,
                authority_epoch=epochs[ready.shard],
                attempt_id=self.ports.ids.random128(),
                worker_id=waiting.ask.worker_id,
                claim_id=waiting.ask.claim_id,
            )
            for waiting, ready in taken
        ]
        scopes = {s for _, ready in taken for s in _scopes(ready)}
        runs = {ask.key[0] for ask in asks}
        fault_point("scheduler.before_grant")
        try:
            incarnation = self.book.incarnation
            async with self.ports.db.commit(epochs, runs, incarnation=incarnation, scopes=scopes) as tx:
                mine = [ask for ask, (_, ready) in zip(asks, taken, strict=True) if ready.shard not in tx.deposed]
                granted = await tx.grant(mine, now_ms)
                first = {key[0] for key, row in granted.items() if row.first and key[0] not in self.book.started}
                started = await tx.mark_first_lease(first, now_ms) if first else []
                await tx.send([self.ports.notices.first_lease(run_id, now_ms) for run_id in started], now_ms)
        except Refusal:
            await self._look_again(taken)
            raise
        fault_point("scheduler.after_grant")
        for run_id in first:
            self.book.started.add(run_id)
        lost = [ready for _, ready in taken if ready.candidate.key not in granted and ready.shard not in tx.deposed]
        answers = self._hand_out(taken, asks, granted, epochs)
        if lost:
            await self._explain(lost)
        return answers

    def _hand_out(
        self,
        taken: Sequence[tuple[_Waiting, Ready]],
        asks: Sequence[GrantAsk],
        granted: dict[Key, Granted],
        epochs: dict[int, int],
    ) -> dict[int, list[GrantedLease]]:
        answers: dict[int, list[GrantedLease]] = {}
        for (waiting, ready), ask in zip(taken, asks, strict=True):
            row = granted.get(ask.key)
            if row is None:
                continue
            fence = StepFence(ask.authority_epoch, row.lease_epoch, ask.attempt_id)
            lease = self.book.new_lease(ready.row, fence, row.epoch)
            lease.worker_id, lease.claim_id = ask.worker_id, ask.claim_id
            if self.book.still(ready.shard, epochs[ready.shard]):
                self.book.add_lease(lease)
            signed = self.ports.tokens.sign(lease, row.epoch)
            answers.setdefault(waiting.number, []).append(GrantedLease(lease, row.input, row.traceparent, signed))
            self._claims.setdefault(waiting.ask.name, {})[ask.key] = fence
            self._claims.move_to_end(waiting.ask.name)
            GRANTS.labels(CLASS_NAMES.get(lease.run_class, "automation")).inc()
        while len(self._claims) > CLAIMS_REMEMBERED:
            self._claims.popitem(last=False)
        return answers

    async def _look_again(self, taken: Sequence[tuple[_Waiting, Ready]]) -> None:
        """The commit failed or its answer was lost: the rows say what became of it. Unreadable: look later."""
        keys = [ready.candidate.key for _, ready in taken]
        try:
            rows = await self.ports.db.read_rows(keys)
            gates = await self.ports.db.read_gates({run_id for run_id, _ in keys})
        except Refusal:
            self.book.awaited.update(key for key in keys)
            return
        for key in keys:
            row = rows.get(key)
            if row is not None and self.book.epoch(row.shard) is not None:
                self.book.put_row(row, gates.get(row.run_id))

    async def _explain(self, lost: Collection[Ready]) -> None:
        """Why tickets were not granted: cold gates are read, paused ones parked, the rest is as its row says."""
        keys = {ready.candidate.key: ready for ready in lost}
        epochs = self.book.led({ready.shard for ready in lost})
        runs = {key[0] for key in keys}
        nobody = StepFence(0, 0, UUID(int=0))
        holders = [Holder(*key, nobody, 0, ready.candidate.tenant, ready.candidate.project) for key, ready in keys.items()]
        async with self.ports.db.commit(epochs, runs, incarnation=self.book.incarnation) as tx:
            rows = await tx.rows(keys)
            judged = dict(zip(keys, await tx.judge(holders, "claim"), strict=True))
            gates = await tx.gates(runs)
        cold = {key[0] for key, verdict in judged.items() if verdict.cold}
        for key, ready in keys.items():
            row, refusal = rows.get(key), judged[key].refusal
            if row is None or row.state is not TicketState.READY or refusal is None:
                if row is not None and key[0] not in cold and self.book.epoch(row.shard) is not None:
                    self.book.put_row(row, gates.get(key[0]))
            elif refusal.reason in (Reason.RUN_PAUSED, Reason.SCOPE_STOPPED):
                self.book.parked[key] = ready
            else:
                self.book.obey.add(key[0])
                self.book.raised.set()
        if cold:
            await self._warm(cold, [ready for key, ready in keys.items() if key[0] in cold])

    async def _warm(self, runs: Collection[UUID], tickets: Sequence[Ready]) -> None:
        try:
            await read_cold(self.ports, self.book, runs)
        except Refusal as no:
            log.warning("gates cannot be read from launch now", runs=len(runs), message=no.message)
            for ready in tickets:
                self.book.parked[ready.candidate.key] = ready
            return
        for ready in tickets:
            if self.book.epoch(ready.shard) is not None:
                self.book.ready.add(ready)
                self.book.wake.set()


async def read_cold(ports: Ports, book: Book, runs: Collection[UUID]) -> None:
    """Reads gates from launch, merges and stamps them. The merge takes scopes, then gates: no gate is locked before it."""
    cold = await ports.gates.read(runs)
    async with ports.db.facts(()) as tx:
        await tx.merge_cold(cold)
    if cold.started_in == book.incarnation:
        for run_id in runs:
            book.warm.add(run_id)


def _scopes(ready: Ready) -> tuple[tuple[str, str], tuple[str, str]]:
    candidate = ready.candidate
    return (("tenant", candidate.tenant), ("project", f"{candidate.tenant}/{candidate.project}"))


def reconsider_parked(book: Book) -> None:
    """Scopes open without telling leaders: what is parked is tried again now and then, and parked again by its verdict."""
    book.unpark(book.parked)
