"""Events of other services → the gateway's verbs: slices that come back. A bad event is refused by itself; its neighbours
pass."""

from collections.abc import Sequence

from google.protobuf.message import DecodeError
from runway.events.v1 import events_pb2
from runway.internal.inbox.v1 import inbox_pb2

from libs.kernel.ids import uuid_from_bytes
from libs.kernel.refusal import Refusal, invalid_field
from services.gateway.app.divide_envelopes import return_slices
from services.gateway.domain.envelopes import Returned
from services.gateway.ports import Ports

_DIGEST_BYTES = 32


async def apply(ports: Ports, raws: Sequence[bytes]) -> tuple[int, list[inbox_pb2.EventVerdict]]:
    """Applies a delivery; one verdict per event. What cannot be stored now raises, and all of it comes again."""
    returned: list[Returned] = []
    verdicts = []
    for raw in raws:
        try:
            returned.append(_returned(raw))
            verdicts.append(inbox_pb2.EventVerdict(verdict=inbox_pb2.VERDICT_APPLIED))
        except Refusal as refusal:
            verdicts.append(inbox_pb2.EventVerdict(verdict=inbox_pb2.VERDICT_REFUSED, reason=str(refusal)))
    if returned:
        await return_slices(ports, returned)
    return ports.store.incarnation, verdicts


def _returned(raw: bytes) -> Returned:
    try:
        event = events_pb2.Event.FromString(raw)
    except DecodeError:
        raise invalid_field("events", "holds bytes that are no event", "send runway.events.v1.Event") from None
    kind = event.WhichOneof("fact")
    if kind != "slice_returned":
        raise invalid_field("events", f"holds a {kind or 'empty'} event, which is not the gateway's", "send it to its receiver")
    fact = event.slice_returned
    if len(fact.delegation) != _DIGEST_BYTES or fact.spent_micros < 0:
        raise invalid_field("slice_returned", "names no slice, or has a negative amount", "send what launch sends")
    return Returned(uuid_from_bytes(fact.run_id, "slice_returned.run_id"), fact.delegation, fact.spent_micros)
