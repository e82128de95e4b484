"""Events of other services → launch's verbs, in batches. A bad event is refused by itself; its neighbours pass."""

from collections.abc import Sequence
from uuid import UUID

from google.protobuf.message import DecodeError
from runway.events.v1 import events_pb2
from runway.internal.inbox.v1 import inbox_pb2

from libs.kernel.ids import uuid_from_bytes
from libs.kernel.refusal import Reason, Refusal
from services.launch import translate_approvals, translate_children, translate_events
from services.launch.app.ask_approvals import ask_approvals
from services.launch.app.close_runs import close_runs
from services.launch.app.hold_approvals import record_consumed
from services.launch.app.join_children import ask_joins, wait_for_budgets
from services.launch.app.log_steps import log_asked, log_steps
from services.launch.app.record_receipts import record_receipts
from services.launch.app.record_usage import record_usage
from services.launch.app.spawn_children import spawn_children
from services.launch.app.start_runs import start_runs
from services.launch.domain.approvals import Asked
from services.launch.domain.children import BudgetWait
from services.launch.domain.closing import Closing, Receipt
from services.launch.domain.facts import Usage
from services.launch.domain.joining import JoinAsk, JoinKey
from services.launch.domain.run import RunEventFacts
from services.launch.domain.spawning import SpawnAsk
from services.launch.domain.workflow import POINT_NAMES
from services.launch.ports import Ports

_BITS = {name: bit for bit, name in POINT_NAMES.items()}


class Batch:
    """Facts of one delivery, sorted by what they ask for."""

    def __init__(self) -> None:
        self.started: list[UUID] = []
        self.closings: list[Closing] = []
        self.steps: list[RunEventFacts] = []
        self.graph_steps: list[RunEventFacts] = []
        self.inputs: list[RunEventFacts] = []
        self.receipts: list[Receipt] = []
        self.usage: list[Usage] = []
        self.asked: list[Asked] = []
        self.consumed: list[tuple[UUID, UUID, int]] = []
        self.spawns: list[SpawnAsk] = []
        self.joins: list[JoinAsk] = []
        self.budget_waits: list[BudgetWait] = []

    def take(self, raw: bytes) -> None:
        """Parses one event into its list; refuses what is none of launch's."""
        try:
            event = events_pb2.Event.FromString(raw)
        except DecodeError:
            raise Refusal(Reason.INVALID_FIELD, "not an event", field="events", remedy="send runway.events.v1.Event") from None
        kind = event.WhichOneof("fact")
        match kind:
            case "first_lease":
                self.started.append(uuid_from_bytes(event.first_lease.run_id, "first_lease.run_id"))
            case "graph_finished":
                fact = event.graph_finished
                closing = translate_events.graph_closing(fact)
                self.closings.append(closing)
                self.graph_steps.extend(translate_events.step_entry(step, closing.run_id) for step in fact.steps)
            case "steps_finished":
                for step in event.steps_finished.steps:
                    self.steps.append(
                        translate_events.step_entry(step, uuid_from_bytes(step.run_id, "steps_finished.steps.run_id"))
                    )
            case "step_finished":  # as a version before this one says it of each
                step = event.step_finished
                self.steps.append(translate_events.step_entry(step, uuid_from_bytes(step.run_id, "step_finished.run_id")))
            case "input_asked":
                self.inputs.append(translate_events.asked_entry(event.input_asked))
            case "point_quiesced":
                self.receipts.append(_receipt(event.point_quiesced))
            case "usage_settled":
                self.usage.append(translate_events.usage_of(event.usage_settled))
            case "command_recorded":
                self._command(event.command_recorded)
            case "approval_consumed":
                self.consumed.append(translate_approvals.consumed(event.approval_consumed))
            case _:
                text = f"launch takes no {kind or 'empty'} event"
                raise Refusal(Reason.INVALID_FIELD, text, field="events", remedy="send it to its receiver")

    def _command(self, command: events_pb2.CommandRecorded) -> None:
        match command.kind:
            case events_pb2.COMMAND_KIND_SPAWN:
                self.spawns.append(translate_children.spawn_ask(command))
            case events_pb2.COMMAND_KIND_APPROVAL:
                self.asked.append(translate_approvals.asked(command))
            case events_pb2.COMMAND_KIND_JOIN:
                self.joins.append(translate_children.join_ask(command))
            case events_pb2.COMMAND_KIND_BUDGET:
                self.budget_waits.append(translate_children.budget_wait(command))
            case _:
                text = f"launch acts on no command of kind {command.kind}"
                raise Refusal(Reason.INVALID_FIELD, text, field="command_recorded.kind", remedy="send it to its receiver")


def _receipt(fact: events_pb2.PointQuiesced) -> Receipt:
    if fact.point not in _BITS:
        raise Refusal(Reason.INVALID_FIELD, f"no point {fact.point!r}", field="point_quiesced.point", remedy="name a point")
    run_id = uuid_from_bytes(fact.run_id, "point_quiesced.run_id")
    used = (fact.used_micros, fact.used_tokens, fact.usage_sequence)
    return Receipt(run_id, _BITS[fact.point], fact.epoch, True, *used)


async def apply(ports: Ports, raws: Sequence[bytes]) -> tuple[int, list[inbox_pb2.EventVerdict]]:
    """Applies a delivery; one verdict per event. What launch cannot store now raises, and all of it comes again."""
    batch = Batch()
    verdicts = []
    spawns: dict[int, JoinKey] = {}
    for number, raw in enumerate(raws):
        try:
            before = len(batch.spawns)
            batch.take(raw)
            if len(batch.spawns) > before:
                spawns[number] = batch.spawns[-1].key
            verdicts.append(inbox_pb2.EventVerdict(verdict=inbox_pb2.VERDICT_APPLIED))
        except Refusal as refusal:
            verdicts.append(inbox_pb2.EventVerdict(verdict=inbox_pb2.VERDICT_REFUSED, reason=str(refusal)))
    if batch.started:
        await start_runs(ports, batch.started)
    if batch.steps:
        await log_steps(ports, batch.steps)
    if batch.inputs:
        await log_asked(ports, batch.inputs)
    if batch.asked:
        await ask_approvals(ports, batch.asked)
    if batch.consumed:
        await record_consumed(ports, batch.consumed)
    if batch.spawns:
        again = await spawn_children(ports, batch.spawns)
        for number in (number for number, key in spawns.items() if key in again):
            verdicts[number] = inbox_pb2.EventVerdict(verdict=inbox_pb2.VERDICT_RETRY, reason="its children cannot be made now")
    if batch.joins:
        await ask_joins(ports, batch.joins)
    if batch.budget_waits:
        await wait_for_budgets(ports, batch.budget_waits)
    if batch.closings:
        await close_runs(ports, batch.closings, batch.graph_steps)
    if batch.usage:
        await record_usage(ports, batch.usage)
    if batch.receipts:
        await record_receipts(ports, batch.receipts)
    return ports.reads.incarnation, verdicts
