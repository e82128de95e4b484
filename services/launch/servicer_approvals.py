"""gRPC of approvals: parse → app → translate. Who may decide what is said in the domain; here only what a key may do at all."""

from typing import Any

from runway.launch.v1 import approval_service_pb2 as pb
from runway.launch.v1 import approval_service_pb2_grpc

from libs.kernel.ids import uuid_from_text
from libs.kernel.refusal import Reason, Refusal, not_found
from libs.rpc.batcher import Batcher
from libs.rpc.identity import Caller, current_call
from services.launch.app.approver_keys import list_keys, register_key, revoke_key
from services.launch.app.decide_approvals import DecidedApproval, decide_approvals
from services.launch.app.withdraw_approvals import Withdrawal, Withdrawn, withdraw_approvals
from services.launch.domain.approvals import OPERATOR, REVIEWER, Decision
from services.launch.ports import Ports
from services.launch.servicer import may_see, project_of
from services.launch.translate import check_text
from services.launch.translate_approvals import approval_message, approver_of, key_message, place

PAGE = 100


class ApprovalServicer(approval_service_pb2_grpc.ApprovalServiceServicer):
    """What people decide."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._decide: Batcher[Decision, DecidedApproval] = Batcher(
            lambda asks: decide_approvals(ports, asks), name="decide_approval"
        )
        self._withdraw: Batcher[Withdrawal, Withdrawn] = Batcher(
            lambda asks: withdraw_approvals(ports, asks), name="withdraw_approval"
        )

    async def close(self) -> None:
        """Waits for batches under way."""
        await self._decide.close()
        await self._withdraw.close()

    async def ListApprovals(self, request: pb.ListApprovalsRequest, context: Any) -> pb.ListApprovalsResponse:
        """See the contract."""
        caller = current_call().require_caller()
        project = project_of(caller, request.project) if caller.project or request.project else ""
        run_id = uuid_from_text(request.run_id, "run_id") if request.run_id else None
        size = request.page_size or PAGE
        states = [int(state) for state in request.states]
        if run_id is not None:
            run = (await self._ports.reads.runs([run_id])).get(run_id)
            if run is None or not may_see(caller, run):
                raise not_found("run")
        reads = self._ports.approvals.reads
        found = await reads.page(caller.tenant, project, run_id, states, place(request.page_token), size + 1)
        said = await reads.decisions([approval.approval_id for approval in found[:size]])
        return pb.ListApprovalsResponse(
            approvals=[approval_message(approval, said[approval.approval_id]) for approval in found[:size]],
            next_page_token=str(found[size - 1].approval_id) if len(found) > size else "",
        )

    async def GetApproval(self, request: pb.GetApprovalRequest, context: Any) -> pb.GetApprovalResponse:
        """See the contract."""
        caller = current_call().require_caller()
        approval_id = uuid_from_text(request.approval_id, "approval_id")
        reads = self._ports.approvals.reads
        found = (await reads.load([approval_id])).get(approval_id)
        if found is None or found.tenant != caller.tenant or (caller.project and found.project != caller.project):
            raise not_found("approval")
        said = (await reads.decisions([approval_id]))[approval_id]
        return pb.GetApprovalResponse(approval=approval_message(found, said, content=True))

    async def DecideApproval(self, request: pb.DecideApprovalRequest, context: Any) -> pb.DecideApprovalResponse:
        """See the contract."""
        caller = _may_decide()
        ask = Decision(
            uuid_from_text(request.approval_id, "approval_id"),
            caller.tenant,
            caller.project,
            approver_of(caller),
            caller.scopes,
            request.decision == pb.DECISION_APPROVE,
            check_text(request.key_id, "key_id"),
            request.signature,
            check_text(request.reason, "reason"),
            request.break_glass,
        )
        decided = await self._decide.submit(ask)
        message = approval_message(decided.approval, decided.decisions, content=True)
        return pb.DecideApprovalResponse(approval=message, replayed=decided.replayed)

    async def WithdrawApproval(self, request: pb.WithdrawApprovalRequest, context: Any) -> pb.WithdrawApprovalResponse:
        """See the contract."""
        caller = _may_decide()
        approval_id = uuid_from_text(request.approval_id, "approval_id")
        reason = check_text(request.reason, "reason")
        done = await self._withdraw.submit(Withdrawal(approval_id, caller.tenant, caller.project, approver_of(caller), reason))
        return pb.WithdrawApprovalResponse(
            outcome=pb.WITHDRAWAL_OUTCOME_ALREADY_CONSUMED if done.consumed else pb.WITHDRAWAL_OUTCOME_WITHDRAWN,
            approval=approval_message(done.approval, done.decisions, content=True),
        )

    async def RegisterApproverKey(self, request: pb.RegisterApproverKeyRequest, context: Any) -> pb.RegisterApproverKeyResponse:
        """See the contract."""
        caller = _may_decide()
        key = await register_key(self._ports, caller.tenant, approver_of(caller), request.public_key)
        return pb.RegisterApproverKeyResponse(key=key_message(key))

    async def ListApproverKeys(self, request: pb.ListApproverKeysRequest, context: Any) -> pb.ListApproverKeysResponse:
        """See the contract."""
        caller = current_call().require_caller()
        size = request.page_size or PAGE
        found = await list_keys(self._ports, caller.tenant, check_text(request.page_token, "page_token"), size + 1)
        token = found[size - 1].key_id if len(found) > size else ""
        return pb.ListApproverKeysResponse(keys=[key_message(key) for key in found[:size]], next_page_token=token)

    async def RevokeApproverKey(self, request: pb.RevokeApproverKeyRequest, context: Any) -> pb.RevokeApproverKeyResponse:
        """See the contract."""
        caller = _may_decide()
        whose = "" if caller.has(OPERATOR) else approver_of(caller)
        key = await revoke_key(self._ports, caller.tenant, check_text(request.key_id, "key_id"), whose)
        return pb.RevokeApproverKeyResponse(key=key_message(key))


def _may_decide() -> Caller:
    caller = current_call().require_caller()
    if not (caller.has(REVIEWER) or caller.has(OPERATOR)):
        raise Refusal(
            Reason.METHOD_DENIED,
            "this method needs a key with the scope reviewer",
            remedy="use a key that has the scope reviewer, or operator to break the glass",
        )
    return caller
