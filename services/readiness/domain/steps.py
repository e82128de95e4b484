"""Authoritative for step states and what moves them. Pure: a run's view and a fact go in, changes come out.

The result is the same under any order and repetition of facts: a fact names the ticket it is about, and one about another
ticket, or about a step that is terminal, changes nothing. Can go wrong: two predecessors that finish at once. The run is
locked while this decides, so the second sees what the first did.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from libs.kernel.values import value
from services.readiness.domain.graph import Graph, Node, base_of
from services.readiness.domain.joins import outputs_for
from services.readiness.domain.spread import begin_roots as begin_roots
from services.readiness.domain.spread import mended, spread, too_many
from services.readiness.domain.state import RECONCILIATION as RECONCILIATION
from services.readiness.domain.state import RESOLVED as RESOLVED
from services.readiness.domain.state import RETRY_BACKOFF as RETRY_BACKOFF
from services.readiness.domain.state import TERMINAL as TERMINAL
from services.readiness.domain.state import TICKETED as TICKETED
from services.readiness.domain.state import AttemptFact as AttemptFact
from services.readiness.domain.state import EffectFact as EffectFact
from services.readiness.domain.state import End as End
from services.readiness.domain.state import FailureFacts as FailureFacts
from services.readiness.domain.state import RunView as RunView
from services.readiness.domain.state import Step as Step
from services.readiness.domain.state import StepState as StepState
from services.readiness.domain.waits import PROVIDER_CAPACITY, WAIT_REASONS, Kind, Wait, WaitState, reason_of, run_out


def begin(graph: Graph) -> dict[str, Step]:
    """The steps of a new run: those without needs are ready, unless something else decides about them (`begin_roots`)."""
    steps = {}
    for key in graph.order:
        node = graph.nodes[key]
        if node.needs or not node.plain or key in graph.many:
            steps[key] = Step(key, StepState.PENDING)
        else:
            steps[key] = Step(key, StepState.READY, ticket_sequence=1)
    return steps


def too_early(view: RunView, fact: AttemptFact) -> bool:
    """Whether the fact is about a ticket that this step has not got to, or about waits that are not known: what explains it
    (the end of its predecessor, or of its own earlier attempt, or what it asked for) did not come yet, or has to come again."""
    step = view.steps.get(fact.step_key)
    if step is None:
        return unmade(view, fact.step_key)
    if step.state in TERMINAL:
        return False
    if fact.ticket_sequence == step.ticket_sequence and step.state in TICKETED:
        return any((step.key, slot) not in view.waits for slot in fact.awaits)
    return fact.ticket_sequence > step.ticket_sequence


def unmade(view: RunView, key: str) -> bool:
    """Whether this is an instance of a step that is not many yet: a promotion has lost what made it, which comes again."""
    base = view.steps.get(base_of(key))
    return key not in view.steps and base is not None and base.state == StepState.PENDING


def needs_ticket(view: RunView, step: Step) -> bool:
    """Whether a step that became ready has to be ticketed here."""
    if step.key in view.noted:
        return False
    return step.state == StepState.READY and not (step.key in view.ticketed and step.ticket_sequence == 1)


def finish_attempt(view: RunView, fact: AttemptFact, resolved: Mapping[str, int], now_ms: int) -> None:
    """Applies an attempt's end. `resolved`: newest version at which each slot of the step is known to be resolved."""
    step = view.steps.get(fact.step_key)
    if step is None or step.state not in TICKETED or step.ticket_sequence != fact.ticket_sequence:
        return
    if step.wait_reason == PROVIDER_CAPACITY:  # its ticket was leased, so that wait is over, whether or not it was told yet
        step = replace(step, wait_reason="", pending={})
    node = view.node(step.key)
    fact = _with_instances(view, node, fact)
    match fact.end:
        case End.SUCCEEDED:
            view.ticketed |= fact.continued
            counted = step.attempts + 1
            view.put(step, state=StepState.SUCCEEDED, attempts=counted, output=fact.output, failure=None)
        case _ if step.stopping:
            waiting = _in_doubt(fact, resolved)
            counted = step.attempts + (fact.end != End.CANCELLED)
            if waiting:
                view.put(step, state=StepState.WAITING, wait_reason=RECONCILIATION, pending=waiting, attempts=counted)
            else:
                view.put(step, state=StepState.CANCELLED, attempts=counted)
        case End.YIELDED:
            _await(view, step, fact.awaits, now_ms)
        case End.CANCELLED:
            view.put(step, state=StepState.CANCELLED, attempts=step.attempts + 1, failure=fact.failure)
        case End.UNCERTAIN:
            waiting = _in_doubt(fact, resolved)
            counts: dict[str, Any] = {"attempts": step.attempts + 1, "failure": fact.failure}
            if waiting:
                view.put(step, state=StepState.WAITING, wait_reason=RECONCILIATION, pending=waiting, **counts)
            else:
                view.ready(step, **counts)
        case End.FAILED | End.TIMED_OUT | End.LOST:
            view.put(_after_failure(view.run_id, node, step, fact, now_ms))
    if view.steps[step.key].state in TERMINAL:
        spread(view, [step.key])


def _in_doubt(fact: AttemptFact, resolved: Mapping[str, int]) -> dict[str, int]:
    """Slots whose outcome nobody knows yet, with the version at which they were seen so."""
    return {slot: seen for slot, seen in fact.unresolved.items() if resolved.get(slot, 0) <= seen}


def _with_instances(view: RunView, node: Node, fact: AttemptFact) -> AttemptFact:
    """Notes what a step that succeeded has asked to be made many; a failure instead where that cannot be done as a whole."""
    asked = [view.waits[fact.step_key, slot] for slot in fact.awaits if fact.end == End.SUCCEEDED]
    asked = sorted((wait for wait in asked if wait.kind == Kind.EXPAND), key=lambda wait: (len(wait.slot), wait.slot))
    refused = next((wait.ended_by for wait in asked if wait.state == WaitState.REFUSED), "")
    if asked and not node.template:
        refused = refused or "the workflow declares no step that this one makes many"
    failure = FailureFacts("validation", f"instances were asked for, but {refused}", "EXPANSION_REFUSED") if refused else None
    items: tuple[bytes, ...] = ()
    if asked and failure is None and view.expressions is not None:
        items = tuple(item for wait in asked for item in view.expressions.asked(wait.payload))
    if failure is None and asked:
        failure = too_many(view, len(items), node.max_instances)
    if failure is not None:
        return replace(fact, end=End.FAILED, output=b"", failure=failure)
    if asked:
        view.asked_items[fact.step_key] = items
    return fact


def _after_failure(run_id: UUID, node: Node, step: Step, fact: AttemptFact, now_ms: int) -> Step:
    failure = fact.failure or FailureFacts("infrastructure", "the worker stopped reporting", "LEASE_LOST")
    attempts = step.attempts + 1
    failed = replace(step, attempts=attempts, failure=failure)
    lost = fact.end == End.LOST
    retried = lost or (failure.failure_class in node.retry.classes and failure.failure_class != "policy")
    if not retried or attempts >= node.retry.max_attempts:
        return replace(failed, state=StepState.FAILED)
    wait_ms = backoff_ms(run_id, node, attempts)
    return replace(failed, state=StepState.WAITING, wait_reason=RETRY_BACKOFF, retry_at_ms=now_ms + wait_ms)


def backoff_ms(run_id: UUID, node: Node, attempts: int) -> int:
    """Wait before the next attempt: exponential, capped, spread by up to a quarter so that failures do not return at once."""
    retry = node.retry
    grown = retry.initial_ms * retry.multiplier ** min(attempts - 1, 64)
    base = min(grown, float(retry.max_ms))
    spread_share = (run_id.int >> 7 ^ attempts * 2654435761) % 1000 / 4000
    return int(base * (1 - spread_share))


def _await(view: RunView, step: Step, slots: Iterable[str], now_ms: int) -> None:
    """An attempt yielded: its step is ready at once where one of its slots has an answer, else it waits for all of them. Where
    one is for capacity the step is ready too, and its ticket waits: that slot comes before others, whatever they are for."""
    _run_out(view, step.key, slots, now_ms)
    waits = [view.waits[step.key, slot] for slot in slots]
    if not waits or any(wait.state != WaitState.OPEN for wait in waits):
        view.ready(step)
        return
    wanted = min((wait.slot for wait in waits if wait.kind == Kind.CAPACITY), default="")
    if wanted:
        view.ready(step, wait_reason=PROVIDER_CAPACITY, pending={wanted: 0})
        return
    due_ms = min((wait.due_ms for wait in waits if wait.due_ms), default=0)
    pending = {wait.slot: 0 for wait in waits}
    view.put(step, state=StepState.WAITING, wait_reason=reason_of(waits), retry_at_ms=due_ms, pending=pending)


def _run_out(view: RunView, key: str, slots: Iterable[str], now_ms: int) -> None:
    for slot in slots:
        wait = view.waits.get((key, slot))
        if wait is not None and wait.overdue(now_ms):
            view.end_wait(run_out(wait, now_ms))


def answered(view: RunView, wait: Wait) -> None:
    """A wait has its answer: the step goes on if it waits for that."""
    view.end_wait(wait)
    step = view.steps[wait.step_key]
    if step.wait_reason == PROVIDER_CAPACITY and wait.slot in step.pending:  # leased: it goes on under the ticket that it has
        view.noted.add(step.key)
        view.put(step, wait_reason="", pending={})
    elif step.state == StepState.WAITING and step.wait_reason in WAIT_REASONS and wait.slot in step.pending:
        view.ready(step)


def retry_due(view: RunView, key: str, now_ms: int) -> None:
    """A step whose backoff has passed, or one of whose waits has run out, is ready again."""
    step = view.steps.get(key)
    if step is None or step.state != StepState.WAITING or step.retry_at_ms > now_ms:
        return
    if step.wait_reason in WAIT_REASONS and step.retry_at_ms:
        _run_out(view, key, step.pending, now_ms)
        view.ready(step)
    elif step.wait_reason == RETRY_BACKOFF:
        view.ready(step)


def resolve_effect(view: RunView, fact: EffectFact) -> None:
    """A slot's outcome became known: a step that waits for no other slot is ready again."""
    step = view.steps.get(fact.step_key)
    if step is None or step.state != StepState.WAITING or step.wait_reason != RECONCILIATION:
        return
    if fact.state not in RESOLVED or fact.version <= step.pending.get(fact.slot, fact.version):
        return
    left = {slot: seen for slot, seen in step.pending.items() if slot != fact.slot}
    if left:
        view.put(step, pending=left)
    elif step.stopping:
        view.put(step, state=StepState.CANCELLED, wait_reason="", pending={})
        spread(view, [step.key])
    else:
        view.ready(step)


def close(view: RunView) -> None:
    """The run's outcome is decided elsewhere: nothing of it may start, and what is not terminal is cancelled."""
    for step in list(view.steps.values()):
        if step.state not in TERMINAL:
            view.put(step, state=StepState.CANCELLED, wait_reason="", retry_at_ms=0, pending={})


def refuse_oversized(view: RunView, run_input_bytes: int, limit: int, waited_bytes: Mapping[str, int] | None = None) -> None:
    """Fails steps that became ready with an input that no ticket could carry, and what depends on that. `waited_bytes`: what a
    step has waited for, which its next attempt is given too."""
    while True:
        for step in view.touched.values():
            if step.state != StepState.READY:
                continue
            outputs = outputs_for(view, view.node(step.key)).values()
            size = run_input_bytes + len(step.item) + (waited_bytes or {}).get(step.key, 0)
            size += sum(len(given) if isinstance(given, bytes) else sum(map(len, given)) for given in outputs)
            if size > limit:
                break
        else:
            return
        text = f"its input would be {size} bytes, and {limit} are the most: hand on artifacts instead"
        view.put(step, state=StepState.FAILED, failure=FailureFacts("validation", text, "TOO_LARGE"))
        spread(view, [step.key])


@value(frozen=True, slots=True)
class GraphEnd:
    """What a finished graph gives its run."""

    outcome: str
    failed_step: str
    failure: FailureFacts | None


def end_of(graph: Graph, steps: Mapping[str, Step]) -> GraphEnd:
    """succeeded; cancelled where a step was; failed by the first step whose failure no successor took up and mended."""
    multiplied = {base_of(key) for key in steps if base_of(key) != key}
    places = {key: place for place, key in enumerate(graph.order)}
    for key in sorted(steps, key=lambda key: (places[base_of(key)], len(key), key)):
        step = steps[key]
        if step.state != StepState.FAILED or key in multiplied:
            continue
        if not mended(steps, (graph.nodes[name] for name in graph.successors[base_of(key)]), key):
            return GraphEnd("failed", key, step.failure)
    stopped = [step for step in steps.values() if step.state == StepState.CANCELLED]
    if not all(step.stopped for step in stopped):
        return GraphEnd("cancelled", "", None)
    return GraphEnd("succeeded", "", None)
