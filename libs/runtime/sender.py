"""Authoritative for how an outbox reaches other services: events to their inbox, raises to their leaf port.

A raise row holds one gate, step, scope or approval; rows that travel together are merged into one RPC and its answers are
given back one by one. Can go wrong: a point that answers fewer items than it was asked; then all of them are sent again.
"""

from collections.abc import Callable, Sequence
from uuid import UUID

from runway.internal.fence.v1 import fence_pb2
from runway.internal.inbox.v1 import inbox_pb2

from libs.outbox import RAISE_LANE, SendResult, Verdict, dead_letters, undelivered
from libs.pg import Database
from libs.runtime.peers import Peers


class PeerSender:
    """Implements `libs.outbox.Sender` over the peers of a process."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def send(self, receiver: str, lane: str, payloads: Sequence[bytes]) -> SendResult:
        """One RPC for all payloads."""
        return await (self._raise if lane == RAISE_LANE else self._deliver)(receiver, payloads)

    async def _deliver(self, receiver: str, payloads: Sequence[bytes]) -> SendResult:
        request = inbox_pb2.DeliverRequest(service=receiver, events=payloads)
        response = await self._peers.deliver(receiver, request)
        verdicts = [(Verdict(int(item.verdict)), item.reason, b"") for item in response.verdicts]
        return SendResult(response.incarnation, verdicts)

    async def _raise(self, receiver: str, payloads: Sequence[bytes]) -> SendResult:
        merged = fence_pb2.RaiseFencesRequest(service=receiver)
        places: list[tuple[str, int]] = []
        for payload in payloads:
            one = fence_pb2.RaiseFencesRequest.FromString(payload)
            kind = next(name for name in ("gates", "steps", "approvals", "scopes") if getattr(one, name) or name == "scopes")
            items = getattr(merged, kind)
            places.append((kind, len(items)))
            items.extend(getattr(one, kind))
        response = await self._peers.raise_fences(receiver, merged)
        verdicts = []
        for kind, place in places:
            answer = getattr(response, kind)[place]
            verdict = Verdict.APPLIED if answer.committed else Verdict.RETRY
            verdicts.append((verdict, "" if answer.committed else "not committed in time", answer.SerializeToString()))
        return SendResult(response.incarnation, verdicts)


async def stuck_outbox(
    db: Database, before_ms: int, limit: int, why: Callable[[UUID], str] = lambda _event_id: ""
) -> list[inbox_pb2.StuckItem]:
    """A service's undelivered events and dead letters, for `ListStuck`; with what an event waits for, where that was said."""
    items = []
    for kind, rows in (
        ("undelivered_event", await undelivered(db, before_ms, limit)),
        ("dead_letter", await dead_letters(db, limit)),
    ):
        for row in rows:
            reason = row.reason or why(row.event_id)
            text = f"{row.kind} for {row.receiver}" + (f": {reason}" if reason else "")
            items.append(inbox_pb2.StuckItem(kind=kind, run_id=row.key.bytes, since_ms=row.created_ms, detail=text))
    return items
