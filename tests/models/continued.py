"""Continued runs: a sequence of steps whose successors the scheduler tickets in the commit of a success, and readiness behind it.

The decisions are the product's own (`services/readiness/domain/steps.py`); around them, as the code has it: the success and what
follows it in one commit (`services/scheduler/app/continue_runs.py`), a ticket's row (`put_tickets`), events that arrive late, twice
and out of order, a scheduler that forgets who follows whom, a run that is closed meanwhile.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from services.readiness.domain import steps as domain
from services.readiness.domain.graph import Join
from services.readiness.domain.steps import TERMINAL, AttemptFact, End, FailureFacts, RunView, Step, StepState
from tests.models.explorer import Broken, Model, Move, add
from tests.models.join import RUN, graph_of, need

NONE, WAITS, HELD, OVER = "none", "waits", "held", "over"
AGAIN = FailureFacts("transient", "again", "")


class Row(NamedTuple):
    """The scheduler's row of a step."""

    state: str = NONE
    sequence: int = 0


class Runs(NamedTuple):
    """Everything. `steps`: readiness' (state, ticket, attempts) of each; `gate`: whether the scheduler's gate is closed; `failures`:
    attempts that may still fail; `repeats`: deliveries that may still come once more."""

    steps: tuple[tuple[int, int, int], ...]
    rows: tuple[Row, ...]
    net: frozenset[tuple[Any, ...]]
    knows: bool
    gate: bool
    closed: bool
    failures: int
    repeats: int


class ContinuedModel(Model[Runs]):
    """a → b → c; one failure, one repeat, one closing, one scheduler that forgets."""

    name = "continued"
    about = "successors ticketed in the commit of a success, readiness behind, facts that overtake each other"
    mutants: ClassVar[Mapping[str, str]] = {
        "early-end-dropped": "the end of a successor that overtakes its predecessor's is asked again",
        "gate-not-judged": "a successor is ticketed only where the gate is not closed",
        "failure-continues": "only a success is continued",
        "retry-left-out": "readiness leaves out nothing but the first ticket of what was continued",
        "equal-ticket-taken": "a ticket with a sequence that the row has already changes nothing",
        "not-told": "a successor that was not ticketed is not called continued",
    }

    def __init__(self, mutant: str = "", *, wide: bool = False) -> None:
        super().__init__(mutant, wide=wide)
        names = "abcd" if wide else "abc"
        self.graph = graph_of(*((key, Join.ALL, (need(names[at - 1]),) if at else ()) for at, key in enumerate(names)))
        self.keys = self.graph.order

    def initial(self) -> Runs:
        first = (int(StepState.READY), 1, 0)
        rest = ((int(StepState.PENDING), 0, 0),) * (len(self.keys) - 1)
        net = frozenset({("ready", 0, 1)})
        return Runs((first, *rest), (Row(),) * len(self.keys), net, True, False, False, 1, 1)

    def moves(self, state: Runs) -> Iterator[Move]:
        for place, row in enumerate(state.rows):
            if row.state == WAITS and not state.gate:
                yield Move(
                    f"{self.keys[place]} is leased", state._replace(rows=self._row(state, place, Row(HELD, row.sequence)))
                )
            if row.state == HELD:
                yield from self._ends(state, place, row)
        for event in sorted(state.net, key=str):
            yield from self._deliver(state, event)
        if state.knows:
            yield Move("another scheduler takes over", state._replace(knows=False), fair=False)
        if not state.gate:
            closing = state._replace(gate=True, net=add(state.net, ("closing",)))
            yield Move("the run is closed", closing, fair=False)

    def _row(self, state: Runs, place: int, row: Row) -> tuple[Row, ...]:
        return (*state.rows[:place], row, *state.rows[place + 1 :])

    def _ends(self, state: Runs, place: int, row: Row) -> Iterator[Move]:
        """The worker's report, in one commit with what follows; behind a closed gate no success is taken."""
        key = self.keys[place]
        if not state.gate or self.without("gate-not-judged"):
            yield self._committed(state, place, row, ok=True, label=f"{key} succeeds")
        if state.failures:
            left = state._replace(failures=state.failures - 1)
            yield self._committed(left, place, row, ok=False, label=f"{key} fails")
        if state.gate:
            over = state._replace(rows=self._row(state, place, Row(OVER, row.sequence)))
            yield Move(f"{key} is stopped with its run", over)

    def _committed(self, state: Runs, place: int, row: Row, *, ok: bool, label: str) -> Move:
        rows = self._row(state, place, Row(OVER, row.sequence))
        after = place + 1
        follows = after < len(rows) and state.knows and (ok or self.without("failure-continues"))
        put = follows and rows[after].sequence < 1
        if put and state.gate:
            return Move(label, Broken(f"{self.keys[after]} is ticketed behind a closed gate"), fair=False)
        if put and not ok:
            return Move(label, Broken(f"{self.keys[after]} follows a failure"), fair=False)
        if put:
            rows = (*rows[:after], Row(WAITS, 1), *rows[after + 1 :])
        told = put or (self.without("not-told") and after < len(rows) and ok)
        event = ("ended", place, row.sequence, ok, told)
        return Move(label, state._replace(rows=rows, net=add(state.net, event)), fair=ok)

    def _deliver(self, state: Runs, event: tuple[Any, ...]) -> Iterator[Move]:
        gone = state._replace(net=state.net - {event})
        for repeated in (False, True):
            if repeated and not state.repeats:
                continue
            base = state._replace(repeats=state.repeats - 1) if repeated else gone
            found = self._arrives(base, event)
            if found is not None:
                word = " (and will come again)" if repeated else ""
                yield Move(f"{event} arrives{word}", found, fair=not repeated)

    def _arrives(self, state: Runs, event: tuple[Any, ...]) -> Any:
        if event[0] == "ready":
            return self._ticket(state, event[1], event[2])
        view = self._view(state)
        if event[0] == "closing":
            if not state.closed:
                domain.close(view)
            return self._saved(state._replace(closed=True), view)
        _, place, sequence, ok, told = event
        following = frozenset({self.keys[place + 1]}) if told else frozenset()
        fact = AttemptFact(
            self.keys[place], sequence, End.SUCCEEDED if ok else End.FAILED, b"", None if ok else AGAIN, {}, following
        )
        if not state.closed:
            if domain.too_early(view, fact) and not self.without("early-end-dropped"):
                return None  # RETRY: it stays where it is
            domain.finish_attempt(view, fact, {}, 0)
            domain.retry_due(view, fact.step_key, 10**9)
        return self._saved(state, view)

    def _ticket(self, state: Runs, place: int, sequence: int) -> Any:
        row = state.rows[place]
        newer = sequence > row.sequence or (self.without("equal-ticket-taken") and sequence == row.sequence)
        if row.state == HELD or not newer or state.gate:
            return state
        if row.state == OVER and sequence == row.sequence:
            return Broken(f"{self.keys[place]} runs again under the ticket that it ended under")
        return state._replace(rows=self._row(state, place, Row(WAITS, sequence)))

    def _view(self, state: Runs) -> RunView:
        steps = {key: Step(key, StepState(held[0]), held[1], held[2]) for key, held in zip(self.keys, state.steps, strict=True)}
        return RunView(RUN, self.graph, steps)

    def _saved(self, state: Runs, view: RunView) -> Runs:
        net = state.net
        for key, step in view.touched.items():
            ticketed = step.state == StepState.READY and not (self.without("retry-left-out") and step.ticket_sequence > 1)
            if ticketed and domain.needs_ticket(view, step):
                net = add(net, ("ready", self.keys.index(key), step.ticket_sequence))
        steps = tuple(
            (int(view.steps[key].state), view.steps[key].ticket_sequence, view.steps[key].attempts) for key in self.keys
        )
        return state._replace(steps=steps, net=net)

    def broken(self, state: Runs) -> str:
        """No step is ticketed before the one before it has succeeded at the scheduler."""
        for place in range(1, len(state.rows)):
            row, before = state.rows[place], state.rows[place - 1]
            if row.state in (WAITS, HELD) and before.state in (NONE, WAITS, HELD):
                return f"{self.keys[place]} is ticketed before {self.keys[place - 1]} has ended"
        return ""

    def goals(self) -> Mapping[str, Callable[[Runs], bool]]:
        """Every run ends: its graph is terminal and nothing waits."""
        return {"the graph ends": lambda state: all(StepState(held[0]) in TERMINAL for held in state.steps)}
