"""gRPC of the gateway for attempts and callers: parse → app → translate. No decisions, no SQL."""

from typing import Any, cast

from runway.gateway.v1 import gateway_service_pb2 as pb
from runway.gateway.v1 import gateway_service_pb2_grpc

from libs.fence.claims import VerifiedLease
from libs.fence.values import Operation, admission_of
from libs.kernel.ids import uuid_from_text
from libs.kernel.refusal import Reason, Refusal, not_found
from libs.rpc.identity import current_call
from services.gateway import translate
from services.gateway.app.invoke import Answer, Ask, Invoker, no_tool
from services.gateway.app.list_effects import list_effects
from services.gateway.ports import Ports

_MODELS = "use one that is set up here, or set it up: RUNWAY_GATEWAY_MODELS of the gateway, then start it again"
POINT = "gateway"
SERVICE = "runway.gateway.v1.GatewayService"
TOOL_WAIT_MS = 30_000
MODEL_WAIT_MS = 60_000
POLL_WAIT_MS = 20_000
PAGE = 100
MODEL = "model:"


class GatewayServicer(gateway_service_pb2_grpc.GatewayServiceServicer):
    """Effects."""

    def __init__(self, ports: Ports, invoker: Invoker) -> None:
        self._ports = ports
        self._invoker = invoker

    async def InvokeTool(self, request: pb.InvokeToolRequest, context: Any) -> pb.InvokeToolResponse:
        """See the contract."""
        lease = _lease()
        _declared(lease, request.tool, lease.tools, "tool")
        tool = None if request.tool.startswith(MODEL) else self._ports.tools.find(request.tool)
        if tool is None:
            raise no_tool(request.tool)
        ask = Ask(
            admission=admission_of(lease, Operation.INTENT, tool=tool.name),
            slot=translate.slot(request.slot),
            arguments=translate.arguments(request.arguments, "arguments", tool),
            replay_class=translate.replay_class(request.replay_class),
            hold=translate.hold(request.hold_micros),
            wait_ms=translate.wait_ms(request.wait, request.HasField("wait"), TOOL_WAIT_MS),
        )
        answer = await self._invoker.invoke(ask)
        return pb.InvokeToolResponse(**_answer(answer))

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> pb.GenerateResponse:
        """See the contract."""
        lease = _lease()
        _declared(lease, request.model, lease.models, "model")
        tool = self._ports.tools.find(MODEL + request.model)
        if tool is None:
            raise not_found(f"model {request.model[:100]!r}", field="model", remedy=_MODELS)
        ask = Ask(
            admission=admission_of(lease, Operation.INTENT, tool=tool.name),
            slot=translate.slot(request.slot),
            arguments=translate.arguments(request.body, "body", tool),
            replay_class=None,
            hold=translate.hold(request.hold_micros),
            wait_ms=translate.wait_ms(request.wait, request.HasField("wait"), MODEL_WAIT_MS),
        )
        answer = await self._invoker.invoke(ask)
        return pb.GenerateResponse(**_answer(answer))

    async def WaitEffect(self, request: pb.WaitEffectRequest, context: Any) -> pb.WaitEffectResponse:
        """See the contract."""
        limit = translate.wait_ms(request.timeout, request.HasField("timeout"), POLL_WAIT_MS)
        effect = await self._invoker.wait(admission_of(_lease(), Operation.PROGRESS), translate.slot(request.slot), limit)
        return pb.WaitEffectResponse(effect=translate.effect_message(effect), resolved=effect.resolved)

    async def ListEffects(self, request: pb.ListEffectsRequest, context: Any) -> pb.ListEffectsResponse:
        """See the contract."""
        caller = current_call().require_caller()
        size = request.page_size or PAGE
        run_id, after = uuid_from_text(request.run_id, "run_id"), translate.after(request.page_token)
        found = await list_effects(self._ports, caller.tenant, caller.project, run_id, after, size + 1)
        token = str(found[size - 1][0].ordinal) if len(found) > size else ""
        effects = [translate.effect_message(effect, tries) for effect, tries in found[:size]]
        return pb.ListEffectsResponse(effects=effects, next_page_token=token)

    async def ListTools(self, request: pb.ListToolsRequest, context: Any) -> pb.ListToolsResponse:
        """See the contract."""
        return pb.ListToolsResponse(tools=[translate.tool_message(tool) for tool in self._ports.tools.all()])


def _lease() -> VerifiedLease:
    lease = cast(VerifiedLease, current_call().require_lease())
    lease.require_point(POINT)
    return lease


def _declared(lease: VerifiedLease, name: str, declared: tuple[str, ...], kind: str) -> None:
    """The step's contract must name it; what the run was granted is judged in the commit."""
    if name not in declared and "*" not in declared:
        raise Refusal(
            Reason.CAPABILITY_DENIED,
            f"the contract of step {lease.step_key} does not name the {kind} {name}",
            remedy=f"name the {kind} in the step's contract and publish a new version",
            detail={"capability": f"{kind}:{name}", "step_key": lease.step_key},
        )


def _answer(answer: Answer) -> dict[str, Any]:
    return {
        "effect": translate.effect_message(answer.effect),
        "replayed": answer.replayed,
        "arguments_differ": answer.arguments_differ,
    }
