"""Authoritative for how the needs of a step join: from the states of its predecessors to a decision. Pure.

The decision is the same under any order of the facts behind it: what is decided early stays decided whatever comes later. So a
join that awaits the rest looks when all have ended; one that stops or leaves the rest looks at each end, but is skipped only
when no edge is left whose condition might yet turn out to be nonsense, and goes on before the rest has ended only where the
step has no expression of its own that would see less by that. Can go wrong: an edge whose condition gives nothing. It
does not hold, and where the join cannot do without it, the step fails and says so.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from libs.kernel.values import value
from services.readiness.domain.graph import Need, Node, OnFailure, Rest, When, base_of
from services.readiness.domain.state import TERMINAL, FailureFacts, Output, RunView, Step, StepState, Unusable


class Verdict(IntEnum):
    """What becomes of a step."""

    OPEN = 1
    GO = 2
    SKIP = 3
    FAIL = 4


@value(frozen=True, slots=True)
class Decision:
    """And why, where it does not go on."""

    verdict: Verdict
    failure: FailureFacts | None = None


OPEN = Decision(Verdict.OPEN)
GO = Decision(Verdict.GO)
NEEDS_NOT_MET = "NEEDS_NOT_MET"
CONDITION_FALSE = "CONDITION_FALSE"
CONDITION_ERROR = "CONDITION_ERROR"


def false(text: str) -> FailureFacts:
    """Why a step is skipped whose condition, or one of whose needs', is false."""
    return FailureFacts("policy", text, CONDITION_FALSE)


def broken(expression: str, error: Unusable) -> FailureFacts:
    """Why a step fails whose expression gives nothing: never silently false."""
    return FailureFacts("validation", f"{expression[:500]!r} gives nothing: {error}"[:2000], CONDITION_ERROR)


@dataclass(slots=True)
class _Tally:
    yes: int = 0
    no: int = 0
    open: int = 0
    unsealed: bool = False
    doubtful: bool = False
    """An edge with a condition is open."""
    failed: list[str] = field(default_factory=list)
    errors: list[FailureFacts] = field(default_factory=list)
    false: str = ""

    @property
    def total(self) -> int:
        return self.yes + self.no + self.open


def units(view: RunView, need: Need) -> list[Step] | None:
    """The steps that an edge is about: one, or the instances of one that is many; None while these are not made."""
    step = view.steps[need.step]
    if need.step not in view.graph.many:
        return [step]
    instances = view.instances(need.step)
    if instances or step.state == StepState.SUCCEEDED:
        return instances
    return [step] if step.state in TERMINAL else None


def matches(need: Need, step: Step) -> bool | None:
    """Whether a predecessor's end is what the edge wants; None while it has not ended. A skipped one satisfies only ALWAYS."""
    if step.state not in TERMINAL:
        return None
    if need.when == When.ALWAYS:
        return step.state != StepState.CANCELLED
    return step.state == (StepState.SUCCEEDED if need.when == When.SUCCESS else StepState.FAILED)


def output_of(view: RunView, key: str) -> Output | None:
    """What a step gave; None where it gave nothing."""
    step = view.steps[key]
    if key in view.graph.many:
        instances = view.instances(key)
        if instances or step.state == StepState.SUCCEEDED:
            return tuple(one.output if one.state == StepState.SUCCEEDED else b"" for one in instances)
        return None
    return step.output if step.state == StepState.SUCCEEDED else None


def outputs_for(view: RunView, node: Node) -> dict[str, Output]:
    """What a step is given of its predecessors."""
    given = {need.step: output_of(view, need.step) for need in node.needs}
    return {key: output for key, output in given.items() if output is not None}


def left_out(view: RunView, node: Node) -> list[Step]:
    """Predecessors that failed, of a step whose join goes on without them."""
    if node.policy is None or not node.policy.tolerates:
        return []
    before = [step for need in node.needs for step in units(view, need) or ()]
    return [step for step in before if step.state == StepState.FAILED]


def warns(view: RunView, step: Step) -> bool:
    """Whether a step that goes on now, or has gone on under its first ticket, leaves out what is to be told as a warning."""
    policy = view.node(step.key).policy
    if policy is None or not policy.warns or base_of(step.key) != step.key or step.ticket_sequence > 1:
        return False
    goes = step.state in (StepState.READY, StepState.WAITING, StepState.SUCCEEDED, StepState.FAILED)
    return goes and bool(left_out(view, view.node(step.key)))


def told(step: Step) -> dict[str, object]:
    """A predecessor, as the condition of its edge sees it."""
    failure = step.failure
    said = {"class": failure.failure_class, "message": failure.message, "type": failure.type} if failure else None
    return {"key": step.key, "state": step.state.name.lower(), "attempts": step.attempts, "failure": said}


def states(view: RunView, node: Node) -> dict[str, object]:
    """A step and its predecessors, as its own expressions see them."""
    needs: Mapping[str, object] = {need.step: view.steps[need.step].state.name.lower() for need in node.needs}
    return {"key": node.key, "needs": needs}


def missing(view: RunView, node: Node) -> Iterator[Need]:
    """Needs that are not decided."""
    for need in node.needs:
        found = units(view, need)
        if found is None or any(matches(need, step) is None for step in found):
            yield need


def _count(view: RunView, node: Node) -> _Tally:
    tally = _Tally()
    for need in node.needs:
        found = units(view, need)
        if found is None:
            tally.unsealed = True
            continue
        for step in found:
            _count_one(view, need, step, tally)
    return tally


def _count_one(view: RunView, need: Need, step: Step, tally: _Tally) -> None:
    held = matches(need, step)
    if held and need.condition and view.expressions is not None:
        outputs = {step.key: step.output} if step.state == StepState.SUCCEEDED else {}
        try:
            held = view.expressions.holds(need.condition, view.run_input, outputs, told(step))
            if not held:
                tally.false = tally.false or f"the condition on {need.step} is false: {need.condition}"
        except Unusable as error:
            held = False
            tally.errors.append(broken(need.condition, error))
    if held is None:
        tally.open += 1
        tally.doubtful = tally.doubtful or bool(need.condition)
    elif held:
        tally.yes += 1
    else:
        tally.no += 1
        if step.state == StepState.FAILED and need.when == When.SUCCESS:
            tally.failed.append(step.key)


def decide(view: RunView, node: Node) -> Decision:
    """What the ends of its predecessors so far say about a step that is pending."""
    policy = node.joins
    tally = _count(view, node)
    if policy.rest == Rest.AWAIT and (tally.open or tally.unsealed):
        return OPEN
    if policy.on_failure == OnFailure.FAIL and tally.failed:
        first = view.steps[tally.failed[0]]
        cause = f": {first.failure.message}" if first.failure else ""
        failure_class = first.failure.failure_class if first.failure else "attempt"
        return Decision(Verdict.FAIL, FailureFacts(failure_class, f"{first.key} failed{cause}"[:2000], "JOIN_FAILED"))
    if tally.unsealed:
        return OPEN
    ignores = policy.on_failure == OnFailure.IGNORE and not policy.need and not policy.majority
    wanted = policy.need or (tally.total // 2 + 1 if policy.majority else tally.total)
    if (tally.open == 0 and not tally.errors) if ignores else tally.yes >= wanted:
        # its own expressions see what its predecessors gave: who has ended by now must not decide what that is
        return OPEN if tally.open and policy.rest == Rest.LEAVE and (node.condition or node.for_each) else GO
    hopeless = tally.yes + tally.open < wanted
    if tally.open and (not hopeless or tally.doubtful or policy.on_failure == OnFailure.FAIL):
        return OPEN
    if tally.errors:
        return Decision(Verdict.FAIL, tally.errors[0])
    if tally.false:
        return Decision(Verdict.SKIP, false(tally.false))
    return Decision(Verdict.SKIP, FailureFacts("policy", "its needs cannot hold any more", NEEDS_NOT_MET))
