"""Explanations of runs: the question parsed, others asked, the answer put together and translated. Authoritative for nothing.

Can go wrong: a page that moves while it is read. A token counts steps in the order of the workflow, which never changes.
"""

from runway.launch.v1 import launch_service_pb2

from libs.kernel.refusal import invalid_field
from libs.rpc.explained import at, blocker_to, estimate_to, position_to
from services.launch.app.explain_run import Accounts, Question, RunExplained, explain_run
from services.launch.domain.approvals import Approval
from services.launch.domain.explain import StepExplained
from services.launch.domain.run import DECIDED, Run
from services.launch.ports_approvals import ApprovalReads
from services.launch.ports_children import HeldReads
from services.launch.translate import check_text, page_of

DEFAULT_PAGE = 100
MOST_APPROVALS = 100


class Explanations:
    """Answers `ExplainRun` for a run that the caller may see."""

    def __init__(self, accounts: Accounts, approvals: ApprovalReads, held: HeldReads) -> None:
        self._accounts = accounts
        self._approvals = approvals
        self._held = held

    async def of(self, run: Run, request: launch_service_pb2.ExplainRunRequest) -> launch_service_pb2.ExplainRunResponse:
        """See the contract."""
        step_key = check_text(request.step_key, "step_key")
        question = Question(step_key, _place(request.page_token), page_of(request.page_size, DEFAULT_PAGE))
        held = await self._held.of_run(run.head.run_id, MOST_APPROVALS) if run.head.state not in DECIDED else []
        pending, below = await self._pending(run, below=False), await self._pending(run, below=True)
        return _explained(run, await explain_run(self._accounts, run, question, pending, held, below))

    async def _pending(self, run: Run, *, below: bool) -> list[tuple[Approval, int]]:
        """Approvals that the run waits for, or those below it, and how many have said yes to each."""
        if run.head.state in DECIDED or (below and not run.head.children):
            return []
        found = await self._approvals.pending_of(run.head.run_id, MOST_APPROVALS, below=below)
        said = await self._approvals.decisions([approval.approval_id for approval in found])
        return [(approval, len(said[approval.approval_id])) for approval in found]


def _place(token: str) -> int:
    """A page token of steps: how many come before."""
    if token and not (token.isascii() and token.isdecimal() and len(token) <= 9):
        raise invalid_field("page_token", "is not one of ours", "send next_page_token as it was returned")
    return int(token or "0")


def _explained(run: Run, found: RunExplained) -> launch_service_pb2.ExplainRunResponse:
    """Why a run does not move."""
    return launch_service_pb2.ExplainRunResponse(
        run_id=str(run.head.run_id),
        state=launch_service_pb2.RunState.ValueType(int(run.head.state)),
        outcome=run.head.outcome,
        blockers=[blocker_to(item) for item in found.blockers],
        steps=[_step_explained(step) for step in found.steps],
        unanswered=[launch_service_pb2.Unanswered(service=name, message=text) for name, text in found.unanswered],
        next_page_token=str(found.next_after) if found.next_after else "",
    )


def _step_explained(step: StepExplained) -> launch_service_pb2.StepExplanation:
    return launch_service_pb2.StepExplanation(
        step_key=step.step_key,
        state=step.state,
        blockers=[blocker_to(item) for item in step.blockers],
        position=position_to(step.position),
        estimate=estimate_to(step.estimate),
        attempt_number=step.attempt_number,
        since=at(step.since_ms),
        worker_id=step.worker_id,
        handler=step.handler,
    )
