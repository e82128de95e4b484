"""Authoritative for what follows from the ends of steps: who goes on, who is skipped, who becomes many, who is stopped because
a join was decided without it. Pure.

A step that is stopped may have touched something outside: the step that its join decided waits until it is known to be over.
Can go wrong: a step that two joins need. It is stopped only when both are decided.
"""

from collections import deque
from collections.abc import Iterable, Mapping

from services.readiness.domain.graph import Node, Rest, base_of
from services.readiness.domain.joins import Verdict, broken, decide, false, outputs_for, states, units
from services.readiness.domain.state import (
    JOIN_DECIDED,
    RECONCILIATION,
    TERMINAL,
    TICKETED,
    FailureFacts,
    RunView,
    Step,
    StepState,
    Unusable,
)

DEFAULT_MAX_INSTANCES = 1_000
TOO_MANY = "EXPANSION_TOO_LARGE"
_STOPPED = FailureFacts("policy", "a join was decided without it", JOIN_DECIDED)


def spread(view: RunView, ended: Iterable[str]) -> None:
    """Readies, skips, multiplies and stops what the ends of these steps decide, and what those decide in turn."""
    queue = deque(ended)
    while queue:
        key = queue.popleft()
        base = base_of(key)
        if base != key and _end_many(view, base):
            queue.append(base)
        for successor in (*view.graph.successors[base], *view.graph.stoppers):  # a join far behind may wait for a loser
            queue.extend(_settle(view, successor))


def begin_roots(view: RunView) -> None:
    """Steps without needs that are not simply ready: those with a condition, and those that are many."""
    for key in view.graph.order:
        if not view.graph.nodes[key].needs:
            spread(view, _settle(view, key))


def _settle(view: RunView, key: str) -> list[str]:
    """Decides about a step that is pending; the steps that ended by that."""
    step, node = view.steps[key], view.graph.nodes[key]
    if step.state != StepState.PENDING:
        return []
    decision = decide(view, node)
    if decision.verdict is Verdict.OPEN:
        return []
    ended = _stop_useless(view, node)
    if node.joins.rest == Rest.CANCEL and _at_work(view, node):
        return ended
    if decision.verdict is Verdict.GO:
        _begin(view, node)
    elif decision.verdict is Verdict.SKIP:
        view.put(step, state=StepState.SKIPPED, failure=decision.failure)
    else:
        view.put(step, state=StepState.FAILED, failure=decision.failure)
    after = view.steps[key]
    told = after.over or (key in view.graph.many and after.state == StepState.WAITING)  # how many it is, somebody may wait for
    return [*ended, key] if told else ended


def _begin(view: RunView, node: Node) -> None:
    """Its needs have joined: it runs, unless its condition is false."""
    step = view.steps[node.key]
    expression = node.condition
    try:
        if node.condition and view.expressions is not None:
            outputs, seen = outputs_for(view, node), states(view, node)
            if not view.expressions.holds(node.condition, view.run_input, outputs, seen):
                view.put(step, state=StepState.SKIPPED, failure=false(f"its condition is false: {node.condition}"))
                return
        if node.key not in view.graph.many:
            view.ready(step)
            return
        expression = node.for_each
        asker = view.graph.many[node.key]
        items: Iterable[bytes] = view.asked_items.get(asker, ())
        if node.for_each and view.expressions is not None:
            items = view.expressions.items(node.for_each, view.run_input, outputs_for(view, node), states(view, node))
        _multiply(view, node, list(items))
    except Unusable as error:
        view.put(step, state=StepState.FAILED, failure=broken(expression, error))


def too_many(view: RunView, count: int, most: int) -> FailureFacts | None:
    """Why so many instances cannot be made: none is, then."""
    most = most or DEFAULT_MAX_INSTANCES
    text = ""
    if count > most:
        text = f"it would have {count} instances, and {most} are the most"
    elif view.max_steps and len(view.steps) + count > view.max_steps:
        text = f"the run would have {len(view.steps) + count} steps, and {view.max_steps} are the most"
    return FailureFacts("policy", text, TOO_MANY) if text else None


def _multiply(view: RunView, node: Node, items: list[bytes]) -> None:
    step = view.steps[node.key]
    no = too_many(view, len(items), node.max_instances) if node.for_each else None
    if no is not None:
        view.put(step, state=StepState.FAILED, failure=no)
    elif items:
        view.multiply(node.key, items)
        view.put(step, state=StepState.WAITING)
    else:
        view.put(step, state=StepState.SUCCEEDED)


def _end_many(view: RunView, key: str) -> bool:
    """A step that is many is over when its instances are; it shows the worst of their ends."""
    step, instances = view.steps[key], view.instances(key)
    if step.state in TERMINAL or any(not one.over for one in instances):
        return False
    state, failure = StepState.SUCCEEDED, None
    for worst in (StepState.CANCELLED, StepState.FAILED):
        if found := [one for one in instances if one.state == worst]:
            state, failure = worst, found[0].failure
    view.put(step, state=state, failure=failure)
    return True


# ------------------------------------------------------------------------------------------------ the rest of a join


def _stop_useless(view: RunView, node: Node) -> list[str]:
    """Stops predecessors of a step that is decided, where nobody needs them any more; those that ended by that."""
    ended: list[str] = []
    for need in node.needs:
        if need.step == view.graph.output_step:
            continue
        successors = [view.graph.nodes[key] for key in view.graph.successors[need.step]]
        cancels = any(after.joins.rest == Rest.CANCEL or view.steps[after.key].stopped for after in successors)
        if cancels and all(_decided(view, after) for after in successors):
            for step in units(view, need) or [view.steps[need.step]]:
                ended += _stop(view, step)
    return ended


def _decided(view: RunView, node: Node) -> bool:
    return view.steps[node.key].state != StepState.PENDING or decide(view, node).verdict is not Verdict.OPEN


def _stop(view: RunView, step: Step) -> list[str]:
    if step.over or step.stopping:
        return []
    if step.state in TICKETED:
        view.put(step, state=StepState.CANCELLING, failure=_STOPPED, wait_reason="", pending={})
        view.revoked[step.key] = step.ticket_sequence
        return []
    if step.state == StepState.WAITING and step.wait_reason == RECONCILIATION:
        view.put(step, failure=_STOPPED)  # it is over once the outcome of each of its effects is known
        return []
    node = view.node(step.key)
    ended: list[str] = []
    if step.state == StepState.PENDING and _may_be_ticketed(view, node):
        view.put(step, state=StepState.CANCELLING, ticket_sequence=1, failure=_STOPPED)
        view.revoked[step.key] = 1
    else:
        view.put(step, state=StepState.CANCELLED, failure=_STOPPED, wait_reason="", retry_at_ms=0, pending={})
        ended.append(step.key)
    return ended + _stop_useless(view, node)


def _may_be_ticketed(view: RunView, node: Node) -> bool:
    """Whether the scheduler may have ticketed it by itself, with a success that was not told here yet."""
    return any(node in view.graph.followers(need.step) for need in node.needs)


def _at_work(view: RunView, node: Node) -> bool:
    """Whether something before this step is being stopped that may touch something outside."""
    seen: set[str] = set()
    left = [need.step for need in node.needs]
    while left:
        key = left.pop()
        if key in seen:
            continue
        seen.add(key)
        before = view.graph.nodes[key]
        if before.contract.points and any(step.stopping for step in (view.steps[key], *view.instances(key))):
            return True
        left += [need.step for need in before.needs]
    return False


def mended(view_steps: Mapping[str, Step], successors: Iterable[Node], key: str) -> bool:
    """Whether a failed step's failure was taken up by a successor that succeeded."""
    for node in successors:
        when = next(need.when for need in node.needs if need.step == base_of(key))
        taken = when != 1 or (node.policy is not None and node.policy.tolerates)
        if taken and view_steps[node.key].state == StepState.SUCCEEDED:
            return True
    return False
