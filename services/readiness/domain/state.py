"""Authoritative for what a run's steps are while facts are applied to them: the values, and the view that collects what
changes.

Can go wrong: a step that is changed beside its view. Every change goes through `put`, which counts its version.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Protocol
from uuid import UUID

from libs.kernel.values import value
from services.readiness.domain.graph import Graph, Node, base_of, instance_key
from services.readiness.domain.waits import PROVIDER_CAPACITY, Wait


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

JOIN_DECIDED = "JOIN_DECIDED"
"""Type of failure of steps that were stopped because a join was decided without them."""
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
    item: bytes = b""
    """Of an instance: what it was made for."""

    @property
    def over(self) -> bool:
        """Whether it is terminal."""
        return self.state in TERMINAL

    @property
    def stopped(self) -> bool:
        """Whether a join was decided without it."""
        return self.failure is not None and self.failure.type == JOIN_DECIDED

    @property
    def stopping(self) -> bool:
        """Whether it is being stopped, and may still be at work."""
        return self.stopped and not self.over


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
    """Of a yield: slots that the step waits for. Of a success: slots under which instances were asked for."""
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


Output = bytes | Sequence[bytes]
"""What a step gave; of one that is many, what each instance gave, in order, nothing where it gave nothing."""


class Unusable(Exception):
    """An expression that gives nothing for this data: what is wrong, in a line."""


class Expressions(Protocol):
    """How authors' expressions are evaluated, and what they see. Outputs and items are opaque bytes here."""

    def holds(self, expression: str, run_input: bytes, outputs: Mapping[str, Output], step: Mapping[str, object]) -> bool:
        """A condition; raises Unusable where it gives neither true nor false."""
        ...

    def asked(self, payload: bytes) -> list[bytes]:
        """The items that an attempt asked for."""
        ...

    def items(
        self, expression: str, run_input: bytes, outputs: Mapping[str, Output], step: Mapping[str, object]
    ) -> list[bytes]:
        """The items of a list; raises Unusable where it gives none."""
        ...


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
    run_input: bytes = b""
    expressions: Expressions | None = None
    asked_items: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    """By the step that asked: items for the step that it makes many."""
    max_steps: int = 0
    """Most steps of the run; 0: nobody counts."""
    born: set[str] = field(default_factory=set)
    """Instances that were made in this delivery."""
    noted: set[str] = field(default_factory=set)
    """Steps of which something was noted while their ticket stays the one that it was."""
    revoked: dict[str, int] = field(default_factory=dict)
    """Tickets that are withdrawn, by step."""
    _instances: dict[str, list[str]] | None = None

    def node(self, key: str) -> Node:
        """The node of a step or of an instance."""
        return self.graph.nodes[base_of(key)]

    def instances(self, key: str) -> list[Step]:
        """Of a step that is many, in order; empty where it has none (yet)."""
        if self._instances is None:
            self._instances = {}
            for name in self.steps:
                if base_of(name) != name:
                    self._instances.setdefault(base_of(name), []).append(name)
            for names in self._instances.values():
                names.sort(key=lambda name: int(name[name.rindex("[") + 1 : -1]))
        return [self.steps[name] for name in self._instances.get(key, ())]

    def multiply(self, key: str, items: Sequence[bytes]) -> None:
        """Makes the instances of a step, each under its first ticket."""
        for number, item in enumerate(items):
            name = instance_key(key, number)
            self.steps[name] = self.touched[name] = Step(name, StepState.READY, ticket_sequence=1, item=item)
            self.born.add(name)
        self._instances = None

    def take_over(self, steps: Mapping[str, Step]) -> None:
        """Steps that another run has ended, as this one's own."""
        self.steps.update(steps)
        self._instances = None

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
        self.noted.discard(step.key)
        self.put(step, state=StepState.READY, ticket_sequence=step.ticket_sequence + 1, **(clean | changes))

    def capacity_of(self, step: Step) -> Wait | None:
        """What a ticket has to wait for besides a worker."""
        if step.wait_reason != PROVIDER_CAPACITY:
            return None
        return next((self.waits[step.key, slot] for slot in step.pending if (step.key, slot) in self.waits), None)

    @property
    def finished(self) -> bool:
        """Whether every step is terminal."""
        return all(step.state in TERMINAL for step in self.steps.values())
