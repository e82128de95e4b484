"""A run's gate was raised here: act on it. Closed: what waits is dropped, what is live is stopped. Draining: nothing new is
granted. Open again: what was held back may be granted.

A raise leaves a row beside the gate where the run has open tickets; it is deleted in the transaction that acted on it, so no
raise is forgotten whoever leads. Can go wrong: acting twice (harmless: each change compares).
"""

from collections.abc import Collection, Mapping
from uuid import UUID

from libs.kernel.epochs import Mode
from libs.kernel.ids import shard_of
from services.scheduler.app.book import Book
from services.scheduler.app.ends import note_ends, tell_quiet, write_ends
from services.scheduler.domain.commits import GateState
from services.scheduler.domain.ending import Ending
from services.scheduler.domain.ticket import End, Failure, Key, TicketRow, TicketState
from services.scheduler.ports import Ports

BATCH = 500
SELDOM = 5
"""So many times more seldom the table is read by who knows no ticket."""


async def obey_gates(ports: Ports, book: Book, runs: Collection[UUID]) -> None:
    """Acts on the gates of these runs as they stand now."""
    ordered = sorted(runs)
    for start in range(0, len(ordered), BATCH):
        await _obey(ports, book, ordered[start : start + BATCH])


async def look_for_raises(ports: Ports, book: Book, turn: int = 0) -> None:
    """Raises that another process committed, or that this one has not acted on.

    Raises are noted only where a run has open tickets, and its leader knows those; while none is known there is little to look
    for, and only each fifth `turn` does. What woke us is over whether or not we lead: or the loop would never wait again, and
    nothing else in the process would run.
    """
    woken = book.raised.is_set()
    book.raised.clear()
    if not (woken or book.busy) and turn % SELDOM:
        return
    epochs = book.led(range(64))
    if not epochs:
        return
    runs = set(await ports.db.gate_notices(list(epochs), 1000)) | book.obey
    book.obey = set()
    try:
        await obey_gates(ports, book, runs)
    except BaseException:
        book.obey |= runs
        raise


async def _obey(ports: Ports, book: Book, runs: list[UUID]) -> None:
    epochs = book.led({shard_of(run_id) for run_id in runs})
    runs = [run_id for run_id in runs if shard_of(run_id) in epochs]
    if not runs:
        return
    now_ms = ports.clock.now_ms()
    async with ports.db.commit(epochs, runs, incarnation=book.incarnation) as tx:
        runs = [run_id for run_id in runs if shard_of(run_id) not in tx.deposed]
        gates = await tx.gates(runs)
        closed = {run_id for run_id, gate in gates.items() if gate.mode is Mode.CLOSED}
        opened = await tx.open_rows_of(closed) if closed else []
        ready = {row.key: row.ticket_sequence for row in opened if row.state is TicketState.READY}
        dropped = await tx.drop_ready(ready) if ready else set()
        live = [_stopped(row, gates[row.run_id]) for row in opened if row.state is TicketState.LEASED]
        ended = await write_ends(ports, tx, live, epochs, now_ms)
        await tell_quiet(
            ports, tx, [run_id for run_id in runs if run_id in gates and gates[run_id].mode is not Mode.OPEN], now_ms
        )
        await tx.forget_gate_notices(runs)
    note_ends(book, epochs, ended, stopped=True)
    _forget_ended(book, closed, {row.key for row in opened if row.state is TicketState.LEASED})
    for key in dropped:
        if book.still(shard_of(key[0]), epochs[shard_of(key[0])]):
            book.forget(key)
    _note_gates(book, gates)


def _forget_ended(book: Book, closed: Collection[UUID], live: Collection[Key]) -> None:
    """Leases in memory that the rows of closed runs do not have: a commit of ours whose answer was lost had ended them."""
    for run_id in closed:
        for lease in book.leases_of(run_id):
            if lease.key not in live:
                book.stopped.add((lease.key, lease.fence.attempt_id))
                book.forget(lease.key)


def _stopped(row: TicketRow, gate: GateState) -> Ending:
    why = Failure("attempt", f"the run is closed: {gate.outcome or 'stopped'}", "RUN_CLOSED")
    return Ending(row.run_id, row.step_key, row.fence, End.CANCELLED, why)


def _note_gates(book: Book, gates: Mapping[UUID, GateState]) -> None:
    """Memory of gates that are not closed."""
    moved = {run_id: gate for run_id, gate in gates.items() if gate.mode is not Mode.CLOSED}
    for run_id, gate in moved.items():
        for lease in book.leases_of(run_id):
            if gate.epoch > lease.epoch:
                lease.epoch = gate.epoch
                lease.renew_ms = 0  # its token is refused everywhere now: the next beat brings a new one
            lease.mode = gate.mode
    opened = {run_id for run_id, gate in moved.items() if gate.mode is Mode.OPEN}
    book.unpark([key for key in book.parked if key[0] in opened])
    draining = moved.keys() - opened
    for ready in [ready for ready in book.ready if ready.candidate.key[0] in draining] if draining else []:
        book.ready.remove(ready.candidate.key)
        book.parked[ready.candidate.key] = ready
