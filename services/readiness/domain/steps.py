"""Authoritative for step states and what moves them. Pure: a run's view and a fact go in, changes come out.

The result is the same under any order and repetition of facts: a fact names the ticket it is about, and one about another
ticket, or about a step that is terminal, changes nothing. Can go wrong: two predecessors that finish at once. The run is
locked while this decides, so the second sees what the first did.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any
from uuid import UUID

from libs.kernel.values import value
from services.readiness.domain.graph import Graph, Join, Need, Node, When
from services.readiness.domain.waits import WAIT_REASONS, Wait, WaitState, reason_of, run_out


class StepState(IntEnum):
    """Where a step stands; the numbers are those of the contract and of the rows."""

    PENDING = 1
    READY = 2
    RUNNING = 3
    WAITING = 4
    CANCELLING = 5
    SUCCEEDED = 6
    FAILED = 7
    SKIPPED = 8
    CANCELLED = 9


TERMINAL = frozenset({StepState.SUCCEEDED, StepState.FAILED, StepState.SKIPPED, StepState.CANCELLED})
TICKETED = frozenset({StepState.READY, StepState.RUNNING, StepState.CANCELLING})
"""States in which the scheduler holds a ticket of the step."""

RETRY_BACKOFF = "retry_backoff"
RECONCILIATION = "reconciliation"


class End(IntEnum):
    """How an attempt ended; the numbers are those of the event."""

    SUCCEEDED = 1
    FAILED = 2
    YIELDED = 3
    TIMED_OUT = 4
    CANCELLED = 5
    LOST = 6
    UNCERTAIN = 7


@value(frozen=True, slots=True)
class FailureFacts:
    """Why something did not succeed."""

    failure_class: str
    message: str
    type: str


@value(frozen=True, slots=True)
class Step:
    """A step as its row has it; times in milliseconds since the Unix epoch."""

    key: str
    state: StepState
    ticket_sequence: int = 0
    attempts: int = 0
    version: int = 1
    retry_at_ms: int = 0
    wait_reason: str = ""
    output: bytes = b""
    failure: FailureFacts | None = None
    pending: Mapping[str, int] = field(default_factory=dict)
    """Slots whose outcome is unknown, with the version at which they were seen so; or slots that are waited for, with 0."""


@value(frozen=True, slots=True)
class AttemptFact:
    """The end of an attempt, from the scheduler."""

    step_key: str
    ticket_sequence: int
    end: End
    output: bytes
    failure: FailureFacts | None
    unresolved: Mapping[str, int]
    continued: frozenset[str] = frozenset()
    """Successors that have their first ticket already."""
    awaits: tuple[str, ...] = ()
    """Of a yield: slots that the step waits for."""
    read: Callable[[], object] | None = None
    """Gives the output as plain data, where somebody must look into it."""


@value(frozen=True, slots=True)
class EffectFact:
    """A slot's outcome, from the gateway."""

    step_key: str
    slot: str
    state: str
    version: int


RESOLVED = frozenset({"succeeded", "failed", "not_sent", "observed", "absent"})
"""States of an effect after which an attempt may go on."""


@dataclass(slots=True)
class RunView:
    """A run's steps while facts are applied to them; `touched` collects what changed."""

    run_id: UUID
    graph: Graph
    steps: dict[str, Step]
    touched: dict[str, Step] = field(default_factory=dict)
    ticketed: set[str] = field(default_factory=set)
    """Steps whose first ticket the scheduler has made by itself."""
    waits: dict[tuple[str, str], Wait] = field(default_factory=dict)
    """Waits that this delivery is about, by step and slot."""
    ended: dict[tuple[str, str], Wait] = field(default_factory=dict)
    """Those that ended in it."""

    def end_wait(self, wait: Wait) -> None:
        """Stores a wait that has ended now."""
        self.waits[wait.key] = self.ended[wait.key] = wait

    def put(self, step: Step, **changes: Any) -> None:
        """Stores a step with changes under its next version."""
        version = self.steps[step.key].version + (step.key not in self.touched)
        changed = replace(step, version=version, **changes)
        self.steps[step.key] = changed
        self.touched[step.key] = changed

    def ready(self, step: Step, **changes: Any) -> None:
        """The step under its next ticket."""
        clean: dict[str, Any] = {"retry_at_ms": 0, "wait_reason": "", "pending": {}}
        self.put(step, state=StepState.READY, ticket_sequence=step.ticket_sequence + 1, **clean, **changes)

    @property
    def finished(self) -> bool:
        """Whether every step is terminal."""
        return all(step.state in TERMINAL for step in self.steps.values())


def begin(graph: Graph) -> dict[str, Step]:
    """The steps of a new run: those without needs are ready."""
    steps = {}
    for key in graph.order:
        if graph.nodes[key].needs:
            steps[key] = Step(key, StepState.PENDING)
        else:
            steps[key] = Step(key, StepState.READY, ticket_sequence=1)
    return steps


def too_early(view: RunView, fact: AttemptFact) -> bool:
    """Whether the fact is about a ticket that this step has not got to, or about waits that are not known: what explains it
    (the end of its predecessor, or of its own earlier attempt, or what it asked for) did not come yet, or has to come again."""
    step = view.steps.get(fact.step_key)
    if step is None or step.state in TERMINAL:
        return False
    if fact.ticket_sequence == step.ticket_sequence and step.state in TICKETED:
        return any((step.key, slot) not in view.waits for slot in fact.awaits)
    return fact.ticket_sequence > step.ticket_sequence


def needs_ticket(view: RunView, step: Step) -> bool:
    """Whether a step that became ready has to be ticketed here."""
    return step.state == StepState.READY and not (step.key in view.ticketed and step.ticket_sequence == 1)


def finish_attempt(view: RunView, fact: AttemptFact, resolved: Mapping[str, int], now_ms: int) -> None:
    """Applies an attempt's end. `resolved`: newest version at which each slot of the step is known to be resolved."""
    step = view.steps.get(fact.step_key)
    if step is None or step.state not in TICKETED or step.ticket_sequence != fact.ticket_sequence:
        return
    node = view.graph.nodes[step.key]
    match fact.end:
        case End.SUCCEEDED:
            view.ticketed |= fact.continued
            counted = step.attempts + 1
            view.put(step, state=StepState.SUCCEEDED, attempts=counted, output=fact.output, failure=None)
        case End.YIELDED:
            _await(view, step, fact.awaits, now_ms)
        case End.CANCELLED:
            view.put(step, state=StepState.CANCELLED, attempts=step.attempts + 1, failure=fact.failure)
        case End.UNCERTAIN:
            waiting = {slot: seen for slot, seen in fact.unresolved.items() if resolved.get(slot, 0) <= seen}
            counts: dict[str, Any] = {"attempts": step.attempts + 1, "failure": fact.failure}
            if waiting:
                view.put(step, state=StepState.WAITING, wait_reason=RECONCILIATION, pending=waiting, **counts)
            else:
                view.ready(step, **counts)
        case End.FAILED | End.TIMED_OUT | End.LOST:
            view.put(_after_failure(view.run_id, node, step, fact, now_ms))
    if view.steps[step.key].state in TERMINAL:
        spread(view, [step.key])


def _after_failure(run_id: UUID, node: Node, step: Step, fact: AttemptFact, now_ms: int) -> Step:
    failure = fact.failure or FailureFacts("infrastructure", "the worker stopped reporting", fact.end.name)
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
    """An attempt yielded: its step is ready at once where one of its slots has an answer, else it waits for all of them."""
    _run_out(view, step.key, slots, now_ms)
    waits = [view.waits[step.key, slot] for slot in slots]
    if not waits or any(wait.state != WaitState.OPEN for wait in waits):
        view.ready(step)
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
    if step.state == StepState.WAITING and step.wait_reason in WAIT_REASONS and wait.slot in step.pending:
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
    else:
        view.ready(step)


def close(view: RunView) -> None:
    """The run's outcome is decided elsewhere: nothing of it may start, and what is not terminal is cancelled."""
    for step in list(view.steps.values()):
        if step.state not in TERMINAL:
            view.put(step, state=StepState.CANCELLED, wait_reason="", retry_at_ms=0, pending={})


def spread(view: RunView, ended: Iterable[str]) -> None:
    """Readies and skips what the ends of these steps decide, and what those decide in turn."""
    queue = list(ended)
    while queue:
        for key in view.graph.successors[queue.pop(0)]:
            step = view.steps[key]
            if step.state != StepState.PENDING:
                continue
            verdict = judge(view.graph.nodes[key], view.steps)
            if verdict == StepState.READY:
                view.ready(step)
            elif verdict == StepState.SKIPPED:
                reason = FailureFacts("policy", "its needs cannot hold any more", "NEEDS_NOT_MET")
                view.put(step, state=StepState.SKIPPED, failure=reason)
                queue.append(key)


def refuse_oversized(view: RunView, run_input_bytes: int, limit: int, waited_bytes: Mapping[str, int] | None = None) -> None:
    """Fails steps that became ready with an input that no ticket could carry, and what depends on that. `waited_bytes`: what a
    step has waited for, which its next attempt is given too."""
    while True:
        for step in view.touched.values():
            needed = [view.steps[need.step] for need in view.graph.nodes[step.key].needs]
            size = run_input_bytes + sum(len(before.output) for before in needed if before.state == StepState.SUCCEEDED)
            size += (waited_bytes or {}).get(step.key, 0)
            if step.state == StepState.READY and size > limit:
                break
        else:
            return
        text = f"its input would be {size} bytes, and {limit} are the most: hand on artifacts instead"
        view.put(step, state=StepState.FAILED, failure=FailureFacts("validation", text, "TOO_LARGE"))
        spread(view, [step.key])


def holds(need: Need, steps: Mapping[str, Step]) -> bool | None:
    """Whether an edge's condition holds; None while its predecessor is not terminal. A skipped one satisfies only ALWAYS."""
    state = steps[need.step].state
    if state not in TERMINAL:
        return None
    if need.when == When.ALWAYS:
        return state != StepState.CANCELLED
    return state == (StepState.SUCCEEDED if need.when == When.SUCCESS else StepState.FAILED)


def judge(node: Node, steps: Mapping[str, Step]) -> StepState:
    """READY, SKIPPED, or PENDING while it is not decided."""
    held = [holds(need, steps) for need in node.needs]
    if node.join == Join.ANY:
        if True in held:
            return StepState.READY
        return StepState.PENDING if None in held else StepState.SKIPPED
    if False in held:
        return StepState.SKIPPED
    return StepState.PENDING if None in held else StepState.READY


@value(frozen=True, slots=True)
class GraphEnd:
    """What a finished graph gives its run."""

    outcome: str
    failed_step: str
    failure: FailureFacts | None


def end_of(graph: Graph, steps: Mapping[str, Step]) -> GraphEnd:
    """succeeded; cancelled where a step was; failed by the first step whose failure no successor took up and mended."""
    for key in graph.order:
        step = steps[key]
        if step.state == StepState.FAILED and not _mended(graph, steps, key):
            return GraphEnd("failed", key, step.failure)
    if any(step.state == StepState.CANCELLED for step in steps.values()):
        return GraphEnd("cancelled", "", None)
    return GraphEnd("succeeded", "", None)


def _mended(graph: Graph, steps: Mapping[str, Step], key: str) -> bool:
    for successor in graph.successors[key]:
        edges = {need.step: need.when for need in graph.nodes[successor].needs}
        if edges[key] != When.SUCCESS and steps[successor].state == StepState.SUCCEEDED:
            return True
    return False
