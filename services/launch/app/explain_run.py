"""Why a run does not move: its own row, then readiness, then the scheduler. Nobody's silence fails the answer; it is said.

No connection is held while others are asked: the run was read before. Can go wrong: accounts of different moments. The next
answer is nearer to the truth; nothing is decided by this one.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

from libs.kernel.blockers import Blocker
from libs.kernel.refusal import Reason, Refusal
from libs.kernel.values import value
from services.launch.domain.approvals import Approval
from services.launch.domain.explain import (
    StepExplained,
    StepSaid,
    TicketSaid,
    asks_below,
    not_begun,
    of_run,
    together,
    with_approvals,
    with_held,
)
from services.launch.domain.run import DECIDED, Run, RunState
from services.launch.domain.spawning import HeldSpawn


@value(frozen=True, slots=True)
class StepsSaid:
    """A page of steps by readiness' account; `next_after` 0: the last one."""

    known: bool
    steps: Sequence[StepSaid]
    next_after: int
    below: Sequence[Blocker] = ()
    """Questions of runs below it."""


class Accounts(Protocol):
    """The other services, by their own account; each raises the refusal of one that does not answer."""

    async def steps(self, run_id: UUID, step_key: str, after: int, limit: int) -> StepsSaid:
        """Steps that are not over, or the one that is named."""
        ...

    async def tickets(self, run_id: UUID, step_keys: Sequence[str]) -> Mapping[str, TicketSaid]:
        """Tickets of these steps; of all with an open one where none is named."""
        ...


@value(frozen=True, slots=True)
class Question:
    """What is asked about a run."""

    step_key: str
    after: int
    limit: int


@value(frozen=True, slots=True)
class RunExplained:
    """The answer; `unanswered`: service and what came instead."""

    blockers: Sequence[Blocker]
    steps: Sequence[StepExplained]
    unanswered: Sequence[tuple[str, str]]
    next_after: int


async def explain_run(
    accounts: Accounts,
    run: Run,
    question: Question,
    pending: Sequence[tuple[Approval, int]] = (),
    held: Sequence[HeldSpawn] = (),
    below: Sequence[tuple[Approval, int]] = (),
) -> RunExplained:
    """The run, with the accounts of those who could be asked. `pending`, `below`: approvals that it waits for, and those that
    runs below it wait for."""
    blockers = of_run(run)
    decided = run.head.state in DECIDED
    if run.head.state == RunState.DENIED or (decided and not question.step_key):
        return RunExplained(blockers, [], [], 0)
    unanswered: list[tuple[str, str]] = []
    said = await _steps(accounts, run.head.run_id, question, unanswered)
    if said is not None and not said.known and not decided:
        blockers.append(not_begun(run))
    if not decided and not question.step_key:
        blockers += [*asks_below(below), *(said.below if said is not None else ())]
    tickets = None
    keys = [question.step_key] if question.step_key else [step.step_key for step in said.steps] if said is not None else []
    if not decided and (said is None or keys):
        tickets = await _tickets(accounts, run.head.run_id, keys, unanswered)
    steps = together(said.steps if said is not None else None, tickets, decided=decided)
    steps = with_held(run, with_approvals(steps, pending), held)
    return RunExplained(blockers, steps, unanswered, said.next_after if said is not None else 0)


async def _steps(accounts: Accounts, run_id: UUID, asked: Question, unanswered: list[tuple[str, str]]) -> StepsSaid | None:
    try:
        return await accounts.steps(run_id, asked.step_key, asked.after, asked.limit)
    except Refusal as no:
        if no.reason is Reason.NOT_FOUND:
            raise
        unanswered.append(("readiness", no.message))
        return None


async def _tickets(
    accounts: Accounts, run_id: UUID, keys: Sequence[str], unanswered: list[tuple[str, str]]
) -> Mapping[str, TicketSaid] | None:
    try:
        return await accounts.tickets(run_id, keys)
    except Refusal as no:
        unanswered.append(("scheduler", no.message))
        return None
