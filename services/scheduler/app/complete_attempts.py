"""Ends that workers report, in batches: success with an output, failure, or a yield.

One transaction for a batch: success passes the gate (not closed, epoch equal) and the exact lease, and raises beside its event;
what follows it by that alone is ticketed beside it. Any other end passes the exact lease and raises first. What did not pass is
explained under the same locks: a repeat of an equal report is recorded already, a cold gate is read and tried again, the rest
is refused by name.

Can go wrong: two reports of one attempt. The first that commits stands; the other is equal (recorded) or refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from libs.kernel.ids import shard_of
from libs.kernel.refusal import Reason, Refusal, unreachable
from libs.kernel.values import value
from libs.runtime.faults import fault_point
from libs.telemetry.catalogue import LEASES_ENDED, ZOMBIES_REFUSED
from services.scheduler.app import continue_runs
from services.scheduler.app.book import Book
from services.scheduler.app.claim_attempts import ClaimDesk
from services.scheduler.app.ends import note_ends, tell_quiet, write_ends
from services.scheduler.app.read_gates import read_cold
from services.scheduler.app.record_commands import AWAITED, write_commands
from services.scheduler.app.refusals import fenced, no_leader
from services.scheduler.domain.commits import Command, Holder, Judged, Report, Won
from services.scheduler.domain.ending import Ending, Finished
from services.scheduler.domain.ticket import End, Failure, Key, TicketRow
from services.scheduler.ports import Ports, Tx

ROUNDS = 3
_STOPPED = (Reason.RUN_CANCELLED, Reason.RUN_CLOSED)


@value(frozen=True, slots=True)
class Completion:
    """What one worker reports. `report` is the digest of what it says, by which a repeat is known."""

    holder: Holder
    end: End
    report: bytes
    output: bytes = b""
    failure: Failure | None = None
    commands: tuple[Command, ...] = ()


@dataclass(slots=True)
class _Round:
    """Outcomes so far; what is cold is tried again."""

    outcomes: dict[int, Refusal | None] = field(default_factory=dict)
    again: list[int] = field(default_factory=list)
    rows: list[TicketRow] = field(default_factory=list)


async def complete_attempts(ports: Ports, book: Book, desk: ClaimDesk, asks: Sequence[Completion]) -> list[bool | Refusal]:
    """One outcome per report: recorded, or why not."""
    outcomes: dict[int, Refusal | None] = {}
    left = list(range(len(asks)))
    for _ in range(ROUNDS):
        if not left:
            break
        now, later = _one_a_step(asks, left)
        found = await _round(ports, book, desk, {place: asks[place] for place in now})
        outcomes |= found.outcomes
        if found.again:
            await read_cold(ports, book, {asks[place].holder.run_id for place in found.again})
        left = sorted(found.again + later)
    for place in left:
        outcomes[place] = unreachable("a gate that stays as it is while a report is judged")
    refused = [no for no in outcomes.values() if no is not None and no.reason is Reason.LEASE_FENCED]
    if refused:
        ZOMBIES_REFUSED.labels("scheduler").inc(len(refused))
    return [outcomes[place] or True for place in range(len(asks))]


def _one_a_step(asks: Sequence[Completion], places: list[int]) -> tuple[list[int], list[int]]:
    """A statement judges one report a step; further ones of the same step come after it."""
    seen: set[Key] = set()
    now: list[int] = []
    later: list[int] = []
    for place in places:
        (later if asks[place].holder.key in seen else now).append(place)
        seen.add(asks[place].holder.key)
    return now, later


async def _round(ports: Ports, book: Book, desk: ClaimDesk, asks: dict[int, Completion]) -> _Round:
    found = _Round()
    epochs = book.led({ask.holder.shard for ask in asks.values()})
    mine = {place: ask for place, ask in asks.items() if ask.holder.shard in epochs}
    found.outcomes |= {place: no_leader() for place in asks.keys() - mine.keys()}
    if not mine:
        return found
    now_ms = ports.clock.now_ms()
    runs = {ask.holder.run_id for ask in mine.values()}
    scopes = {s for ask in mine.values() for s in scopes_of(ask.holder)}
    work = continue_runs.begin(book, [ask.holder for ask in mine.values() if ask.end is End.SUCCEEDED])
    under = continue_runs.Under(scopes, epochs, now_ms)
    try:
        async with ports.db.commit(epochs, runs, incarnation=book.incarnation, scopes=scopes) as tx:
            deposed = {place for place, ask in mine.items() if ask.holder.shard in tx.deposed}
            found.outcomes |= {place: no_leader() for place in deposed}
            mine = {place: ask for place, ask in mine.items() if place not in deposed}
            won = await _succeed(ports, book, desk, tx, [ask for ask in mine.values() if ask.end is End.SUCCEEDED], work, under)
            refused = await _commands(ports, tx, book, mine, now_ms)
            others = [ask for place, ask in mine.items() if ask.end is not End.SUCCEEDED and place not in refused]
            ended = await write_ends(ports, tx, [_ending(ask) for ask in others], epochs, now_ms)
            lost = {p: ask for p, ask in mine.items() if ask.holder.key not in won and ask.holder.key not in ended}
            if lost:
                await _explain(tx, found, lost, refused)
            not_open = {w.run_id for w in won.values() if w.mode} | {run_id for run_id, _ in ended}
            await tell_quiet(ports, tx, not_open, now_ms)
            await continue_runs.grant(desk, tx, work, under)
    except BaseException:
        continue_runs.failed(book, desk, work, epochs)
        raise
    try:
        fault_point("scheduler.after_complete")
        _remember(book, epochs, won, ended)
        continue_runs.committed(book, desk, work, epochs)
    except BaseException:  # committed, and not in memory: the rows say what is there
        continue_runs.failed(book, desk, work, epochs)
        raise
    for row in found.rows:
        book.correct(row)
    found.outcomes |= {place: None for place in mine if place not in lost}
    return found


async def _succeed(
    ports: Ports,
    book: Book,
    desk: ClaimDesk,
    tx: Tx,
    asks: list[Completion],
    work: continue_runs.Continuation,
    under: continue_runs.Under,
) -> dict[Key, Won]:
    """Successes: the raise goes beside the event, and what follows is ticketed, in the same commit."""
    if not asks:
        return {}
    now_ms = under.now_ms
    won = await tx.succeed([(ask.holder, ask.report) for ask in asks], under.epochs, now_ms, work.following.keys())
    recorded = {ask.holder.key: (won[ask.holder.key], ask.holder, ask.output) for ask in asks if ask.holder.key in won}
    await continue_runs.put(ports, book, desk, tx, work, recorded, under)
    notices = []
    for ask in asks:
        row = won.get(ask.holder.key)
        if row is not None:
            continued = continue_runs.names(work, ask.holder.key)
            patient = continue_runs.carries_on(work, ask.holder.key)
            notices.append(ports.notices.finished(_finished(ask, row, now_ms), now_ms, continued, patient=patient))
            notices += ports.notices.raises(ask.holder.key, row.fence, row.points)
    await tx.send(notices, now_ms)
    return won


def _finished(ask: Completion, row: Won, now_ms: int) -> Finished:
    fence = ask.holder.fence
    return Finished(
        run_id=row.run_id,
        step_key=row.step_key,
        ticket_sequence=row.ticket_sequence,
        attempt_id=fence.attempt_id,
        lease_epoch=fence.lease_epoch,
        authority_epoch=fence.authority_epoch,
        end=End.SUCCEEDED,
        failure=None,
        output=ask.output,
        unresolved={},
        worker_id=row.worker_id,
        ended_ms=now_ms,
        awaits=row.expanded,
    )


def _ending(ask: Completion) -> Ending:
    holder = ask.holder
    awaits = tuple(dict.fromkeys(command.slot for command in ask.commands if command.kind in AWAITED))
    return Ending(holder.run_id, holder.step_key, holder.fence, ask.end, ask.failure, ask.report, awaits=awaits)


async def _commands(ports: Ports, tx: Tx, book: Book, asks: dict[int, Completion], now_ms: int) -> dict[int, Judged | Refusal]:
    """Commands inside yields: in the commit of the yield, fenced as commands are. What is refused is not ended either."""
    asking = {place: ask for place, ask in asks.items() if ask.commands}
    if not asking:
        return {}
    items = [(ask.holder, ask.commands) for ask in asking.values()]
    judged = await write_commands(ports, tx, book, items, now_ms)
    return {place: no for place, no in zip(asking, judged, strict=True) if no is not None}


async def _explain(tx: Tx, found: _Round, lost: dict[int, Completion], refused: dict[int, Judged | Refusal]) -> None:
    """Under the locks that it lost under."""
    holders = [ask.holder for ask in lost.values()]
    rows = await tx.rows([holder.key for holder in holders])
    found.rows = list(rows.values())
    reports = await tx.reports([(holder.key, holder.fence.lease_epoch) for holder in holders])
    verdicts = await tx.judge(holders, "progress")
    for (place, ask), verdict in zip(lost.items(), verdicts, strict=True):
        row, report = rows.get(ask.holder.key), reports.get(ask.holder.key)
        if _recorded(ask, row, report):
            found.outcomes[place] = None
            continue
        no = refused.get(place)
        if isinstance(no, Refusal) or (isinstance(no, Judged) and no.refusal is not None):
            found.outcomes[place] = no if isinstance(no, Refusal) else no.refusal
        elif row is None or row.fence != ask.holder.fence or row.incarnation != tx.incarnation:
            stopped = verdict.refusal is not None and verdict.refusal.reason in _STOPPED
            found.outcomes[place] = verdict.refusal if stopped else fenced(ask.holder)
        elif verdict.refusal is not None and ask.end is End.SUCCEEDED:
            found.outcomes[place] = verdict.refusal
        else:
            found.again.append(place)


def _recorded(ask: Completion, row: TicketRow | None, report: Report | None) -> bool:
    """Whether this very report of this very attempt stands already."""
    attempt = ask.holder.fence.attempt_id
    if report is not None and report.attempt_id == attempt:
        return report.report == ask.report
    return row is not None and row.ended_attempt == attempt and row.report == ask.report


def _remember(book: Book, epochs: dict[int, int], won: dict[Key, Won], ended: dict[Key, TicketRow]) -> None:
    for key in won:
        if book.still(shard_of(key[0]), epochs[shard_of(key[0])]):
            book.forget(key)
    note_ends(book, epochs, ended)
    LEASES_ENDED.labels("succeeded").inc(len(won))
    for row in ended.values():
        LEASES_ENDED.labels(row.end.name.lower()).inc()


def scopes_of(holder: Holder) -> tuple[tuple[str, str], tuple[str, str]]:
    """The scopes an attempt stands under."""
    return (("tenant", holder.tenant), ("project", f"{holder.tenant}/{holder.project}"))
