"""Events of the gateway → the reconciler's verb, a whole delivery at a time. A bad event is refused by itself."""

from collections.abc import Callable, Sequence

from google.protobuf.message import DecodeError
from runway.events.v1 import events_pb2
from runway.internal.inbox.v1 import inbox_pb2

from libs.kernel.refusal import Refusal, invalid_field
from services.reconciler import translate
from services.reconciler.app.open_cases import take_events
from services.reconciler.domain.cases import Opening, Resolved
from services.reconciler.ports import Ports


class Batch:
    """Facts of one delivery, sorted by kind."""

    def __init__(self) -> None:
        self.openings: list[Opening] = []
        self.resolved: list[Resolved] = []

    def take(self, raw: bytes) -> None:
        """Parses one event into its list; refuses what is none of the reconciler's."""
        try:
            event = events_pb2.Event.FromString(raw)
        except DecodeError:
            raise invalid_field("events", "holds bytes that are no event", "send runway.events.v1.Event") from None
        match kind := event.WhichOneof("fact"):
            case "effect_unknown":
                self.openings.append(translate.opening(event.effect_unknown))
            case "effect_resolved":
                self.resolved.append(translate.resolved(event.effect_resolved))
            case _:
                text = f"holds a {kind or 'empty'} event, which is not the reconciler's"
                raise invalid_field("events", text, "send it to its receiver")


async def apply(ports: Ports, wake: Callable[[], None], raws: Sequence[bytes]) -> tuple[int, list[inbox_pb2.EventVerdict]]:
    """Applies a delivery, one verdict per event; then look-ups begin at once."""
    batch = Batch()
    verdicts = []
    for raw in raws:
        try:
            batch.take(raw)
            verdicts.append(inbox_pb2.EventVerdict(verdict=inbox_pb2.VERDICT_APPLIED))
        except Refusal as refusal:
            verdicts.append(inbox_pb2.EventVerdict(verdict=inbox_pb2.VERDICT_REFUSED, reason=str(refusal)))
    await take_events(ports, batch.openings, batch.resolved)
    wake()
    return ports.cases.incarnation, verdicts
