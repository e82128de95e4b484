"""Blockers, positions and estimates on the wire, both ways: one spelling for every service that explains.

Can go wrong: a code that the sender knows and the receiver does not. It is handed on as it came.
"""

from google.protobuf.timestamp_pb2 import Timestamp
from runway.common.v1 import explain_pb2

from libs.kernel.blockers import Blocker, Estimate, Position


def at(ms: int) -> Timestamp | None:
    """A point in time; None for zero."""
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000) if ms else None


def blocker_to(found: Blocker) -> explain_pb2.Blocker:
    """A blocker as its message."""
    return explain_pb2.Blocker(
        code=str(found.code),
        message=found.message,
        remedy=found.remedy,
        since=at(found.since_ms),
        until=at(found.until_ms),
        detail=dict(found.detail),
    )


def blocker_from(said: explain_pb2.Blocker) -> Blocker:
    """A blocker from its message; a time that is not set is 0."""
    times = said.since.ToMilliseconds(), said.until.ToMilliseconds()
    return Blocker(said.code, said.message, said.remedy, dict(said.detail), *times)


def position_to(found: Position | None) -> explain_pb2.QueuePosition | None:
    """A place as its message."""
    if found is None:
        return None
    return explain_pb2.QueuePosition(
        ahead_in_line=found.ahead_in_line,
        line_length=found.line_length,
        ahead_in_tenant=found.ahead_in_tenant,
        tenant_waiting=found.tenant_waiting,
        tenants_ahead=found.tenants_ahead,
        tenants_waiting=found.tenants_waiting,
    )


def position_from(said: explain_pb2.QueuePosition) -> Position:
    """A place from its message."""
    return Position(
        said.ahead_in_line,
        said.line_length,
        said.ahead_in_tenant,
        said.tenant_waiting,
        said.tenants_ahead,
        said.tenants_waiting,
    )


def estimate_to(found: Estimate | None) -> explain_pb2.StartEstimate | None:
    """An estimate as its message."""
    return None if found is None else explain_pb2.StartEstimate(at=at(found.at_ms), basis=found.basis)


def estimate_from(said: explain_pb2.StartEstimate) -> Estimate:
    """An estimate from its message."""
    return Estimate(said.at.ToMilliseconds(), said.basis)
