"""Authoritative for why a step has no ticket: which predecessors are missing, what it waits for, when it is tried again. Pure.

Can go wrong: calling a step blocked that moves. A step with a ticket has no blocker here: the scheduler says where it stands.
"""

from shlex import quote

from libs.kernel.blockers import Block, Blocker, blocker
from services.readiness.domain.graph import Node, When, base_of
from services.readiness.domain.joins import missing
from services.readiness.domain.steps import RECONCILIATION, RETRY_BACKOFF, TERMINAL, RunView, Step, StepState
from services.readiness.domain.waits import REASONS, Wait

NAMED = 5
"""Predecessors and slots named in one sentence."""
_BROUGHT = {
    "timer": "wait: it goes on by itself",
    "external_event": "tell of the event: `runway run signal NAME --run {run}`",
    "user_input": "answer it: `runway run answer {run} ANSWER --step {step}`, the answer as JSON; `runway run inputs {run}` "
    "shows the question",
    "approval": "decide it, or have somebody decide it who may: `runway approval list --run {run}`",
    "child_tasks": "look at the child runs: `runway run children {run} --step {step}`; it goes on when enough have ended",
    "budget": "raise it: `runway budget raise {run} MICROS`",
}
"""By what is waited for; `{run}` and `{step}` are named."""
BROUGHT_BY_PEOPLE = frozenset({"external_event", "user_input"})
"""Waits that end by a command which names them."""
_WORDS = {When.SUCCESS: "to succeed", When.FAILURE: "to fail", When.ALWAYS: "to end"}


def explain(view: RunView, key: str) -> list[Blocker]:
    """What keeps this step from having a ticket, in order."""
    step = view.steps[key]
    if step.state in TERMINAL:
        return _over(view, step)
    match step.state:
        case StepState.PENDING:
            return _needs(view, view.node(key))
        case StepState.WAITING if instances := view.instances(key):
            return [_many(view, instances)]
        case StepState.WAITING:
            return [_waits(view, step)]
        case StepState.CANCELLING:
            return [blocker(Block.RUN_CANCELLING, "the step is being stopped")]
        case _:
            return []


def child_asks(run_id: str, wait: Wait, prompt: str) -> Blocker:
    """A question of a run below, for the root that its tree asks through."""
    text = f"child {run_id}, step {wait.step_key}: it waits for an answer ({wait.slot})"
    if prompt:
        text += f": {prompt}"
    remedy = _answered(run_id, wait)
    named = {"reason": "user_input", "child_run_id": run_id, "child_step": wait.step_key, "slots": wait.slot}
    return blocker(Block.WAITS_FOR, text, remedy=remedy, since_ms=wait.asked_ms, until_ms=wait.due_ms, **named)


def shown_slots(step: Step) -> list[str]:
    """Slots of what a step waits for that are named to people."""
    return sorted(step.pending)[:NAMED]


def _answered(run_id: object, wait: Wait) -> str:
    named = f"--step {quote(wait.step_key)} --slot {quote(wait.slot)}"
    command = f"`runway run answer {run_id} ANSWER {named}`"
    return f"answer it: {command}, the answer as JSON; `runway run inputs {run_id}` shows the question"


def _told(run_id: object, wait: Wait) -> str:
    """How somebody tells of what this wait is for: with the run named, the correlation has to be the one it waits with."""
    correlation = f" --correlation {quote(wait.correlation)}" if wait.correlation else ""
    return f"tell of the event: `runway run signal {quote(wait.name)} --run {run_id}{correlation} --payload JSON`"


def _brought(view: RunView, step: Step) -> str:
    """What ends the wait, with its ids: of the wait itself where it was read."""
    waits = [view.waits[step.key, slot] for slot in shown_slots(step) if (step.key, slot) in view.waits]
    match step.wait_reason, [wait for wait in waits if REASONS.get(wait.kind) == step.wait_reason]:
        case "external_event", [wait, *_]:
            return _told(view.run_id, wait)
        case "user_input", [wait, *_]:
            return _answered(view.run_id, wait)
    return _BROUGHT.get(step.wait_reason, "").format(run=view.run_id, step=quote(step.key))


def _why(view: RunView, key: str) -> str:
    return f"look why {key} does not end: `runway explain {view.run_id} {quote(key)}`"


def _over(view: RunView, step: Step) -> list[Blocker]:
    if step.state == StepState.SUCCEEDED:
        return []
    text = f"the step is {step.state.name.lower()}"
    if step.failure is not None:
        text += f": {step.failure.message}"
    again = f"`runway run fork {view.run_id} --from {quote(base_of(step.key))}`"
    remedy = f"none: the step is over; once its run has ended, {again} runs it again in a new run"
    return [blocker(Block.STEP_OVER, text, remedy=remedy, state=step.state.name.lower(), attempts=step.attempts)]


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
    return [blocker(Block.NEEDS, text, remedy=_why(view, waited[0].step), steps=names)]


def _stopped(view: RunView, node: Node) -> list[Blocker]:
    """Its join is decided, and what it decided against is not over yet."""
    names = ",".join(sorted(key for key, step in view.steps.items() if step.stopping))
    text = f"its join is decided; it waits until what is stopped is known to be over ({names})"
    return [blocker(Block.NEEDS, text, remedy="wait a moment", steps=names)] if names else []


def _many(view: RunView, instances: list[Step]) -> Blocker:
    left = [step for step in instances if not step.over]
    shown = ", ".join(step.key for step in left[:NAMED]) + (f" and {len(left) - NAMED} more" if len(left) > NAMED else "")
    text = f"{len(instances) - len(left)} of its {len(instances)} instances are over; it waits for {shown}"
    names = ",".join(step.key for step in left[:NAMED])
    return blocker(Block.NEEDS, text, remedy=_why(view, left[0].key) if left else "wait a moment", steps=names)


def _waits(view: RunView, step: Step) -> Blocker:
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
        remedy = f"look at `runway case list --run {view.run_id}`, and decide the case where no look-up does"
        return blocker(Block.RECONCILIATION, text, remedy=remedy, slots=",".join(slots))
    slots = sorted(step.pending)
    text = f"it waits for {step.wait_reason or 'something that is not named'}"
    if slots:
        text += f" ({', '.join(slots[:NAMED])}{f' and {len(slots) - NAMED} more' if len(slots) > NAMED else ''})"
    return blocker(
        Block.WAITS_FOR,
        text,
        remedy=_brought(view, step),
        until_ms=step.retry_at_ms,
        reason=step.wait_reason,
        slots=",".join(slots),
    )
