"""Authoritative for why a step has no ticket: which predecessors are missing, what it waits for, when it is tried again. Pure.

Can go wrong: calling a step blocked that moves. A step with a ticket has no blocker here: the scheduler says where it stands.
"""

from collections.abc import Mapping

from libs.kernel.blockers import Block, Blocker, blocker
from services.readiness.domain.graph import Join, Node, When
from services.readiness.domain.steps import RECONCILIATION, RETRY_BACKOFF, TERMINAL, Step, StepState, holds

NAMED = 5
"""Predecessors and slots named in one sentence."""
_BROUGHT = {
    "timer": "wait: it goes on by itself",
    "external_event": "tell of the event: `runway run signal`",
    "user_input": "answer it: `runway run inputs`, `runway run answer`",
    "approval": "decide it, or have somebody decide it who may",
    "child_tasks": "look at the child runs: it goes on when enough of them have ended",
}
_WORDS = {When.SUCCESS: "to succeed", When.FAILURE: "to fail", When.ALWAYS: "to end"}


def explain(node: Node, steps: Mapping[str, Step]) -> list[Blocker]:
    """What keeps this step from having a ticket, in order."""
    step = steps[node.key]
    if step.state in TERMINAL:
        return _over(step)
    match step.state:
        case StepState.PENDING:
            return _needs(node, steps)
        case StepState.WAITING:
            return [_waits(step)]
        case StepState.CANCELLING:
            return [blocker(Block.RUN_CANCELLING, "the step is being stopped")]
        case _:
            return []


def _over(step: Step) -> list[Blocker]:
    if step.state == StepState.SUCCEEDED:
        return []
    text = f"the step is {step.state.name.lower()}"
    if step.failure is not None:
        text += f": {step.failure.message}"
    return [blocker(Block.STEP_OVER, text, state=step.state.name.lower(), attempts=step.attempts)]


def _needs(node: Node, steps: Mapping[str, Step]) -> list[Blocker]:
    missing = [need for need in node.needs if holds(need, steps) is None]
    words = [f"{need.step} ({steps[need.step].state.name.lower()}) {_WORDS[need.when]}" for need in missing]
    shown = ", ".join(words[:NAMED]) + (f" and {len(words) - NAMED} more" if len(words) > NAMED else "")
    text = f"it waits for {'one of: ' if node.join == Join.ANY and len(words) > 1 else ''}{shown}"
    names = ",".join(need.step for need in missing)
    return [blocker(Block.NEEDS, text, remedy=f"look why {missing[0].step} does not end", steps=names)] if missing else []


def _waits(step: Step) -> Blocker:
    if step.wait_reason == RETRY_BACKOFF:
        text = f"attempt {step.attempts} failed"
        if step.failure is not None:
            text += f" ({step.failure.message})"
        return blocker(
            Block.RETRY_BACKOFF, f"{text}; it is tried again later", until_ms=step.retry_at_ms, attempts=step.attempts
        )
    if step.wait_reason == RECONCILIATION:
        slots = sorted(step.pending)
        shown = ", ".join(slots[:NAMED])
        text = f"the outcome of {len(slots)} of its effects is unknown ({shown}), and it is not repeated blindly"
        return blocker(Block.RECONCILIATION, text, slots=",".join(slots))
    slots = sorted(step.pending)
    text = f"it waits for {step.wait_reason or 'something that is not named'}"
    if slots:
        text += f" ({', '.join(slots[:NAMED])}{f' and {len(slots) - NAMED} more' if len(slots) > NAMED else ''})"
    remedy = _BROUGHT.get(step.wait_reason, "")
    return blocker(
        Block.WAITS_FOR, text, remedy=remedy, until_ms=step.retry_at_ms, reason=step.wait_reason, slots=",".join(slots)
    )
