"""Authoritative for delivery: what is committed in the outbox reaches its receiver at least once.

Memory is a short cut, the table is the truth: events offered after their commit are sent without being read again; the table is
read at the start, after a lost connection, when our database changed its incarnation, when a lane that was full has room again,
and in a slow sweep. An event is in `_known` from the moment memory has it until its row is gone.

Can go wrong, and what happens: the receiver is away or silent (its lane pauses, doubling), answers in part (each event by its
verdict), the relay dies after a send (the row is still there: sent again), several relays sweep (each takes rows that no other
holds), the database is away (acknowledgements wait; everything is read again afterwards). Whoever offers an event may be in the
middle of a call: sends run outside of its context, or they would end with its deadline, and so would every retry. A receiver
that does not want a crowd of events now (RETRY) does not keep others from it: what is beyond a few leaves memory (`aside.py`).
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from contextvars import Context
from uuid import UUID

from libs.kernel.clock import Clock
from libs.kernel.refusal import Refusal
from libs.outbox import store
from libs.outbox.lanes import Lane, pause
from libs.outbox.model import RAISE_LANE, Outgoing, Sender, SendResult, Verdict
from libs.outbox.recall import Recall
from libs.outbox.settings import RelaySettings
from libs.pg import Database

_log = logging.getLogger("runway.outbox")
_passes = itertools.count()
"""Tells passes over a table apart that begin in the same millisecond."""

AnswersHook = Callable[[list[tuple[Outgoing, bytes]]], Awaitable[None]]
"""Commits what answers mean. Awaited before their rows are deleted; when it raises, they are sent again."""


class Relay:
    """Sends one database's outbox. `run` may be called again after it ended."""

    def __init__(
        self,
        db: Database,
        sender: Sender,
        clock: Clock,
        *,
        on_answers: AnswersHook | None = None,
        on_dead_letter: Callable[[Outgoing, str], None] | None = None,
        settings: RelaySettings | None = None,
    ) -> None:
        self._db = db
        self._sender = sender
        self._clock = clock
        self._on_answers = on_answers
        self._on_dead_letter = on_dead_letter
        self._settings = settings or RelaySettings()
        self._group: asyncio.TaskGroup | None = None
        self._wake_acknowledge = asyncio.Event()
        self._wake_sweep = asyncio.Event()
        self._quiet = asyncio.Event()
        self._table_lock = asyncio.Lock()
        self._sweep_lock = asyncio.Lock()
        self._forget()
        db.on_incarnation_changed(lambda _: self._distrust_memory())

    def _forget(self) -> None:
        """Memory of a relay that has not begun: the table has everything."""
        self._known: dict[UUID, Outgoing] = {}
        self._attempts: dict[UUID, int] = {}
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._delivered: list[tuple[Outgoing, int]] = []
        self._incarnations: dict[str, int] = {}
        self._probes: dict[str, Outgoing] = {}
        self._answered: set[str] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._recall = Recall(self._db, self._clock, self._settings, self._take, self._later, self._begin)
        self._hungry = False
        self._quiet.clear()
        self._read_everything = True

    @property
    def keeps(self) -> bool:
        """Whether delivered events are kept for a receiver that may lose what it acknowledged."""
        return self._settings.keep_ms > 0

    @property
    def pending(self) -> int:
        """Events in memory that are not yet delivered and forgotten."""
        return len(self._known)

    def why(self, event_id: UUID) -> str:
        """What an event waits for, in its receiver's words; empty where it said nothing."""
        return self._recall.why(event_id)

    def offer(self, events: Iterable[Outgoing]) -> None:
        """Hands over events after their commit. What memory has no room for is found in the table."""
        if self._group is not None:  # else the first sweep finds them
            self._admit(events)

    async def run(self) -> None:
        """Delivers until cancelled. Ends with an error only for a mistake of ours; run again, it begins from the table."""
        if self._group is not None:
            raise RuntimeError("this relay runs already")
        self._forget()
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                group.create_task(self._sweep_loop())
                try:
                    await self._acknowledge_loop()
                finally:
                    self._group = None  # before the group waits for its tasks: nothing new is sent
        finally:
            for timer in self._timers:
                timer.cancel()
            self._forget()

    async def idle(self) -> None:
        """Waits until nothing is pending, in memory or in the table."""
        while True:
            await self._quiet.wait()
            if await self._sweep(everything=True) == 0 and self._quiet.is_set():
                return

    def _admit(self, events: Iterable[Outgoing]) -> int:
        admitted = 0
        for event in events:
            lane = self._lane(event)
            if event.event_id in self._known or lane.full:
                self._hungry = self._hungry or lane.full
                continue
            self._known[event.event_id] = event
            lane.admit(event)
            admitted += 1
            if len(self._known) == 1:
                self._quiet.clear()
        if admitted:
            self._later(0, self._pump_all)  # what commits in the same turn of the loop goes together
        return admitted

    def _lane(self, event: Outgoing) -> Lane:
        key = (event.receiver, event.lane)
        if key not in self._lanes:
            self._lanes[key] = Lane(*key, self._settings)
        return self._lanes[key]

    def _drop(self, event: Outgoing) -> None:
        """Memory forgets an event whose row is gone or is to be read again."""
        if self._known.pop(event.event_id, None) is not None:
            self._attempts.pop(event.event_id, None)
            lane = self._lane(event)
            lane.leave(event)
            if self._hungry and lane.roomy:
                self._hungry = False
                self._wake_sweep.set()
        if not self._known:
            self._quiet.set()

    def _pump_all(self) -> None:
        for lane in self._lanes.values():
            self._pump(lane)

    def _pump(self, lane: Lane) -> None:
        """Sends what may be sent now, and comes back for what may not: by one look at the clock, or a moment falls between."""
        now_s = self._now_s()
        while self._group is not None and (batch := lane.take(now_s)):
            lane.in_flight += 1
            self._group.create_task(self._deliver(lane, batch), context=Context())
        waits_s = lane.waits_s(now_s)
        due_s = now_s + waits_s
        if waits_s and lane.in_flight < self._settings.in_flight and due_s < lane.timed_s:  # a long pause may be over by now
            lane.timed_s = due_s
            self._later(waits_s, self._pump_timed, lane, due_s)

    def _pump_timed(self, lane: Lane, due_s: float) -> None:
        if lane.timed_s == due_s:
            lane.timed_s = float("inf")
        self._pump(lane)

    async def _deliver(self, lane: Lane, batch: list[Outgoing]) -> None:
        try:
            await self._send(lane, batch)
        finally:
            lane.in_flight -= 1
        self._pump(lane)

    async def _send(self, lane: Lane, batch: list[Outgoing]) -> None:
        try:
            async with asyncio.timeout(self._settings.send_timeout_ms / 1000):
                result = await self._sender.send(lane.receiver, lane.name, [event.payload for event in batch])
        except Exception as problem:  # whatever a receiver or the wire does, the rows stay
            if isinstance(problem, Refusal) and problem.status in ("INVALID_ARGUMENT", "INTERNAL"):
                await self._isolate(lane, batch, problem)
                return
            pause_s = lane.failed(self._now_s())
            _log.warning("%s: %d events not delivered (%r), again in %.2f s", lane.receiver, len(batch), problem, pause_s)
            lane.again(event for event in batch if event.event_id in self._known)
            self._later(pause_s, self._pump, lane)
            return
        lane.succeeded()
        self._answered.add(lane.receiver)
        await self._judge(lane, batch, result)

    async def _isolate(self, lane: Lane, batch: list[Outgoing], problem: Refusal) -> None:
        """The receiver cannot read the batch, or fails over it: halves find the event that is to blame, its neighbours pass.

        What it cannot read is buried; what it fails over waits alone, since a newer receiver may take it.
        """
        if len(batch) == 1:
            if problem.status == "INTERNAL" or not await self._bury([(batch[0], str(problem))]):
                _log.error("%s fails over %s about %s: %s", lane.receiver, batch[0].kind, batch[0].key, problem)
                self._retry(lane, batch)
            return
        middle = len(batch) // 2
        await self._send(lane, batch[:middle])
        await self._send(lane, batch[middle:])

    async def _judge(self, lane: Lane, batch: list[Outgoing], result: SendResult) -> None:
        """Each event by its own verdict; what has none, or cannot be finished here, is sent again."""
        missing = [(Verdict.UNSPECIFIED, "no verdict", b"")] * (len(batch) - len(result.verdicts))
        judged = list(zip(batch, [*result.verdicts, *missing], strict=False))
        applied = [(event, answer) for event, (verdict, _, answer) in judged if verdict == Verdict.APPLIED]
        refused = [(event, reason) for event, (verdict, reason, _) in judged if verdict == Verdict.REFUSED]
        unwanted = {event: reason for event, (verdict, reason, _) in judged if verdict is Verdict.RETRY}
        again = [event for event, (verdict, _, _) in judged if verdict not in (Verdict.APPLIED, Verdict.REFUSED, Verdict.RETRY)]
        try:
            await self._notice_incarnation(lane.receiver, result.incarnation)
            await self._tell_answers(lane, applied)
        except Exception as problem:
            _log.warning("%s: answers not committed (%r), asked again", lane.receiver, problem)
            again += [event for event, _ in applied]
        else:
            self._delivered += [(event, result.incarnation) for event, _ in applied]
            self._wake_acknowledge.set()
        if refused and not await self._bury(refused):
            again += [event for event, _ in refused]
        self._recall.settled(event for event, _ in (*applied, *refused))
        self._retry(lane, [*again, *await self._recall.put_off(lane, unwanted, self._drop)])
        self._recall.turn()

    def _take(self, events: Sequence[Outgoing]) -> set[UUID]:
        """Into memory; those that have no room there."""
        self._admit(events)
        return {event.event_id for event in events if event.event_id not in self._known}

    def _begin(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        if self._group is not None:
            self._group.create_task(work(), context=Context())

    async def _tell_answers(self, lane: Lane, applied: list[tuple[Outgoing, bytes]]) -> None:
        answers = [(event, answer) for event, answer in applied if answer or lane.name == RAISE_LANE]
        if answers and self._on_answers is not None:
            await self._on_answers(answers)

    async def _bury(self, refused: list[tuple[Outgoing, str]]) -> bool:
        try:
            await store.bury(self._db, refused, self._clock.now_ms())
        except Refusal:
            self._read_everything = True
            return False
        for event, reason in refused:
            _log.error("%s refused %s %s about %s: %s", event.receiver, event.kind, event.event_id, event.key, reason)
            if self._on_dead_letter is not None:
                self._on_dead_letter(event, reason)
            self._drop(event)
        return True

    def _retry(self, lane: Lane, events: Sequence[Outgoing]) -> None:
        """Each event after its own pause, so that one that is not ready yet does not hold up the lane."""
        by_pause: dict[float, list[Outgoing]] = {}
        for event in events:
            attempts = self._attempts.get(event.event_id, 0)
            self._attempts[event.event_id] = attempts + 1
            by_pause.setdefault(pause(attempts, self._settings), []).append(event)
        for pause_s, group in by_pause.items():
            self._later(pause_s, self._requeue, lane, group)

    def _requeue(self, lane: Lane, events: Sequence[Outgoing]) -> None:
        lane.again(event for event in events if event.event_id in self._known)
        self._pump(lane)

    def _later(self, delay_s: float, action: Callable[..., None], *args: object) -> None:
        def fire() -> None:
            self._timers.discard(timer)
            action(*args)

        timer = asyncio.get_running_loop().call_later(delay_s, fire, context=Context())
        self._timers.add(timer)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def _notice_incarnation(self, receiver: str, incarnation: int) -> None:
        """A receiver whose incarnation changed may have lost what it acknowledged: kept rows are due again."""
        if not self._settings.keep_ms or self._incarnations.get(receiver) == incarnation:
            return
        async with self._table_lock:  # no acknowledgement of the earlier incarnation slips in behind
            back = await self._db.fetch(store.OUTBOX_SQL.bring_back, receiver, incarnation)
            self._incarnations[receiver] = incarnation
        if back:
            _log.warning("%s is in incarnation %d now: %d delivered events are sent again", receiver, incarnation, len(back))
            self._distrust_table()

    async def _acknowledge_loop(self) -> None:
        failures = 0
        while True:
            await self._wake_acknowledge.wait()
            self._wake_acknowledge.clear()
            await asyncio.sleep(self._settings.acknowledge_every_ms / 1000)
            try:
                await self._acknowledge()
                failures = 0
            except Refusal:
                failures += 1
                self._distrust_table()
                self._later(pause(failures, self._settings), self._wake_acknowledge.set)

    async def _acknowledge(self) -> None:
        """Deletes what was delivered; what an earlier incarnation acknowledged is sent again instead."""
        async with self._table_lock:
            delivered, self._delivered = self._delivered, []
            current = [pair for pair in delivered if self._stands(*pair)]
            try:
                pairs = [(event.event_id, incarnation) for event, incarnation in current]
                await store.acknowledge(self._db, self._settings, pairs, self._clock.now_ms())
            except BaseException:
                self._delivered = delivered + self._delivered
                raise
        for event, _ in current:
            if self._settings.keep_ms:
                self._probes[event.receiver] = event
            self._drop(event)
        for event, incarnation in delivered:
            if not self._stands(event, incarnation):
                self._requeue(self._lane(event), [event])

    def _stands(self, event: Outgoing, incarnation: int) -> bool:
        return not self._settings.keep_ms or self._incarnations.get(event.receiver) == incarnation

    async def _sweep_loop(self) -> None:
        failures = 0
        while True:
            self._wake_sweep.clear()
            everything, self._read_everything = self._read_everything, False
            wait_s = self._settings.sweep_every_ms / 1000
            try:
                await self._sweep(everything=everything)
                if self._settings.keep_ms:
                    await self._tend_kept(first=everything)
                failures = 0
                if not self._known:
                    self._quiet.set()
            except Refusal as problem:
                self._read_everything = True
                wait_s = pause(failures, self._settings)
                failures += 1
                _log.warning("the outbox cannot be read (%s), again in %.2f s", problem.message, wait_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake_sweep.wait()

    async def _sweep(self, *, everything: bool) -> int:
        """Takes rows that nobody has into memory; returns how many were news."""
        async with self._sweep_lock:
            now_ms = self._clock.now_ms()
            mark_ms, news = now_ms + self._settings.claim_ms + next(_passes) % 1_000, 0
            while True:
                full = [key for key, lane in self._lanes.items() if lane.full]
                page = await store.claim(self._db, self._settings, now_ms, mark_ms, full, everything=everything)
                news += self._admit(page)
                rest = [event for event in page if event.event_id not in self._known]
                if rest:  # due again, for when there is room
                    await store.put_aside(self._db, rest, 0)
                if len(page) < self._settings.page_rows:
                    self._hungry = self._hungry or bool(full)
                    return news

    async def _tend_kept(self, *, first: bool) -> None:
        """Drops old kept rows, and asks receivers that said nothing since the last sweep for their incarnation."""
        await self._db.fetch(store.OUTBOX_SQL.drop_kept, self._clock.now_ms() - self._settings.keep_ms)
        if first:
            for row in await self._db.fetch(store.OUTBOX_SQL.read_probes):
                self._probes.setdefault(row["receiver"], store.outgoing(row))
        self._admit(probe for receiver, probe in self._probes.items() if receiver not in self._answered)
        self._answered.clear()

    def _distrust_table(self) -> None:
        """Something may have been missed: read everything, now."""
        self._read_everything = True
        self._wake_sweep.set()

    def _distrust_memory(self) -> None:
        """Our own database changed its incarnation and may have lost what we hold: only the table counts."""
        for lane in self._lanes.values():
            lane.clear()
        for event in list(self._known.values()):
            self._drop(event)
        self._recall = Recall(self._db, self._clock, self._settings, self._take, self._later, self._begin)
        self._distrust_table()
