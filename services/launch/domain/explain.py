"""Authoritative for why a run does not move: launch's own blockers, and how those of readiness and the scheduler join them.

Pure. Can go wrong: two accounts of one step. The scheduler's ticket is the newer one wherever it is open: readiness hears of it
later, and makes successors' tickets known later than the scheduler that made them itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from libs.fence.grants import revoked_of
from libs.kernel.blockers import Block, Blocker, Estimate, Position, blocker
from libs.kernel.values import value
from services.launch.domain.approvals import Approval
from services.launch.domain.run import DECIDED, OPEN, Run, RunState
from services.launch.domain.spawning import HeldSpawn

WAITING, LEASED, ENDING, OVER = 1, 2, 3, 4
"""runway.internal.scheduler.v1.TicketStanding."""
_STANDINGS = {WAITING: "queued", LEASED: "running", ENDING: "ending"}
_TICKETED = frozenset({"ready", "running"})


@value(frozen=True, slots=True)
class StepSaid:
    """A step by readiness' account."""

    step_key: str
    state: str
    blockers: Sequence[Blocker]
    attempts: int


@value(frozen=True, slots=True)
class TicketSaid:
    """A step's newest ticket by the scheduler's account."""

    step_key: str
    standing: int
    blockers: Sequence[Blocker]
    position: Position | None
    estimate: Estimate | None
    attempt_number: int
    since_ms: int
    worker_id: str
    handler: str


@value(frozen=True, slots=True)
class StepExplained:
    """A step, all accounts together."""

    step_key: str
    state: str
    blockers: Sequence[Blocker]
    position: Position | None = None
    estimate: Estimate | None = None
    attempt_number: int = 0
    since_ms: int = 0
    worker_id: str = ""
    handler: str = ""


def of_run(run: Run) -> list[Blocker]:
    """What keeps every step of a run from running, by launch's own account, in order."""
    head = run.head
    found = []
    if head.state == RunState.DENIED:
        why = run.failure.message if run.failure else "no reason is kept"
        found.append(blocker(Block.RUN_DENIED, f"it was refused when it was launched: {why}", since_ms=run.created_ms))
    elif head.state == RunState.CANCELLING or (head.state == RunState.CLOSING and head.outcome == "cancelled"):
        text = "it is being cancelled: what lives is ended, nothing new begins"
        remedy = f"none: a cancel cannot be taken back; once it has ended, {_again(head.run_id)}"
        found.append(blocker(Block.RUN_CANCELLING, text, remedy=remedy))
    elif head.state in DECIDED:
        how = f"its outcome is decided: {head.outcome}"
        if run.failure is not None:
            how += f" ({run.failure.message})"
        remedy = f"none: the outcome stands; {_again(head.run_id, whole=head.outcome == 'succeeded')}"
        found.append(blocker(Block.RUN_ENDED, how, remedy=remedy, since_ms=run.finished_ms, outcome=head.outcome))
    elif head.state in (RunState.PAUSING, RunState.PAUSED):
        how = "is paused" if head.state == RunState.PAUSED else "is being paused"
        remedy = f"resume it: `runway run resume {head.run_id}`"
        found.append(blocker(Block.RUN_PAUSED, f"it {how}: nothing new of it begins", remedy=remedy))
    if head.state in OPEN and 0 < head.budget_micros <= head.used_micros:
        text = f"{head.used_micros} of {head.budget_micros} micros are used: steps begin, and calls that cost are refused"
        remedy = f"raise it: `runway budget raise {head.run_id} MICROS`; calls that cost are refused until then"
        facts = {"used_micros": head.used_micros, "budget_micros": head.budget_micros}
        found.append(blocker(Block.BUDGET_USED, text, remedy=remedy, **facts))
    for one in revoked_of(head.capabilities):
        text = f"{one.capability} was taken from it by {one.by}: steps begin, and calls of it are refused"
        found.append(blocker(Block.REVOKED, text, since_ms=one.at_ms, capability=one.capability, by=one.by))
    return found


def _again(run_id: UUID, *, whole: bool = False) -> str:
    """How an ended run goes on; `whole`: everything of it succeeded."""
    fork = f"`runway run fork {run_id} --from STEP`"
    if whole:
        return f"{fork} does a step again, and what follows it, in a new run"
    retry = f"`runway run retry {run_id}` does again what did not succeed"
    return f"{retry}, {fork} a step and what follows it, each in a new run"


def not_begun(run: Run) -> Blocker:
    """Readiness does not know the run yet."""
    return blocker(Block.RUN_NOT_BEGUN, "it is stored, and readiness has not heard of it yet", since_ms=run.created_ms)


def together(
    steps: Sequence[StepSaid] | None, tickets: Mapping[str, TicketSaid] | None, *, decided: bool = False
) -> list[StepExplained]:
    """Steps with what both say; None: that one was not asked, or did not answer."""
    if steps is None:
        return [_ticketed(ticket) for ticket in (tickets or {}).values() if ticket.standing in _STANDINGS]
    return [_one(step, None if tickets is None else tickets.get(step.step_key), tickets is not None, decided) for step in steps]


def with_approvals(steps: Sequence[StepExplained], pending: Sequence[tuple[Approval, int]]) -> list[StepExplained]:
    """Steps with the approvals (and how many have said yes) that they wait for, in place of the wait that says less."""
    by_step: dict[str, list[Blocker]] = {}
    for approval, yes in pending:
        by_step.setdefault(approval.subject.step_key, []).append(_approval(approval, yes))
    return [_waits(step, by_step[step.step_key]) if step.step_key in by_step else step for step in steps]


def asks_below(pending: Sequence[tuple[Approval, int]]) -> list[Blocker]:
    """Approvals that runs below this one wait for: it is the root of their tree, and answers for them."""
    found = []
    for approval, yes in pending:
        one = _approval(approval, yes)
        text = f"child {approval.run_id}, step {approval.subject.step_key}: {one.message}"
        detail = {**one.detail, "child_run_id": str(approval.run_id), "child_step": approval.subject.step_key}
        found.append(replace(one, message=text, detail=detail))
    return found


def with_held(run: Run, steps: Sequence[StepExplained], held: Sequence[HeldSpawn]) -> list[StepExplained]:
    """Steps with what they spawned and what waits for money, before the join that waits for it."""
    by_step: dict[str, list[Blocker]] = {}
    for item in held:
        _, step_key, slot = item.key
        text = f"{item.children} children of {slot} wait for budget: {item.why}"
        remedy = f"raise it: `runway budget raise {run.head.run_id} MICROS`; or wait until what is held or delegated comes back"
        found = blocker(
            Block.WAITS_FOR,
            text,
            remedy=remedy,
            since_ms=item.held_ms,
            reason="budget",
            slot=slot,
            children=item.children,
            asked_micros=item.micros,
        )
        by_step.setdefault(step_key, []).append(found)
    return [replace(step, blockers=[*by_step.get(step.step_key, ()), *step.blockers]) for step in steps]


def _waits(step: StepExplained, found: Sequence[Blocker]) -> StepExplained:
    others = [one for one in step.blockers if not (one.code == Block.WAITS_FOR and one.detail.get("reason") == "approval")]
    return replace(step, blockers=[*found, *others])


def _approval(approval: Approval, yes: int) -> Blocker:
    named = approval.approval_id
    text = f"{approval.title} waits for approval {named}: {yes} of {approval.need} have said yes"
    return blocker(
        Block.APPROVAL,
        text,
        remedy=f"look at it and decide: `runway approval show {named}`, then `runway approval approve {named}` or "
        f"`runway approval deny {named} --reason WHY`",
        since_ms=approval.requested_ms,
        until_ms=approval.subject.expires_ms,
        approval_id=named,
        need=approval.need,
        approved=yes,
    )


def _one(step: StepSaid, ticket: TicketSaid | None, asked: bool, decided: bool) -> StepExplained:
    if ticket is not None and ticket.standing in _STANDINGS and not decided:
        return _ticketed(ticket)
    blockers = list(step.blockers)
    if asked and step.state in _TICKETED and not blockers:
        what = (
            "its attempt has ended, and readiness is about to hear it"
            if ticket
            else "its ticket is on its way to the scheduler"
        )
        blockers.append(blocker(Block.UNDER_WAY, what))
    return StepExplained(step.step_key, step.state, blockers, attempt_number=step.attempts)


def _ticketed(ticket: TicketSaid) -> StepExplained:
    return StepExplained(
        ticket.step_key,
        _STANDINGS[ticket.standing],
        ticket.blockers,
        ticket.position,
        ticket.estimate,
        ticket.attempt_number,
        ticket.since_ms,
        ticket.worker_id,
        ticket.handler,
    )
