"""Rows of the scheduler's tables ↔ domain values. Authoritative for nothing but the spelling; one place for each table."""

from collections.abc import Mapping

import asyncpg

from libs.kernel.epochs import Mode, StepFence
from services.scheduler.domain.commits import GateState
from services.scheduler.domain.resources import parse
from services.scheduler.domain.ticket import Before, Contract, End, Failure, Ticket, TicketRow, TicketState, Wanted

Row = asyncpg.Record
_STATES = {state.value: state for state in TicketState}
_ENDS = {end.value: end for end in End}
_MODES = {mode.value: mode for mode in Mode}
"""Looked up: calling an enumeration costs a third of what else a row costs, and a takeover reads a hundred thousand."""


def lines(text: str) -> tuple[str, ...]:
    """A list as a column holds it."""
    return tuple(text.split("\n")) if text else ()


def unresolved_text(unresolved: Mapping[str, int]) -> str:
    """Slots in doubt, a line each."""
    return "".join(f"{version}\t{slot}\n" for slot, version in unresolved.items())


def unresolved_of(text: str) -> dict[str, int]:
    """Slots in doubt; where two points or answers name one, its newest version."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        version, _, slot = line.partition("\t")
        found[slot] = max(int(version), found.get(slot, 0))
    return found


def wanted_text(wanted: Wanted | None) -> str:
    """What a ticket waits for, as a column holds it."""
    return f"{wanted.calls}\n{wanted.until_ms}\n{wanted.call}\n{wanted.slot}" if wanted else ""


def wanted_of(text: str) -> Wanted | None:
    """See wanted_text."""
    if not text:
        return None
    calls, until_ms, call, slot = text.split("\n")
    return Wanted(slot, call, int(calls), int(until_ms))


def ticket(row: Row) -> TicketRow:
    """A ticket."""
    failed = row["failure_class"]
    return TicketRow(
        run_id=row["run_id"],
        step_key=row["step_key"],
        state=_STATES[row["state"]],
        ticket_sequence=row["ticket_sequence"],
        tenant=row["tenant"],
        project=row["project"],
        run_class=row["run_class"],
        priority=row["priority"],
        deadline_ms=row["deadline_ms"],
        contract=Contract(
            handler=row["handler"],
            timeout_ms=row["timeout_ms"],
            lease_ttl_ms=row["lease_ttl_ms"],
            tools=lines(row["tools"]),
            models=lines(row["models"]),
            requires=frozenset(lines(row["requires"])),
            points=row["points"],
            resources=parse(row["resources"]),
        ),
        workflow_digest=row["workflow_digest"],
        attempt_number=row["attempt_number"],
        enqueued_ms=row["enqueued_ms"],
        fence=StepFence(row["authority_epoch"], row["lease_epoch"], row["attempt_id"]),
        incarnation=row["incarnation"],
        raise_need=row["raise_need"],
        worker_id=row["worker_id"],
        claim_id=row["claim_id"],
        fleet=row["fleet"],
        leased_ms=row["leased_ms"],
        ended_attempt=row["ended_attempt"],
        ended_authority=row["ended_authority"],
        ended_lease=row["ended_lease"],
        ended_ms=row["ended_ms"],
        end=_ENDS[row["end_kind"]],
        failure=Failure(failed, row["failure_message"], row["failure_type"]) if failed else None,
        report=row["report"],
        unresolved=unresolved_of(row["unresolved"]) if row["unresolved"] else {},
        awaits=lines(row["awaits"]),
        input_bytes=row["input_bytes"],
        launched_by=row["launched_by"],
        wanted=wanted_of(row["wanted"]),
        started=row["started"],
    )


def put_ticket(ticket: Ticket, row: Row, now_ms: int) -> TicketRow:
    """A ticket that was stored a moment ago: what was asked, with the step's fence, who had it before and how that ended."""
    fence = StepFence(row["authority_epoch"], row["lease_epoch"], row["attempt_id"])
    before = Before(row["worker_id"], _ENDS[row["end_kind"]], row["started"])
    return TicketRow.of(ticket, now_ms, fence, row["incarnation"], row["raise_need"], before)


def gate(row: Row) -> GateState:
    """A run's gate."""
    return GateState(row["epoch"], _MODES[row["mode"]], row["stamp"], row["outcome"])
