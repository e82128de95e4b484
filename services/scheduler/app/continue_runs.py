"""Successors of steps that succeeded, ticketed and granted in the commit that records the success: a sequence of steps makes
one hop a step, and readiness follows.

Nothing is allowed here that a ticket from readiness would not be: the gate judges in the same statement, the same planner
grants. What needs more than the one success, has a large input, or touches points under a fence that may be lost is left to
readiness, which is told what was ticketed.

Can go wrong: a commit whose answer was lost. The rows say what became of it, and are looked at again.
"""

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from services.scheduler.app.book import Book
from services.scheduler.app.claim_attempts import ClaimDesk
from services.scheduler.app.claims import Direct
from services.scheduler.domain.commits import GateState, Holder, Won
from services.scheduler.domain.lease import Lease
from services.scheduler.domain.rank import APPROVAL_RESUME
from services.scheduler.domain.ticket import NO_FENCE, Key, Successor, Ticket, TicketRow
from services.scheduler.ports import Ports, Tx


@dataclass(slots=True)
class Continuation:
    """What one commit continues."""

    following: dict[Key, tuple[Lease, tuple[Successor, ...]]]
    """Steps whose success may be recorded, with what follows each by that alone."""
    put: dict[Key, TicketRow] = field(default_factory=dict)
    told: dict[Key, list[str]] = field(default_factory=dict)
    """For each step that succeeded, the successors that were ticketed."""
    gates: dict[Key, GateState] = field(default_factory=dict)
    direct: Direct | None = None


@dataclass(frozen=True, slots=True)
class Under:
    """What a commit stands under: the scopes it has locked, the epochs of its shards, and its time."""

    scopes: AbstractSet[tuple[str, str]]
    epochs: dict[int, int]
    now_ms: int


def begin(book: Book, holders: Collection[Holder]) -> Continuation:
    """What is known here of the successors of these steps."""
    found: dict[Key, tuple[Lease, tuple[Successor, ...]]] = {}
    for holder in holders:
        lease = book.leases.get(holder.key)
        resumed = lease is not None and lease.run_class == APPROVAL_RESUME  # of one step: readiness knows the run's own class
        if lease is not None and lease.fence == holder.fence and not resumed:
            successors = book.successors(lease.workflow_digest, lease.step_key)
            if successors:
                found[holder.key] = (lease, successors)
    return Continuation(found)


async def put(
    ports: Ports,
    book: Book,
    desk: ClaimDesk,
    tx: Tx,
    work: Continuation,
    won: Mapping[Key, tuple[Won, Holder, bytes]],
    under: Under,
) -> None:
    """Stores the successors' tickets, as leased where somebody waits for them.

    `won`: the row, the holder and the output of each success that was recorded.
    """
    born_here = book.birth == tx.incarnation
    origin: dict[Key, Key] = {}
    tickets: dict[Key, Ticket] = {}
    for key, (lease, successors) in work.following.items():
        if key not in won:
            continue
        row, holder, output = won[key]
        given = ports.notices.next_input(row.input, key[1], output)
        for after in successors:
            if len(given) > after.input_limit_bytes or (after.contract.points and not born_here):
                continue
            ticket = _ticket(lease, row, holder, after, given)
            tickets[ticket.key] = ticket
            origin[ticket.key] = key
            work.gates[ticket.key] = GateState(holder.epoch, row.mode, tx.incarnation, "")
    if not tickets:
        return
    now_ms, first = under.now_ms, tx.incarnation if born_here else 0
    fresh = {key: TicketRow.of(ticket, now_ms, NO_FENCE, first) for key, ticket in tickets.items()}
    work.direct = desk.plan_directly(list(fresh.values()), under.scopes, under.epochs, tx.incarnation)
    if work.direct is not None:
        await desk.put_leased(tx, work.direct, tickets, now_ms, first)
        work.put = {key: fresh[key] for key in work.direct.granted}
    left = [ticket for key, ticket in tickets.items() if key not in work.put]
    if left:
        work.put |= await tx.put_tickets(left, now_ms, first)
    for ticket_key in work.put:
        work.told.setdefault(origin[ticket_key], []).append(ticket_key[1])


def _ticket(lease: Lease, row: Won, holder: Holder, after: Successor, given: bytes) -> Ticket:
    return Ticket(
        run_id=lease.run_id,
        step_key=after.step_key,
        ticket_sequence=1,
        tenant=lease.tenant,
        project=lease.project,
        run_class=lease.run_class,
        priority=row.priority,
        deadline_ms=lease.deadline_ms,
        contract=after.contract,
        input=given,
        workflow_digest=lease.workflow_digest,
        attempt_number=1,
        epoch=holder.epoch,
        traceparent=row.traceparent,
        launched_by=lease.launched_by,
    )


async def grant(desk: ClaimDesk, tx: Tx, work: Continuation, under: Under) -> None:
    """Leases what was ticketed, where workers wait for nothing older and none was planned for before."""
    if work.put and work.direct is None:
        work.direct = await desk.grant_directly(tx, list(work.put.values()), under.scopes, under.epochs, under.now_ms)


def committed(book: Book, desk: ClaimDesk, work: Continuation, epochs: dict[int, int]) -> None:
    """After the commit: leases go out, the other tickets wait in memory."""
    given = desk.done_directly(work.direct, epochs, committed=True) if work.direct is not None else set()
    for key, row in work.put.items():
        if key not in given and book.still(row.shard, epochs[row.shard]):
            book.put_row(row, work.gates[key])


def failed(book: Book, desk: ClaimDesk, work: Continuation, epochs: dict[int, int]) -> None:
    """The commit failed or nobody knows: polls go on waiting, rows are looked at again."""
    if work.direct is not None:
        desk.done_directly(work.direct, epochs, committed=False)
    book.unsure.update(work.put)


def names(work: Continuation, key: Key) -> Sequence[str]:
    """Successors of a step that were ticketed."""
    return work.told.get(key, ())


def carries_on(work: Continuation, key: Key) -> bool:
    """Whether everything that follows a step was ticketed: readiness has nothing to decide, and may hear of it later."""
    told = work.told.get(key)
    if not told:
        return False
    _, successors = work.following[key]
    return len(told) == len(successors) and successors[0].whole
