"""Heartbeats: the leader's memory alone, constant work each. A new token comes when half of the old one's life has passed.

Where no leader can be asked, as while etcd has no quorum, the row of the lease answers: what was granted stands until some
leader commits its end, whoever that will be, and a leader that takes over gives each live lease a full TTL of grace.

Can go wrong: a beat for a shard that nobody leads while the database is away (UNKNOWN: the worker goes on until its TTL
passes), or one that keeps alive what was fenced (`domain.lease.beat` extends the exact fence only; a row's answer extends
nothing).
"""

from collections.abc import Sequence

from libs.kernel.epochs import Mode
from libs.kernel.ids import shard_of
from libs.kernel.values import value
from libs.telemetry.catalogue import HEARTBEATS, ZOMBIES_REFUSED
from services.scheduler.app.book import Book
from services.scheduler.app.held import place_of_lease
from services.scheduler.app.roll import Heard
from services.scheduler.domain.asker import Asker
from services.scheduler.domain.commits import GateState, Signed
from services.scheduler.domain.holds import Holds
from services.scheduler.domain.lease import Answer, Beat, Lease, beat
from services.scheduler.domain.ticket import TicketRow, TicketState
from services.scheduler.ports import Ports

_COUNTERS = {answer: HEARTBEATS.labels(answer.name.lower()) for answer in Answer}


@value(frozen=True, slots=True)
class Beaten:
    """The answer to one heartbeat."""

    answer: Answer
    signed: Signed | None = None
    please_yield: bool = False
    """Whether its run is paused, an operator drains what it is of, or others need the slot that it borrowed."""


def beat_attempts(
    ports: Ports, book: Book, worker_id: str, who: Asker, beats: Sequence[Beat], *, leaving: bool = False, process: bytes = b""
) -> list[Beaten]:
    """One answer per heartbeat, in order. `leaving`: their process claims nothing more; its leases live as any other's.
    `process`: which of that name it is."""
    now_ms = ports.clock.monotonic_ms()
    led = book.led({shard_of(said.run_id) for said in beats})
    nothing = frozenset[str]()
    holds = book.shelf.holds
    if leaving:
        book.worker_left(who.owner, worker_id, process, ports.clock.now_ms(), last=not beats)
    else:
        told = nothing, nothing, ports.clock.now_ms(), who.fleet
        book.see_worker(Heard(who.owner, who.project, worker_id, *told, process=process))
    answers: list[Beaten] = []
    for said in beats:
        if shard_of(said.run_id) not in led:
            answers.append(Beaten(Answer.UNKNOWN))
            continue
        lease = book.leases.get(said.key)
        answer = beat(lease, said, who, worker_id, now_ms)
        signed: Signed | None = None
        please_yield = False
        if answer is Answer.LIVE and lease is not None:
            book.heard += 1
            please_yield = lease.mode is Mode.DRAINING or lease.give_back or _asked_to_yield(holds, lease)
            if now_ms >= lease.renew_ms:
                signed = ports.tokens.sign(lease, lease.epoch)
                lease.renew_ms = now_ms + ports.limits.token_life_ms // 2
        elif answer is Answer.FENCED and (said.key, said.attempt_id) in book.stopped:
            answer = Answer.CANCELLED
        answers.append(Beaten(answer, signed, please_yield))
    for answered in answers:
        _COUNTERS[answered.answer].inc()
    fenced = sum(answered.answer is Answer.FENCED for answered in answers)
    if fenced:
        ZOMBIES_REFUSED.labels("scheduler").inc(fenced)
    return answers


@value(frozen=True, slots=True)
class StoredBeat:
    """A heartbeat that no leader answers, and who sends it."""

    worker_id: str
    who: Asker
    said: Beat


async def beat_stored(ports: Ports, asks: Sequence[StoredBeat]) -> list[Answer]:
    """One answer per heartbeat that no leader answers, in order; two statements for all of them."""
    stored = await ports.db.read_rows({ask.said.key for ask in asks})
    gates = await ports.db.read_gates({ask.said.run_id for ask in asks})
    incarnation = ports.db.incarnation
    return [_stored_answer(ask, stored.get(ask.said.key), gates.get(ask.said.run_id), incarnation) for ask in asks]


def _stored_answer(ask: StoredBeat, row: TicketRow | None, gate: GateState | None, incarnation: int) -> Answer:
    """LIVE where the row is leased to exactly this attempt under a gate that is not closed, FENCED where some leader has
    committed its end, all in this incarnation of the database. Else nobody knows."""
    said, who = ask.said, ask.who
    if row is None or gate is None or row.incarnation != incarnation:
        return Answer.UNKNOWN
    if row.fence.lease_epoch > said.lease_epoch and who.may_beat(
        row.tenant, row.project, row.fleet, ask.worker_id, ask.worker_id
    ):
        return Answer.FENCED
    lives = (
        gate.mode is not Mode.CLOSED
        and row.state is TicketState.LEASED
        and (row.fence.attempt_id, row.fence.lease_epoch) == (said.attempt_id, said.lease_epoch)
        and who.may_beat(row.tenant, row.project, row.fleet, row.worker_id, ask.worker_id)
    )
    return Answer.LIVE if lives else Answer.UNKNOWN


def _asked_to_yield(holds: Holds, lease: Lease) -> bool:
    return bool(holds) and holds.asks_to_yield(place_of_lease(lease), lease.fleet or lease.tenant, lease.worker_id)
