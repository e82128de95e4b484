"""Authoritative for what a wait is: what an attempt asked for under a slot, and how that ends, once. Pure.

A wait that has ended never changes. Can go wrong: an answer and a deadline that meet. Whoever holds the run's lock first
decides, and a wait whose time has passed takes no answer, whether or not anybody noted it yet.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from enum import IntEnum
from uuid import UUID

from libs.kernel.capacity import PROVIDER
from libs.kernel.values import value


class Kind(IntEnum):
    """What is waited for; the numbers are those of the rows."""

    TIMER = 1
    EVENT = 2
    INPUT = 3
    UNREADABLE = 4
    APPROVAL = 5
    CHILDREN = 6
    EXPAND = 7
    BUDGET = 8
    CAPACITY = 9


class WaitState(IntEnum):
    """open → done (a timer that fired, an event that arrived, an answer) or timed out; refused where nobody could read what is
    asked."""

    OPEN = 1
    DONE = 2
    TIMED_OUT = 3
    REFUSED = 4


REASONS = {
    Kind.APPROVAL: "approval",
    Kind.INPUT: "user_input",
    Kind.BUDGET: "budget",
    Kind.CHILDREN: "child_tasks",
    Kind.EVENT: "external_event",
    Kind.TIMER: "timer",
    Kind.CAPACITY: "provider_capacity",
}
"""What a step with such a wait is said to wait for; of several the first: what people bring goes before what time brings."""
WAIT_REASONS = frozenset(REASONS.values())
PROVIDER_CAPACITY = REASONS[Kind.CAPACITY]
"""What a step is said to wait for whose ticket waits for capacity: it is ready, and the scheduler has it."""
DECIDED_ELSEWHERE = frozenset({Kind.APPROVAL, Kind.CHILDREN, Kind.BUDGET})
"""Launch decides these and says so; here they are only waited for."""
ANSWERED_BY_PEOPLE = frozenset({Kind.APPROVAL, Kind.INPUT})
INTERACTIVE, APPROVAL_RESUME = 1, 4
"""runway.launch.v1.RunClass."""
LONGEST_MS = 10 * 365 * 86_400_000
"""No wait lasts longer: what asks for more has mistaken its unit."""


@value(frozen=True, slots=True)
class Asked:
    """What a command says. `for_ms` counts from when it is taken here, `until_ms` since the Unix epoch; -1 where neither is
    said."""

    step_key: str
    slot: str
    kind: Kind
    name: str = ""
    correlation: str = ""
    for_ms: int = -1
    until_ms: int = -1
    payload: bytes = b""
    problem: str = ""
    calls: int = 0
    """Of capacity: so many calls of the tool, model or provider `name`."""


@value(frozen=True, slots=True)
class Wait:
    """A slot's wait as its row has it; `due_ms` 0: until it is answered."""

    step_key: str
    slot: str
    kind: Kind
    state: WaitState
    name: str
    correlation: str
    due_ms: int
    payload: bytes
    asked_ms: int
    result: bytes = b""
    ended_ms: int = 0
    ended_by: str = ""
    calls: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """Its step and slot."""
        return (self.step_key, self.slot)

    @property
    def told_bytes(self) -> int:
        """What it weighs, about, in the input of the step's next attempt."""
        return len(self.slot) + len(self.result) + len(self.ended_by) + 100

    def overdue(self, now_ms: int) -> bool:
        """Whether its time has passed."""
        return self.state == WaitState.OPEN and 0 < self.due_ms <= now_ms


WaitKey = tuple[UUID, str, str]
"""Run, step and slot."""


def begin_wait(asked: Asked, now_ms: int) -> Wait:
    """The wait that a command asks for, from now on."""
    due_ms = 0
    if asked.until_ms >= 0:
        due_ms = max(1, asked.until_ms)
    elif asked.for_ms >= 0:
        due_ms = now_ms + asked.for_ms
    wait = Wait(
        step_key=asked.step_key,
        slot=asked.slot,
        kind=asked.kind,
        state=WaitState.OPEN,
        name=asked.name,
        correlation=asked.correlation,
        due_ms=due_ms,
        payload=asked.payload,
        asked_ms=now_ms,
        calls=asked.calls,
    )
    if asked.problem:
        return replace(wait, state=WaitState.REFUSED, ended_ms=now_ms, ended_by=asked.problem)
    if asked.kind == Kind.EXPAND:  # nobody waits for it: it is noted until its step has succeeded
        return replace(wait, state=WaitState.DONE, ended_ms=now_ms)
    return wait


def run_out(wait: Wait, now_ms: int) -> Wait:
    """A wait whose time has passed: a timer has fired, anything else has timed out."""
    state = WaitState.DONE if wait.kind == Kind.TIMER else WaitState.TIMED_OUT
    return replace(wait, state=state, ended_ms=now_ms)


def answer(wait: Wait, result: bytes, by: str, now_ms: int) -> Wait:
    """A wait that got what it waited for."""
    return replace(wait, state=WaitState.DONE, result=result, ended_ms=now_ms, ended_by=by)


def _otherwise(name: str, calls: Collection[str]) -> str:
    """What is meant by a name that is none, but looks like one."""
    bare = name.removeprefix("tool:")
    if bare != name:
        here = "" if bare in calls else ", once the step declares it"
        return f'a tool is named without `tool:`, as in wait_for_capacity("{bare}"){here}'
    return f'a model is named as in wait_for_capacity("model:{name}")' if f"model:{name}" in calls else ""


def declared(asked: Asked, calls: Collection[str]) -> Asked:
    """What is asked; capacity for calls that the step may not make (`calls`: those it may) is refused, with the remedy."""
    if asked.kind != Kind.CAPACITY or asked.problem or asked.name in calls:
        return asked
    if asked.name.startswith(PROVIDER):
        none = f"capacity names {asked.name}, and the step declares nothing that could call it: add what does to its "
        return asked if calls else replace(asked, problem=f"{none[:480]}tools or models")
    if meant := _otherwise(asked.name, calls):
        return replace(asked, problem=f"capacity names {asked.name[:200]}: {meant[:280]}")
    problem = f"capacity names {asked.name}, which the step does not declare: add it to its tools or models, or name one of "
    return replace(asked, problem=(problem + (", ".join(sorted(calls)) or "them"))[:500])


@value(frozen=True, slots=True)
class Told:
    """What launch says of a wait that it decides, or the scheduler of one for capacity."""

    step_key: str
    slot: str
    kind: Kind
    refused: bool
    result: bytes
    by: str
    timed_out: bool = False


def begin_told(told: Told, now_ms: int) -> Wait:
    """A wait whose answer came before it was asked for: it is over."""
    return end_told(begin_wait(Asked(told.step_key, told.slot, told.kind), now_ms), told, now_ms)


def end_told(wait: Wait, told: Told, now_ms: int) -> Wait:
    """A wait that was decided elsewhere."""
    ended = answer(wait, told.result, told.by, now_ms)
    if told.timed_out:
        return replace(ended, state=WaitState.TIMED_OUT)
    return replace(ended, state=WaitState.REFUSED) if told.refused else ended


def class_of(run_class: int, waited: Iterable[Wait]) -> int:
    """The class of a step's ticket: its run's; `approval_resume` where the last that the step waited for is a person, who has
    answered. Nobody chooses it. A run that goes first anyway stays what it is."""
    last = max((wait for wait in waited if wait.kind != Kind.EXPAND), key=lambda wait: (wait.ended_ms, wait.slot), default=None)
    if run_class == INTERACTIVE or last is None or last.kind not in ANSWERED_BY_PEOPLE or last.state != WaitState.DONE:
        return run_class
    return APPROVAL_RESUME


@value(frozen=True, slots=True)
class Signal:
    """An event that somebody told of. `run_id`: only waits of this run; None: whichever run waits with this correlation."""

    tenant: str
    project: str
    run_id: UUID | None
    event_id: str
    name: str
    correlation: str
    payload: bytes
    digest: bytes
    by: str

    @property
    def key(self) -> tuple[str, str]:
        """Tenant and id."""
        return (self.tenant, self.event_id)


@value(frozen=True, slots=True)
class Kept:
    """An event as its row stands."""

    tenant: str
    event_id: str
    run_id: UUID | None
    digest: bytes
    used_step: str
    used_slot: str

    @property
    def used(self) -> bool:
        """Whether a wait has it."""
        return bool(self.used_slot)


def reason_of(waits: Iterable[Wait]) -> str:
    """What a step with these waits is said to wait for."""
    kinds = {wait.kind for wait in waits}
    return next(reason for kind, reason in REASONS.items() if kind in kinds)
