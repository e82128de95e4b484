"""Protobuf ↔ readiness' domain, both ways."""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from google.protobuf import json_format, struct_pb2
from google.protobuf.timestamp_pb2 import Timestamp
from runway.common.v1 import common_pb2
from runway.events.v1 import events_pb2
from runway.readiness.v1 import readiness_service_pb2 as pb

from libs.kernel.ids import NIL, digest, uuid_from_bytes, uuid_from_text
from libs.kernel.refusal import Reason, Refusal, invalid_field
from libs.rpc.identity import Caller
from libs.rpc.schemas import Misfit, check
from services.readiness.app.answer_inputs import AnswerAsk
from services.readiness.domain.forking import Fork
from services.readiness.domain.graph import Contract, Graph, Node, base_of
from services.readiness.domain.joins import CONDITION_FALSE, left_out, output_of, outputs_for
from services.readiness.domain.state import AttemptFact, EffectFact, End, FailureFacts, Output, RunView, Step, StepState
from services.readiness.domain.waits import Signal, Wait, WaitKey, WaitState
from services.readiness.ports import Question, RunFacts

SUCCESSORS_DEPTH = 16
"""How far ahead a ticket tells what follows: the last of them is ticketed by readiness again, and tells on."""
SUCCESSORS_BYTES = 16_384
"""A ticket that would tell more tells nothing: a wide graph is readiness' own."""
PROMPT_CHARS = 300
"""Of a child's question in its root's log and explanation."""
WARNED, WARNED_CHARS = 20, 300
"""Most predecessors that one warning names, and how much it says of each."""
ANSWER_BYTES = 65_536
"""Largest payload of an event and largest answer of a person: each attempt of the step is given all of them again."""


def launched(fact: events_pb2.RunLaunched, traceparent: str) -> RunFacts:
    """A new run."""
    if not 0 <= fact.run_class < 2**15:
        raise invalid_field("run_launched.run_class", "is no class", "send what launch sends")
    return RunFacts(
        run_id=uuid_from_bytes(fact.run_id, "run_launched.run_id"),
        tenant=fact.tenant,
        project=fact.project,
        digest=fact.workflow_digest,
        build=fact.build,
        run_class=fact.run_class,
        priority=fact.priority,
        deadline_ms=fact.deadline_ms,
        epoch=fact.epoch,
        input=fact.input,
        traceparent=traceparent,
        state=1,
        version=1,
        launched_by=fact.launched_by[:100].replace("\0", ""),
        root_run_id=uuid_from_bytes(fact.root_run_id, "run_launched.root_run_id") if fact.root_run_id else None,
    )


def fork(fact: events_pb2.RunLaunched) -> Fork:
    """What a new run continues."""
    return Fork(uuid_from_bytes(fact.fork_of, "run_launched.fork_of"), tuple(fact.fork_from))


def failure_of(failure: events_pb2.Failure) -> FailureFacts:
    """A failure; what cannot be stored of it is replaced, since its fact must not be lost."""
    words = (failure.failure_class or "attempt", failure.message[:2000], failure.type[:200])
    return FailureFacts(*(text.replace("\0", "\N{REPLACEMENT CHARACTER}") for text in words))


def attempt(fact: events_pb2.AttemptFinished) -> AttemptFact:
    """The end of an attempt."""
    if fact.end == events_pb2.ATTEMPT_END_UNSPECIFIED or fact.end not in _ENDS:
        raise invalid_field("attempt_finished.end", "is no end", "send one of AttemptEnd")
    if len(fact.unresolved_slots) != len(fact.unresolved_versions):
        raise invalid_field("attempt_finished.unresolved_versions", "does not match unresolved_slots", "send one a slot")
    return AttemptFact(
        step_key=fact.step_key,
        ticket_sequence=fact.ticket_sequence,
        end=End(int(fact.end)),
        output=fact.output,
        failure=failure_of(fact.failure) if fact.HasField("failure") else None,
        unresolved=dict(zip(fact.unresolved_slots, fact.unresolved_versions, strict=True)),
        continued=frozenset(fact.continued),
        awaits=tuple(fact.awaits),
        read=lambda: json_format.MessageToDict(struct_pb2.Value.FromString(fact.output or _NULL)),
    )


def effect(fact: events_pb2.EffectResolved) -> EffectFact:
    """A slot's outcome."""
    return EffectFact(fact.step_key, fact.slot, fact.state, fact.version)


def failure_event(failure: FailureFacts) -> events_pb2.Failure:
    """A failure for an event."""
    return events_pb2.Failure(failure_class=failure.failure_class, message=failure.message, type=failure.type)


def contract_event(contract: Contract) -> events_pb2.StepContract:
    """What a step's attempts may do and need."""
    return events_pb2.StepContract(
        handler=contract.handler,
        timeout_ms=contract.timeout_ms,
        lease_ttl_ms=contract.lease_ttl_ms,
        tools=contract.tools,
        models=contract.models,
        checkpoints=contract.checkpoints,
        requires=contract.requires,
        points=contract.points,
        resources=dict(contract.resources) if contract.resources else None,
    )


def successors_event(graph: Graph, key: str, input_limit_bytes: int, depth: int = SUCCESSORS_DEPTH) -> events_pb2.Successors:
    """What follows a step's success by that alone, and what follows that."""
    steps = [
        events_pb2.Successor(
            step_key=node.key,
            contract=contract_event(node.contract),
            successors=successors_event(graph, node.key, input_limit_bytes, depth - 1) if depth > 1 else None,
        )
        for node in graph.followers(key)
    ]
    whole = len(steps) == len(graph.successors[key])
    return events_pb2.Successors(steps=steps, input_limit_bytes=input_limit_bytes, whole=whole)


def finished_event(run: RunFacts, step: Step, now_ms: int) -> events_pb2.StepFinished:
    """A terminal step."""
    return events_pb2.StepFinished(
        run_id=run.run_id.bytes,
        step_key=step.key,
        state=step.state.name.lower(),
        attempts=step.attempts,
        failure=failure_event(step.failure) if step.failure else None,
        at_ms=now_ms,
    )


def warning_event(run: RunFacts, view: RunView, step: Step, now_ms: int) -> events_pb2.StepFinished:
    """A step that goes on without some, for the run's log."""
    failed = left_out(view, view.node(step.key))
    told = events_pb2.StepFinished(
        run_id=run.run_id.bytes, step_key=step.key, state="warning", at_ms=now_ms, left_out_total=len(failed)
    )
    for one in failed[:WARNED]:
        failure = one.failure or FailureFacts("attempt", "", "")
        told.left_out.add(
            step_key=one.key,
            failure=events_pb2.Failure(
                failure_class=failure.failure_class, message=failure.message[:WARNED_CHARS], type=failure.type
            ),
        )
    return told


def ticket_input(run_input: bytes, view: RunView, step: Step, waited: Sequence[Wait]) -> bytes:
    """`{"run": input, "steps": {key: output}}` as a serialized Value; `item` and `index` for an instance, `failures` where a
    join goes on without some, and `waits` where the step has waited."""
    node = view.node(step.key)
    value = struct_pb2.Value()
    fields = value.struct_value.fields
    fields["run"].ParseFromString(run_input or _NULL)
    steps = fields["steps"].struct_value
    steps.SetInParent()
    for key, output in outputs_for(view, node).items():
        _fill(steps.fields[key], output)
    if base_of(step.key) != step.key:
        fields["item"].ParseFromString(step.item or _NULL)
        fields["index"].number_value = int(step.key[step.key.rindex("[") + 1 : -1])
    for failed in left_out(view, node):
        told = fields["failures"].struct_value.fields[failed.key].struct_value.fields
        failure = failed.failure or FailureFacts("attempt", "", "")
        told["class"].string_value = failure.failure_class
        told["message"].string_value = failure.message
        told["type"].string_value = failure.type
    wanted = view.capacity_of(step)
    for wait in waited if wanted is None else (*waited, wanted):  # how that one ends its lease says
        told = fields["waits"].struct_value.fields[wait.slot].struct_value.fields
        told["kind"].string_value = wait.kind.name.lower()
        told["state"].string_value = wait.state.name.lower()
        told["value"].ParseFromString(wait.result or _NULL)
        told["at_ms"].number_value = wait.ended_ms
        told["by"].string_value = wait.ended_by
    return value.SerializeToString()


def _fill(value: struct_pb2.Value, output: Output) -> None:
    if isinstance(output, bytes):
        value.ParseFromString(output or _NULL)
        return
    value.list_value.SetInParent()
    for given in output:
        value.list_value.values.add().ParseFromString(given or _NULL)


_ENDS = frozenset(events_pb2.AttemptEnd.values())
_NULL = struct_pb2.Value(null_value=struct_pb2.NULL_VALUE).SerializeToString()


def graph_output(view: RunView) -> bytes:
    """The run's output: of the output step, of the single last step, or of all last steps by key."""
    graph = view.graph
    key = graph.output_step or (graph.sinks[0] if len(graph.sinks) == 1 else "")
    value = struct_pb2.Value()
    if key:
        output = output_of(view, key)
        if isinstance(output, bytes):
            return output or _NULL
        _fill(value, b"" if output is None else output)
        return value.SerializeToString()
    value.struct_value.SetInParent()
    for sink in graph.sinks:
        _fill(value.struct_value.fields[sink], output_of(view, sink) or b"")
    return value.SerializeToString()


def step_message(view: RunView, step: Step) -> pb.Step:
    """A step for people."""
    failure, node = step.failure, view.node(step.key)
    instances = view.instances(step.key)
    reason = ""
    if step.state == StepState.SKIPPED and failure is not None:
        reason = "condition" if failure.type == CONDITION_FALSE else "needs"
    warns = node.policy is not None and node.policy.warns and step.state != StepState.PENDING
    return pb.Step(
        step_key=step.key,
        state=pb.StepState.ValueType(int(step.state)),
        attempts=step.attempts,
        wait_reason=step.wait_reason,
        failure=common_pb2.Failure(failure_class=failure.failure_class, message=failure.message, type=failure.type)
        if failure
        else None,
        output=struct_pb2.Value.FromString(step.output) if step.output else None,
        retry_at=_timestamp(step.retry_at_ms),
        needs=[need.step for need in node.needs],
        version=step.version,
        skip_reason=reason,
        instances=len(instances),
        instances_over=sum(one.over for one in instances),
        warnings=warnings(view, node) if warns else [],
    )


def warnings(view: RunView, node: Node) -> list[str]:
    """What a join that reports failures as warnings went on without."""
    return [f"{step.key} failed: {step.failure.message if step.failure else ''}" for step in left_out(view, node)]


def ordered(view: RunView) -> Sequence[Step]:
    """Steps in the author's order; instances after the step that they are of."""
    return [step for key in view.graph.order for step in (view.steps[key], *view.instances(key))]


def signal(request: pb.SignalEventRequest, caller: Caller, run_id: UUID | None, project: str, event_id: str) -> Signal:
    """An event, parsed. Its digest is what a repeat is known by."""
    payload = request.payload.SerializeToString(deterministic=True)
    if len(payload) > ANSWER_BYTES:
        raise too_large("payload", len(payload))
    for field, text in (
        ("name", request.name),
        ("correlation", request.correlation),
        ("event_id", event_id),
        ("project", project),
    ):
        if "\0" in text:
            raise invalid_field(field, "holds a NUL character", "leave it out")
    told = pb.SignalEventRequest(
        run_id=str(run_id or ""), name=request.name, correlation=request.correlation, payload=request.payload
    )
    said = digest(f"{project if run_id is None else ''}\n".encode() + told.SerializeToString(deterministic=True))
    return Signal(
        caller.tenant, project, run_id, event_id, request.name, request.correlation, payload, said, caller.name or caller.key_id
    )


_EXAMPLES = {"string": '"text"', "number": "1.5", "integer": "7", "boolean": "true", "array": "[1, 2]", "object": '{"a": 1}'}


def _how_to_fit(schema: Mapping[str, Any]) -> str:
    """What an answer looks like, by the JSON type that is asked for."""
    wanted = schema.get("type") if isinstance(schema, Mapping) else None
    if not isinstance(wanted, str) or wanted not in _EXAMPLES:
        return "send an answer that fits: `runway run inputs RUN -o json` shows the schema"
    quoted = ": a text is quoted" if wanted == "string" else ", not in quotes"
    whole = "`runway run inputs RUN -o json` shows all of the schema"
    return f"send JSON of type {wanted}, for example {_EXAMPLES[wanted]}{quoted}; {whole}"


def answer_ask(request: pb.SubmitInputRequest, caller: Caller, run_id: UUID) -> AnswerAsk:
    """An answer, parsed; held against the schema where the question is known."""
    result = request.answer.SerializeToString(deterministic=True)
    if len(result) > ANSWER_BYTES:
        raise too_large("answer", len(result))
    plain = json_format.MessageToDict(request.answer) if request.answer.WhichOneof("kind") else None

    def misfit(payload: bytes) -> Refusal | None:
        schema = json_format.MessageToDict(struct_pb2.Value.FromString(payload)).get("schema") or {}
        try:
            check(json.dumps(schema), plain, "answer")
        except Misfit as no:
            return invalid_field(no.path, f"does not fit the question's schema: {no.problem}", _how_to_fit(schema))
        return None

    return AnswerAsk(
        tenant=caller.tenant,
        project=caller.project,
        run_id=run_id,
        step_key=request.step_key,
        slot=request.slot,
        result=result or _NULL,
        by=caller.name or caller.key_id,
        misfit=misfit,
    )


def too_large(field: str, size: int) -> Refusal:
    """TOO_LARGE for what a step would be given."""
    return Refusal(
        Reason.TOO_LARGE,
        f"{field} has {size} bytes, more than {ANSWER_BYTES}",
        field=field,
        remedy="store it elsewhere and send where",
        detail={"bytes": str(size), "limit_bytes": str(ANSWER_BYTES)},
    )


def input_message(question: Question, now_ms: int) -> pb.Input:
    """A question for people."""
    wait = question.wait
    asked = struct_pb2.Value.FromString(wait.payload).struct_value.fields
    state = _INPUT_STATES[wait.state]
    if wait.state == WaitState.OPEN and not question.run_open:
        state = pb.INPUT_STATE_CLOSED
    elif wait.overdue(now_ms):
        state = pb.INPUT_STATE_EXPIRED
    return pb.Input(
        run_id=str(question.run_id),
        step_key=wait.step_key,
        slot=wait.slot,
        state=state,
        prompt=asked["prompt"].string_value,
        schema=asked["schema"].struct_value if "schema" in asked else None,
        asked_at=_timestamp(wait.asked_ms),
        deadline=_timestamp(wait.due_ms),
        ended_at=_timestamp(wait.ended_ms),
        answered_by=wait.ended_by,
        answer=struct_pb2.Value.FromString(wait.result) if wait.state == WaitState.DONE else None,
        root_run_id=str(question.root_run_id or question.run_id),
    )


def asked_event(run: RunFacts, wait: Wait) -> events_pb2.InputAsked:
    """A child's question for its root's log."""
    prompt = struct_pb2.Value.FromString(wait.payload).struct_value.fields["prompt"].string_value
    return events_pb2.InputAsked(
        run_id=run.run_id.bytes,
        root_run_id=(run.root_run_id or run.run_id).bytes,
        step_key=wait.step_key,
        slot=wait.slot,
        prompt=prompt[:PROMPT_CHARS],
        asked_ms=wait.asked_ms,
    )


def inputs_token(question: Question) -> str:
    """Where a page of questions ends."""
    return f"{question.run_id.hex}:{len(question.wait.step_key)}:{question.wait.step_key}{question.wait.slot}"


def parse_inputs_token(token: str) -> WaitKey:
    """See inputs_token."""
    if not token:
        return (NIL, "", "")
    run, _, rest = token.partition(":")
    length, _, text = rest.partition(":")
    if len(run) != 32 or not (length.isascii() and length.isdecimal() and len(length) < 5) or "\0" in text:
        raise invalid_field("page_token", "is not one of ours", "send next_page_token as it was returned")
    return (uuid_from_text(run, "page_token"), text[: int(length)], text[int(length) :])


def _timestamp(at_ms: int) -> Timestamp | None:
    return Timestamp(seconds=at_ms // 1000, nanos=at_ms % 1000 * 1_000_000) if at_ms else None


_INPUT_STATES = {
    WaitState.OPEN: pb.INPUT_STATE_OPEN,
    WaitState.DONE: pb.INPUT_STATE_ANSWERED,
    WaitState.TIMED_OUT: pb.INPUT_STATE_EXPIRED,
    WaitState.REFUSED: pb.INPUT_STATE_CLOSED,
}
