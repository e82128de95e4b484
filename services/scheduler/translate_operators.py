"""Holds, moves, queues and recorded tickets to and from their messages, for operators.

Can go wrong: a page token that is none of ours. It is refused by name.
"""

from uuid import UUID

from google.protobuf.timestamp_pb2 import Timestamp
from runway.scheduler.v1 import control_service_pb2 as control

from libs.kernel.ids import NIL, uuid_from_text
from libs.kernel.refusal import invalid_field
from services.scheduler.app.hand_over import Move
from services.scheduler.app.hold_desk import Acting, Described
from services.scheduler.domain.holds import Extent, Hold
from services.scheduler.domain.ticket import Key, Recorded
from services.scheduler.translate import duration, timestamp


def hold(item: Hold) -> control.Hold:
    """A hold."""
    return control.Hold(
        hold_id=item.hold_id,
        kind=control.HoldKind.ValueType(int(item.kind)),
        name=item.name,
        mode=control.HoldMode.ValueType(int(item.mode)),
        reason=item.reason,
        actor=item.actor,
        placed_at=timestamp(item.at_ms),
        released_at=timestamp(item.released_ms),
        released_by=item.released_by,
        release_reason=item.release_reason,
    )


def extent(item: Extent) -> control.Extent:
    """What a hold stops."""
    return control.Extent(queued_tickets=item.queued, live_leases=item.live, workers=item.workers)


def replica(one: Acting) -> control.Replica:
    """A process, and whether it acts on a change."""
    return control.Replica(member_id=one.member_id, address=one.address, acted=one.acted)


def move(item: Move) -> control.ShardMove:
    """One shard's way."""
    return control.ShardMove(
        shard_id=item.shard,
        from_member=item.former,
        to_member=item.later,
        to_address=item.address,
        done=item.done,
        took=duration(item.took_ms),
    )


def queue(found: Described) -> control.Queue:
    """A queue with the holds on it."""
    row = found.row
    return control.Queue(
        tenant=row.tenant,
        project=row.project,
        handler=row.handler,
        waiting=row.waiting,
        oldest_at=timestamp(row.oldest_ms),
        live_leases=row.live,
        workers=row.workers,
        holds=[hold(item) for item in found.holds],
        step_holds=[hold(item) for item in found.step_holds],
    )


def parse_holds_token(token: str) -> int:
    """The id below which a page of holds begins."""
    if not token:
        return 2**62
    if not (token.isascii() and token.isdigit() and int(token) < 2**62):
        raise invalid_field("page_token", "is of no page of this list", "send the token of the page before")
    return int(token)


def first_id(request: control.ExportTicketsRequest, field: str, unset: UUID) -> UUID:
    """The least id of a run that is launched at a time; ids begin with their milliseconds."""
    if not request.HasField(field):  # type: ignore[arg-type]
        return unset
    said: Timestamp = getattr(request, field)
    ms = said.seconds * 1000 + said.nanos // 1_000_000
    if not 0 <= ms < 2**48:
        raise invalid_field(field, "is out of range", "send a time after 1970")
    return UUID(int=ms << 80)


def tickets_token(last: Key) -> str:
    """Where a page of recorded tickets ends."""
    return f"{last[0].hex}:{last[1]}"


def parse_tickets_token(token: str) -> Key:
    """See tickets_token."""
    run, colon, step_key = token.partition(":")
    if token and (not colon or len(run) != 32 or "\0" in step_key):
        raise invalid_field("page_token", "is not one of ours", "send next_page_token as it was returned")
    return (uuid_from_text(run, "page_token"), step_key) if token else (NIL, "")


def recorded(ticket: Recorded) -> control.RecordedTicket:
    """A ticket as it was."""
    return control.RecordedTicket(
        run_id=str(ticket.run_id),
        step_key=ticket.step_key,
        attempt_number=ticket.attempt_number,
        tenant=ticket.tenant,
        project=ticket.project,
        run_class=ticket.run_class,
        priority=ticket.priority,
        deadline=timestamp(ticket.deadline_ms),
        handler=ticket.handler,
        requires=ticket.requires,
        ready_at=timestamp(ticket.ready_ms),
        leased_at=timestamp(ticket.leased_ms),
        ended_at=timestamp(ticket.ended_ms),
        worker_id=ticket.worker_id,
        fleet=ticket.fleet,
        resources=dict(ticket.resources),
        launched_by=ticket.launched_by,
    )
