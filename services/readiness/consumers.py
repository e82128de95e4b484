"""Events of other services → readiness' one verb, a whole delivery at a time. A bad event is refused by itself."""

from collections.abc import Sequence
from uuid import UUID

from google.protobuf.message import DecodeError
from runway.events.v1 import events_pb2
from runway.internal.inbox.v1 import inbox_pb2

from libs.kernel.ids import uuid_from_bytes
from libs.kernel.refusal import Refusal, invalid_field
from libs.telemetry.traces import continued, traceparent
from services.readiness import translate, translate_waits
from services.readiness.app.apply_facts import apply_facts
from services.readiness.domain.forking import Fork
from services.readiness.domain.steps import AttemptFact, EffectFact
from services.readiness.domain.waits import Asked, Told, WaitKey
from services.readiness.ports import Facts, Ports, RunFacts


class Batch:
    """Facts of one delivery, sorted by kind."""

    def __init__(self) -> None:
        self.launched: list[RunFacts] = []
        self.forks: dict[UUID, Fork] = {}
        self.closed: list[UUID] = []
        self.attempts: list[tuple[UUID, AttemptFact]] = []
        self.effects: list[tuple[UUID, EffectFact]] = []
        self.asked: list[tuple[UUID, Asked]] = []
        self.told: list[tuple[UUID, Told]] = []

    def take(self, raw: bytes) -> None:
        """Parses one event into its list; refuses what is none of readiness'."""
        try:
            event = events_pb2.Event.FromString(raw)
        except DecodeError:
            raise invalid_field("events", "holds bytes that are no event", "send runway.events.v1.Event") from None
        kind = event.WhichOneof("fact")
        match kind:
            case "run_launched":
                with continued(event.traceparent, "readiness run_launched"):
                    self.launched.append(translate.launched(event.run_launched, traceparent() or event.traceparent))
                if event.run_launched.fork_of:
                    self.forks[self.launched[-1].run_id] = translate.fork(event.run_launched)
            case "run_closing":
                self.closed.append(uuid_from_bytes(event.run_closing.run_id, "run_closing.run_id"))
            case "attempt_finished":
                run_id = uuid_from_bytes(event.attempt_finished.run_id, "attempt_finished.run_id")
                self.attempts.append((run_id, translate.attempt(event.attempt_finished)))
            case "command_recorded":
                run_id = uuid_from_bytes(event.command_recorded.run_id, "command_recorded.run_id")
                self.asked.append((run_id, translate_waits.asked(event.command_recorded)))
            case "command_answered":
                run_id = uuid_from_bytes(event.command_answered.run_id, "command_answered.run_id")
                self.told.append((run_id, translate_waits.told(event.command_answered)))
            case "effect_resolved":
                run_id = uuid_from_bytes(event.effect_resolved.run_id, "effect_resolved.run_id")
                self.effects.append((run_id, translate.effect(event.effect_resolved)))
            case _:
                raise invalid_field(
                    "events", f"holds a {kind or 'empty'} event, which is not readiness'", "send it to its receiver"
                )

    @property
    def facts(self) -> Facts:
        """All of it."""
        return Facts(self.launched, self.closed, self.attempts, self.effects, self.asked, self.told, forks=self.forks)


async def apply(ports: Ports, raws: Sequence[bytes]) -> tuple[int, list[inbox_pb2.EventVerdict]]:
    """Applies a delivery; one verdict per event. What cannot be stored now raises, and all of it comes again."""
    batch = Batch()
    verdicts = []
    launches: dict[int, UUID] = {}
    attempts: dict[int, tuple[UUID, AttemptFact]] = {}
    asked: dict[int, WaitKey] = {}
    for number, raw in enumerate(raws):
        try:
            before = len(batch.launched), len(batch.attempts), len(batch.asked), len(batch.told)
            batch.take(raw)
            if len(batch.launched) > before[0]:
                launches[number] = batch.launched[-1].run_id
            elif len(batch.attempts) > before[1]:
                attempts[number] = batch.attempts[-1]
            elif len(batch.asked) > before[2]:
                run_id, item = batch.asked[-1]
                asked[number] = (run_id, item.step_key, item.slot)
            elif len(batch.told) > before[3]:
                run_id, said = batch.told[-1]
                asked[number] = (run_id, said.step_key, said.slot)
            verdicts.append(inbox_pb2.EventVerdict(verdict=inbox_pb2.VERDICT_APPLIED))
        except Refusal as refusal:
            verdicts.append(inbox_pb2.EventVerdict(verdict=inbox_pb2.VERDICT_REFUSED, reason=str(refusal)))
    left = await apply_facts(ports, batch.facts)
    again = {number: "launch does not know the run's version" for number, run_id in launches.items() if run_id in left.unknown}
    again |= {
        number: "what it continues has not ended here yet" for number, run_id in launches.items() if run_id in left.unended
    }
    for number, (run_id, fact) in attempts.items() if left.early else ():
        if (run_id, fact.step_key, fact.ticket_sequence) in left.early:
            again[number] = "what came before it did not come yet"
    again |= {
        number: "the run's launch, or what made its step, did not come yet"
        for number, key in asked.items()
        if key in left.unborn
    }
    for number, text in again.items():
        verdicts[number] = inbox_pb2.EventVerdict(verdict=inbox_pb2.VERDICT_RETRY, reason=text)
    return ports.db.incarnation, verdicts
