"""gRPC of runs and their children: parse → app or read → translate."""

from typing import Any
from uuid import UUID

from runway.launch.v1 import tree_service_pb2 as pb
from runway.launch.v1 import tree_service_pb2_grpc

from libs.kernel.ids import uuid_from_text
from libs.kernel.refusal import Refusal, not_found
from libs.rpc.identity import Caller, current_call
from services.launch import translate, translate_children
from services.launch.app.manage_tenants import get_tenant
from services.launch.app.raise_budgets import Raise, raise_budget
from services.launch.domain.children import Envelope
from services.launch.domain.run import Run
from services.launch.ports import Ports
from services.launch.servicer import may_see

PAGE = 100


class TreeServicer(tree_service_pb2_grpc.TreeServiceServicer):
    """Raises go by the control pool."""

    def __init__(self, ports: Ports, control: Ports) -> None:
        self._ports = ports
        self._control = control

    async def _run(self, caller: Caller, text: str) -> Run:
        run_id = uuid_from_text(text, "run_id")
        run = (await self._ports.reads.runs([run_id])).get(run_id)
        if run is None or not may_see(caller, run):
            raise not_found("run")
        return run

    async def ListChildren(self, request: pb.ListChildrenRequest, context: Any) -> pb.ListChildrenResponse:
        """See the contract."""
        run = await self._run(current_call().require_caller(), request.run_id)
        size = translate.page_of(request.page_size, PAGE)
        after = translate_children.parse_after(request.page_token)
        step_key = translate.check_text(request.step_key, "step_key")
        group = translate.check_text(request.group, "group")
        found = await self._ports.children.children(run.head.run_id, after, step_key, group, size + 1)
        return pb.ListChildrenResponse(
            children=[translate_children.child_message(child, outputs=request.outputs) for child in found[:size]],
            next_page_token=translate_children.next_token([child.run for child in found], size),
        )

    async def GetTree(self, request: pb.GetTreeRequest, context: Any) -> pb.GetTreeResponse:
        """See the contract."""
        run = await self._run(current_call().require_caller(), request.run_id)
        size = translate.page_of(request.page_size, PAGE)
        after = translate_children.parse_after(request.page_token)
        found = await self._ports.children.tree(run.head.run_id, after, size + 1)
        open_runs = [one.head.run_id for _, one, _ in found[:size] if not one.finished_ms]
        envelopes, unanswered = await self._envelopes(open_runs)
        return pb.GetTreeResponse(
            nodes=[
                translate_children.node_message(name, one, back, envelopes.get(one.head.run_id))
                for name, one, back in found[:size]
            ],
            unanswered=unanswered,
            next_page_token=translate_children.next_token([one for _, one, _ in found], size),
        )

    async def _envelopes(self, run_ids: list[UUID]) -> tuple[dict[UUID, Envelope], list[str]]:
        if not run_ids:
            return {}, []
        try:
            return await self._ports.envelopes.read(run_ids), []
        except Refusal:
            return {}, ["gateway"]

    async def RaiseBudget(self, request: pb.RaiseBudgetRequest, context: Any) -> pb.RaiseBudgetResponse:
        """See the contract."""
        caller = current_call().require_caller()
        ask = Raise(
            run_id=uuid_from_text(request.run_id, "run_id"),
            tenant=caller.tenant,
            project=caller.project,
            actor=translate.actor(caller),
            request_id=translate.check_text(request.request_id, "request_id"),
            micros=request.micros,
            reason=translate.check_text(request.reason, "reason"),
            expected_version=request.expected_version if request.HasField("expected_version") else None,
        )
        done = await raise_budget(self._control, ask)
        return pb.RaiseBudgetResponse(run=translate.run_message(done.run), replayed=done.replayed)

    async def GetTenantBudget(self, request: pb.GetTenantBudgetRequest, context: Any) -> pb.GetTenantBudgetResponse:
        """See the contract."""
        account = await get_tenant(self._ports, current_call().require_caller().tenant)
        free = account.limit_micros - account.reserved_micros - account.spent_micros
        return pb.GetTenantBudgetResponse(
            tenant=account.tenant,
            limit_micros=account.limit_micros,
            reserved_micros=account.reserved_micros,
            spent_micros=account.spent_micros,
            free=translate_children.money(max(0, free)),
            active_descendants=account.active_descendants,
            max_active_descendants=account.max_active_descendants,
        )
