"""gRPC of readiness: parse → read or app → translate."""

from typing import Any
from uuid import UUID

from runway.readiness.v1 import readiness_service_pb2 as pb
from runway.readiness.v1 import readiness_service_pb2_grpc

from libs.kernel.ids import IdSource, uuid_from_text
from libs.kernel.refusal import invalid_field, not_found
from libs.rpc.batcher import Batcher
from libs.rpc.identity import Caller, current_call
from libs.rpc.values import check_value
from services.readiness import translate
from services.readiness.app.answer_inputs import AnswerAsk, Answered, answer_inputs, through_root
from services.readiness.app.signal_events import Told, signal_events
from services.readiness.domain.state import RunView
from services.readiness.domain.waits import Signal
from services.readiness.ports import Owners, Ports, StepReads

DEFAULT_PAGE = 200
INPUTS_PAGE = 100


class ReadinessServicer(readiness_service_pb2_grpc.ReadinessServiceServicer):
    """Steps of runs for people, and what people and programs bring to steps that wait. Calls that arrive together are one
    batch."""

    def __init__(self, ports: Ports, reads: StepReads, owners: Owners, ids: IdSource) -> None:
        self._ports = ports
        self._reads = reads
        self._owners = owners
        self._ids = ids
        self._signal: Batcher[Signal, Told] = Batcher(lambda items: signal_events(ports, items), name="signal_events")
        self._answer: Batcher[AnswerAsk, Answered] = Batcher(lambda items: answer_inputs(ports, items), name="answer_inputs")

    async def close(self) -> None:
        """Waits for batches under way."""
        await self._signal.close()
        await self._answer.close()

    async def _own(self, caller: Caller, run_id: UUID) -> tuple[str, str]:
        """Owner of a run that the caller may see; launch is asked for one that did not come yet."""
        owner = await self._reads.owner(run_id) or await self._owners.owner(run_id)
        if owner is None or owner[0] != caller.tenant or (caller.project and owner[1] != caller.project):
            raise not_found("run")
        return owner

    async def ListSteps(self, request: pb.ListStepsRequest, context: Any) -> pb.ListStepsResponse:
        """See the contract. A run that launch accepted a moment ago has no steps yet."""
        caller = current_call().require_caller()
        run_id = uuid_from_text(request.run_id, "run_id")
        await self._own(caller, run_id)
        found = await self._reads.read_steps(run_id)
        if found is None:
            return pb.ListStepsResponse()
        run, steps = found
        graph = (await self._ports.versions.graphs([run.digest]))[run.digest]
        if request.page_token and not request.page_token.isdecimal():
            raise invalid_field("page_token", "is not one of ours", "send next_page_token as it was returned")
        first = int(request.page_token or "0")
        size = request.page_size or DEFAULT_PAGE
        view = RunView(run_id, graph, steps)
        page = translate.ordered(view)[first : first + size]
        token = str(first + size) if first + size < len(steps) else ""
        return pb.ListStepsResponse(steps=[translate.step_message(view, step) for step in page], next_page_token=token)

    async def SignalEvent(self, request: pb.SignalEventRequest, context: Any) -> pb.SignalEventResponse:
        """See the contract."""
        caller = current_call().require_caller()
        check_value(request.payload, "payload")
        run_id = uuid_from_text(request.run_id, "run_id") if request.run_id else None
        if run_id is None and not request.correlation:
            raise invalid_field("correlation", "is missing, and no run is named", "send a run_id, a correlation, or both")
        if run_id is not None:
            _, project = await self._own(caller, run_id)
        else:
            if caller.project and request.project and request.project != caller.project:
                raise not_found("project")
            project = caller.project or request.project or "default"
        event_id = request.event_id or self._ids.random128().hex
        told = await self._signal.submit(translate.signal(request, caller, run_id, project, event_id))
        return pb.SignalEventResponse(
            event_id=event_id,
            used=bool(told.slot),
            replayed=told.replayed,
            run_id=str(told.run_id or ""),
            step_key=told.step_key,
            slot=told.slot,
        )

    async def SubmitInput(self, request: pb.SubmitInputRequest, context: Any) -> pb.SubmitInputResponse:
        """See the contract."""
        caller = current_call().require_caller()
        check_value(request.answer, "answer")
        named = translate.answer_ask(request, caller, uuid_from_text(request.run_id, "run_id"))
        ask = await through_root(self._reads, named, self._ports.clock.now_ms())
        done = await self._answer.submit(ask)
        shown = translate.input_message(done.question, self._ports.clock.now_ms())
        return pb.SubmitInputResponse(input=shown, replayed=done.replayed)

    async def ListInputs(self, request: pb.ListInputsRequest, context: Any) -> pb.ListInputsResponse:
        """See the contract."""
        caller = current_call().require_caller()
        size = request.page_size or INPUTS_PAGE
        after = translate.parse_inputs_token(request.page_token)
        now_ms = self._ports.clock.now_ms()
        if request.run_id:
            run_id = uuid_from_text(request.run_id, "run_id")
            await self._own(caller, run_id)
            found = await self._reads.page_inputs(run_id, after, size + 1)
        else:
            found = await self._reads.page_open_inputs(caller.tenant, caller.project, after, size + 1, now_ms)
        token = translate.inputs_token(found[size - 1]) if len(found) > size else ""
        shown = [translate.input_message(question, now_ms) for question in found[:size]]
        return pb.ListInputsResponse(inputs=shown, next_page_token=token)
