"""Blockers on the wire. Authoritative for nothing but the spelling; one place for every service that explains."""

from google.protobuf.timestamp_pb2 import Timestamp
from runway.common.v1 import explain_pb2

from libs.kernel.blockers import Blocker


def at(ms: int) -> Timestamp | None:
    """A point in time; None for zero."""
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000) if ms else None


def blocker_to(found: Blocker) -> explain_pb2.Blocker:
    """A blocker as its message."""
    return explain_pb2.Blocker(
        code=found.code.value,
        message=found.message,
        remedy=found.remedy,
        since=at(found.since_ms),
        until=at(found.until_ms),
        detail=dict(found.detail),
    )
