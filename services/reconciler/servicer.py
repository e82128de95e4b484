"""gRPC of the reconciler: parse → app → translate."""

from typing import Any

from runway.reconciler.v1 import reconciler_service_pb2 as pb
from runway.reconciler.v1 import reconciler_service_pb2_grpc

from libs.kernel.ids import uuid_from_text
from libs.kernel.refusal import invalid_field
from libs.rpc.identity import current_call
from libs.rpc.values import check_value
from services.reconciler import translate
from services.reconciler.app.check_owner import check_owner
from services.reconciler.app.decide_case import Decision, decide_case
from services.reconciler.app.list_stuck import list_stuck
from services.reconciler.domain.cases import CaseState
from services.reconciler.ports import Ports

DEFAULT_PAGE = 50


class ReconcilerServicer(reconciler_service_pb2_grpc.ReconcilerServiceServicer):
    """Cases, for people."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def ListCases(self, request: pb.ListCasesRequest, context: Any) -> pb.ListCasesResponse:
        """See the contract."""
        caller = current_call().require_caller()
        run_id = uuid_from_text(request.run_id, "run_id") if request.run_id else None
        states, after = translate.states_of(list(request.states)), translate.place_of(request.page_token)
        size = request.page_size or DEFAULT_PAGE
        found = await self._ports.cases.page(caller.tenant, caller.project, states, run_id, after, size + 1)
        if run_id is not None and not found and not after:
            await check_owner(self._ports, caller.tenant, caller.project, run_id)
        token = str(found[size - 1][0]) if len(found) > size else ""
        return pb.ListCasesResponse(cases=[translate.case_message(case) for _, case in found[:size]], next_page_token=token)

    async def ResolveCase(self, request: pb.ResolveCaseRequest, context: Any) -> pb.ResolveCaseResponse:
        """See the contract."""
        caller = current_call().require_caller()
        state = CaseState(int(request.state))
        if state is CaseState.ABSENT and request.HasField("result"):
            raise invalid_field("result", "belongs to OBSERVED", "leave it out: what did not happen has no answer")
        check_value(request.result, "result")
        case = await decide_case(
            self._ports,
            Decision(
                case_id=uuid_from_text(request.case_id, "case_id"),
                tenant=caller.tenant,
                project=caller.project,
                state=state,
                reason=request.reason,
                result=request.result.SerializeToString() if state is CaseState.OBSERVED else b"",
                actor=caller.name or caller.key_id,
                expected_version=request.expected_version if request.HasField("expected_version") else None,
            ),
        )
        return pb.ResolveCaseResponse(case=translate.case_message(case))

    async def ListStuckWork(self, request: pb.ListStuckWorkRequest, context: Any) -> pb.ListStuckWorkResponse:
        """See the contract."""
        caller = current_call().caller
        whose = (caller.tenant, caller.project) if caller is not None else ("", "")
        found, unreachable = await list_stuck(self._ports, request.older_than_ms, *whose)
        return pb.ListStuckWorkResponse(items=[translate.stuck_message(one) for one in found], unreachable=unreachable)
