"""Authoritative for why a step has no ticket: which predecessors are missing, what it waits for, when it is tried again. Pure.

Can go wrong: calling a step blocked that moves. A step with a ticket has no blocker here: the scheduler says where it stands.
"""

from libs.kernel.blockers import Block, Blocker, blocker
from services.readiness.domain.graph import Node, When
from services.readiness.domain.joins import missing
from services.readiness.domain.steps import RECONCILIATION, RETRY_BACKOFF, TERMINAL, RunView, Step, StepState
from services.readiness.domain.waits import Wait

NAMED = 5
"""Predecessors and slots named in one sentence."""
_BROUGHT = {
    "timer": "wait: it goes on by itself",
    "external_event": "tell of the event: `runway run signal`",
    "user_input": "answer it: `runway run inputs`, `runway run answer`",
    "approval": "decide it, or have somebody decide it who may",
    "child_tasks": "look at the child runs (`runway run children`): it goes on when enough of them have ended",
    "budget": "raise it: `runway budget raise`",
}
_WORDS = {When.SUCCESS: "to succeed", When.FAILURE: "to fail", When.ALWAYS: "to end"}


def explain(view: RunView, key: str) -> list[Blocker]:
    """What keeps this step from having a ticket, in order."""
    step, node = view.steps[key], view.node(key)
    if step.state in TERMINAL:
        return _over(step)
    match step.state:
        case StepState.PENDING:
            return _needs(view, node)
        case StepState.WAITING if instances := view.instances(key):
            return [_many(instances)]
        case StepState.WAITING:
            return [_waits(step)]
        case StepState.CANCELLING:
            return [blocker(Block.RUN_CANCELLING, "the step is being stopped")]
        case _:
            return []


def child_asks(run_id: str, wait: Wait, prompt: str) -> Blocker:
    """A question of a run below, for the root that its tree asks through."""
    text = f"child {run_id}, step {wait.step_key}: it waits for an answer ({wait.slot})"
    if prompt:
        text += f": {prompt}"
    remedy = f"answer it: `runway run answer {run_id} ANSWER --step {wait.step_key} --slot {wait.slot}`"
    named = {"reason": "user_input", "child_run_id": run_id, "child_step": wait.step_key, "slots": wait.slot}
    return blocker(Block.WAITS_FOR, text, remedy=remedy, since_ms=wait.asked_ms, until_ms=wait.due_ms, **named)


def _over(step: Step) -> list[Blocker]:
    if step.state == StepState.SUCCEEDED:
        return []
    text = f"the step is {step.state.name.lower()}"
    if step.failure is not None:
        text += f": {step.failure.message}"
    return [blocker(Block.STEP_OVER, text, state=step.state.name.lower(), attempts=step.attempts)]


def _needs(view: RunView, node: Node) -> list[Blocker]:
    waited = list(missing(view, node))
    words = [f"{need.step} ({view.steps[need.step].state.name.lower()}) {_WORDS[need.when]}" for need in waited]
    if not words:
        return _stopped(view, node)
    shown = ", ".join(words[:NAMED]) + (f" and {len(words) - NAMED} more" if len(words) > NAMED else "")
    enough = node.joins.need
    some = f"{'one' if enough == 1 else enough} of: " if enough and len(words) > 1 else ""
    names = ",".join(need.step for need in waited)
    text = f"it waits for {some}{shown}"
    return [blocker(Block.NEEDS, text, remedy=f"look why {waited[0].step} does not end", steps=names)]


def _stopped(view: RunView, node: Node) -> list[Blocker]:
    """Its join is decided, and what it decided against is not over yet."""
    names = ",".join(sorted(key for key, step in view.steps.items() if step.stopping))
    text = f"its join is decided; it waits until what is stopped is known to be over ({names})"
    return [blocker(Block.NEEDS, text, remedy="wait a moment", steps=names)] if names else []


def _many(instances: list[Step]) -> Blocker:
    left = [step for step in instances if not step.over]
    shown = ", ".join(step.key for step in left[:NAMED]) + (f" and {len(left) - NAMED} more" if len(left) > NAMED else "")
    text = f"{len(instances) - len(left)} of its {len(instances)} instances are over; it waits for {shown}"
    names = ",".join(step.key for step in left[:NAMED])
    return blocker(Block.NEEDS, text, remedy=f"look why {left[0].key if left else 'none'} does not end", steps=names)


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
