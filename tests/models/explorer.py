"""Explicit-state search: every interleaving of a small model, breadth first, so the first counter-example is a shortest one.

Authoritative for what "holds" means here: every state reachable within the model's bounds was visited, none breaks a rule, each
state that is not an end has a move, and from each state the model's good ends can still be reached by the system's own moves
(no fault, no user, no lucky duplicate). Can go wrong: a search that was cut short. It says so (`complete`) and proves nothing.
"""

import time
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Broken:
    """What a move leads to instead of a state: a rule that it breaks."""

    rule: str


class Move(NamedTuple):
    """One step. `fair`: the system does it by itself sooner or later; faults, people and repeats are not."""

    label: str
    state: Any
    fair: bool = True


class Model(ABC, Generic[S]):
    """A protocol as states and moves. One object is one variant: the real one, or a mutant that lacks one guard."""

    name: ClassVar[str]
    about: ClassVar[str]
    mutants: ClassVar[Mapping[str, str]]
    """Guards that can be taken away, and what each one is. Each must break a rule."""
    costly: ClassVar[frozenset[str]] = frozenset()
    """Mutants whose search is too long for the normal tests."""

    def __init__(self, mutant: str = "", *, wide: bool = False) -> None:
        """`wide`: the bounds of `make models`; else those of the normal tests."""
        if mutant and mutant not in self.mutants:
            raise ValueError(f"{self.name} has no mutant {mutant!r}: {', '.join(self.mutants)}")
        self.mutant = mutant
        self.wide = wide

    def without(self, guard: str) -> bool:
        """Whether this variant lacks the guard."""
        return self.mutant == guard

    @abstractmethod
    def initial(self) -> S:
        """Where it begins."""

    @abstractmethod
    def moves(self, state: S) -> Iterator[Move]:
        """Everything that can happen next; a move's state may be `Broken`."""

    def broken(self, state: S) -> str:
        """The rule that a state breaks; empty: none."""
        return ""

    def canonical(self, state: S) -> S:
        """One representative of all states that behave alike."""
        return state

    def goals(self) -> Mapping[str, Callable[[S], bool]]:
        """Good ends: from every state, a state of each kind must be reachable by fair moves."""
        return {}

    def show(self, state: S) -> str:
        """A state for people."""
        return str(state)


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule and the shortest way there."""

    rule: str
    trace: tuple[str, ...]
    state: str

    def __str__(self) -> str:
        steps = "\n".join(f"  {number:3}. {label}" for number, label in enumerate(self.trace, 1))
        return f"{self.rule}\n{steps}\n  in: {self.state}"


@dataclass(frozen=True, slots=True)
class Result:
    """What a search found."""

    states: int
    depth: int
    seconds: float
    complete: bool
    violation: Violation | None


@dataclass(slots=True)
class _Search(Generic[S]):
    model: Model[S]
    limit: int
    numbers: dict[S, int] = field(default_factory=dict)
    states: list[S] = field(default_factory=list)
    parents: "array[int]" = field(default_factory=lambda: array("l"))
    labels: list[str] = field(default_factory=list)
    edges: "tuple[array[int], array[int]]" = field(default_factory=lambda: (array("l"), array("l")))
    depth: int = 0

    def add(self, state: S, parent: int, label: str) -> int:
        number = len(self.states)
        self.numbers[state] = number
        self.states.append(state)
        self.parents.append(parent)
        self.labels.append(label)
        return number

    def trace(self, number: int, last: str = "") -> tuple[str, ...]:
        steps = [last] if last else []
        while self.parents[number] >= 0:
            steps.append(self.labels[number])
            number = self.parents[number]
        return tuple(reversed(steps))

    def run(self) -> tuple[Violation | None, bool]:
        """Every state, nearest first. The first broken rule ends it."""
        model = self.model
        wants_edges = bool(model.goals())
        first = model.canonical(model.initial())
        queue = deque([self.add(first, -1, "")])
        level_ends = 0
        while queue:
            if len(self.states) > self.limit:
                return None, False
            here = queue.popleft()
            if here > level_ends:
                level_ends = len(self.states) - 1
                self.depth += 1
            state = self.states[here]
            for label, after, fair in model.moves(state):
                if isinstance(after, Broken):
                    return Violation(after.rule, self.trace(here, label), model.show(state)), False
                after = model.canonical(after)
                there = self.numbers.get(after)
                if there is None:
                    there = self.add(after, here, label)
                    if rule := model.broken(after):
                        return Violation(rule, self.trace(there), model.show(after)), False
                    queue.append(there)
                if wants_edges and fair:
                    self.edges[0].append(here)
                    self.edges[1].append(there)
        return self.stuck(), True

    def stuck(self) -> Violation | None:
        """A state from which some good end is out of reach."""
        back: list[list[int]] = [[] for _ in self.states] if self.model.goals() else []
        for source, target in zip(*self.edges, strict=True):
            back[target].append(source)
        for name, reached in self.model.goals().items():
            seen = bytearray(reached(state) for state in self.states)
            queue = deque(number for number, yes in enumerate(seen) if yes)
            while queue:
                for source in back[queue.popleft()]:
                    if not seen[source]:
                        seen[source] = 1
                        queue.append(source)
            lost = seen.find(0)
            if lost >= 0:
                return Violation(f"out of reach: {name}", self.trace(lost), self.model.show(self.states[lost]))
        return None


def explore(model: Model[Any], limit: int = 3_000_000) -> Result:
    """Searches a model. Deterministic: the same model gives the same states and the same trace."""
    began = time.monotonic()
    search: _Search[Any] = _Search(model, limit)
    violation, complete = search.run()
    return Result(len(search.states), search.depth, time.monotonic() - began, complete, violation)


def swap(values: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    """The tuple with one place changed."""
    return (*values[:place], value, *values[place + 1 :])


def add(pool: frozenset[Any], *items: Any) -> frozenset[Any]:
    """Messages that may be delivered any number of times, in any order, or never noticed again."""
    return pool.union(items)
