"""Events of readiness → the scheduler's verbs, a whole delivery at a time. A bad event is refused by itself.

Only a shard's leader writes its tickets: what belongs to shards led elsewhere goes to their leaders; where nobody leads, it
comes again.
"""

from collections.abc import Sequence

from google.protobuf.message import DecodeError
from runway.events.v1 import events_pb2
from runway.internal.inbox.v1 import inbox_pb2

from libs.kernel.ids import shard_of
from libs.kernel.refusal import Refusal, invalid_field
from libs.telemetry.traces import continued
from services.scheduler import translate
from services.scheduler.app.book import Book
from services.scheduler.app.claim_attempts import ClaimDesk
from services.scheduler.app.enqueue_tickets import enqueue_tickets
from services.scheduler.app.revoke_tickets import revoke_tickets
from services.scheduler.clients.leaders import Leaders
from services.scheduler.domain.ticket import Key, Ticket
from services.scheduler.ports import Ports

_APPLIED = inbox_pb2.EventVerdict(verdict=inbox_pb2.VERDICT_APPLIED)


def _again(why: str) -> inbox_pb2.EventVerdict:
    return inbox_pb2.EventVerdict(verdict=inbox_pb2.VERDICT_RETRY, reason=why)


class Inbox:
    """The scheduler's events."""

    def __init__(self, ports: Ports, book: Book, desk: ClaimDesk, leaders: Leaders) -> None:
        self._ports = ports
        self._desk = desk
        self._book = book
        self._leaders = leaders

    async def apply(self, raws: Sequence[bytes]) -> tuple[int, list[inbox_pb2.EventVerdict]]:
        """One verdict per event; shards led elsewhere are asked of their leaders."""
        return await self._apply(raws, forward=True)

    async def apply_here(self, raws: Sequence[bytes]) -> tuple[int, list[inbox_pb2.EventVerdict]]:
        """As `apply`, for events that another replica forwarded: what is not led here comes again."""
        return await self._apply(raws, forward=False)

    async def _apply(self, raws: Sequence[bytes], *, forward: bool) -> tuple[int, list[inbox_pb2.EventVerdict]]:
        verdicts: dict[int, inbox_pb2.EventVerdict] = {}
        tickets: dict[int, Ticket] = {}
        revocations: dict[int, tuple[Key, int, str]] = {}
        elsewhere: dict[int, int] = {}
        for place, raw in enumerate(raws):
            try:
                fact = self._parse(raw)
            except Refusal as refusal:
                verdicts[place] = inbox_pb2.EventVerdict(verdict=inbox_pb2.VERDICT_REFUSED, reason=str(refusal))
                continue
            run_id = fact.run_id if isinstance(fact, Ticket) else fact[0][0]
            if forward and self._book.epoch(shard_of(run_id)) is None:
                elsewhere[place] = shard_of(run_id)
            elif isinstance(fact, Ticket):
                tickets[place] = fact
            else:
                revocations[place] = fact
        stored = await enqueue_tickets(self._ports, self._book, list(tickets.values()), self._desk)
        for place, why in zip(tickets, stored, strict=True):
            verdicts[place] = _again(why) if why else _APPLIED
        told = await revoke_tickets(self._ports, self._book, list(revocations.values()))
        for place, why in zip(revocations, told, strict=True):
            verdicts[place] = _again(why) if why else _APPLIED
        if elsewhere:
            events = {place: (shard, raws[place]) for place, shard in elsewhere.items()}
            verdicts |= await self._leaders.deliver(events)
        return self._ports.db.incarnation, [verdicts[place] for place in range(len(raws))]

    def _parse(self, raw: bytes) -> Ticket | tuple[Key, int, str]:
        try:
            event = events_pb2.Event.FromString(raw)
        except DecodeError:
            raise invalid_field("events", "holds bytes that are no event", "send runway.events.v1.Event") from None
        kind = event.WhichOneof("fact")
        if kind == "step_ready":
            with continued(event.traceparent, "scheduler step_ready"):
                ticket = translate.ticket(event)
            said = event.step_ready
            if said.HasField("successors") and self._book.successors(said.workflow_digest, said.step_key) is None:
                self._book.learn(said.workflow_digest, translate.successors(said))
            return ticket
        if kind == "step_revoked":
            return translate.revocation(event.step_revoked)
        raise invalid_field(
            "events", f"holds a {kind or 'empty'} event, which is not the scheduler's", "send it to its receiver"
        )
