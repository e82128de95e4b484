"""Joins by policy: losers are stopped, and nothing behind the join acts while one of them may still act.

The facts, rows and transactions are those of `join.py`; the decisions are the product's own. Two predecessors that touch
something outside race for a join that takes the first; in the wide search another waits for one of them first, and fails at the
first failure.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar
from unittest.mock import patch

from services.readiness.domain import spread
from services.readiness.domain.graph import Contract, Graph, Join, Need, Node, OnFailure, Policy, Rest, Retry, When, build_graph
from services.readiness.domain.steps import RunView, Step, StepState
from tests.models.explorer import Broken
from tests.models.join import HELD, Held, JoinModel, Joins

ANY = Policy(1, OnFailure.COUNT, Rest.CANCEL)
FAIL_FAST = Policy(0, OnFailure.FAIL, Rest.CANCEL)


def _graph(policy: Policy) -> Graph:
    contract = Contract("h@1", 0, 0, ("tool",), (), False, (), 1)
    retry = Retry(2, 0, 1.0, 0, frozenset({"transient"}))
    needs = (Need("a", When.SUCCESS), Need("b", When.SUCCESS))
    nodes = [Node(key, (), Join.ALL, retry, contract, "") for key in "ab"]
    after = Need("last", When.ALWAYS)
    nodes += [
        Node("last", needs, Join.ALL, retry, contract, "", policy),
        Node("after", (after,), Join.ALL, retry, contract, ""),
    ]
    return build_graph(nodes, "after")


class PolicyJoinModel(JoinModel):
    """Two predecessors, a join that stops the rest, and a step behind it."""

    name = "policy_join"
    about = "joins that stop their losers: no step behind the join before each of them is known to be over"
    mutants: ClassVar[Mapping[str, str]] = {
        "successor-does-not-wait": "what a join decided waits until losers that touch something are over",
        "stopped-is-over": "a loser with a ticket is over when the scheduler says so",
        "loser-retried": "a loser whose attempt fails is not tried again",
        "doubt-forgotten": "a loser whose effect is in doubt is waited for until that is known",
        "decided-again": "a join is decided once",
    }
    costly: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, mutant: str = "", *, wide: bool = False) -> None:
        super().__init__(mutant, wide=wide)
        self.graph = _graph(FAIL_FAST if wide else ANY)
        self.keys = self.graph.order

    def _decide(self, state: Joins, read: tuple[Held, ...], fact: tuple[Any, ...]) -> Joins | Broken:
        with self._weakened():
            return super()._decide(state, read, fact)

    @contextmanager
    def _weakened(self) -> Iterator[None]:
        if self.without("successor-does-not-wait"):
            with patch.object(spread, "_at_work", lambda view, node: False):
                yield
        elif self.without("stopped-is-over"):
            with patch.object(spread, "_stop", _at_once):
                yield
        elif self.without("loser-retried"):
            with patch.object(Step, "stopping", property(lambda step: False)):
                yield
        elif self.without("doubt-forgotten"):
            stopping = Step.stopping.fget  # type: ignore[attr-defined]
            forgets = property(lambda step: step.state is not StepState.WAITING and stopping(step))
            with patch.object(Step, "stopping", forgets):
                yield
        else:
            yield

    def _weaken(self, view: RunView, fact: tuple[Any, ...]) -> None:
        super()._weaken(view, fact)
        last = view.steps["last"]
        if self.without("decided-again") and fact[0] == "ended" and last.state is StepState.READY:
            view.put(replace(last, state=StepState.PENDING))

    def _wrong(self, state: Joins, place: int, step: Step, known: frozenset[tuple[str, int]]) -> str:
        before = state.steps[place]
        if before.stopped and step.state is StepState.READY:
            return "a step that was stopped is readied again"
        if before.state is StepState.READY and step.state is StepState.PENDING:
            return "a join is decided twice"
        if step.key == "last" and step.state is not before.state and step.state is not StepState.CANCELLED:
            for number, held in enumerate(state.steps[:2]):
                row = state.rows[number]
                if held.stopped and row.state == HELD and row.sequence == held.ticket_sequence:
                    return "the step behind a join goes on while a loser may still act"
                doubted = any(key == held.key and (key, sequence) not in known for key, sequence in state.doubts)
                if held.stopped and doubted:
                    return "the step behind a join goes on while an effect of a loser is in doubt"
        return super()._wrong(state, place, step, known)

    def goals(self) -> Mapping[str, Callable[[Joins], bool]]:
        """As every join; and what is stopped is over some day."""
        over: Callable[[Joins], bool] = lambda state: not any(held.step().stopping for held in state.steps)  # noqa: E731
        return {**super().goals(), "what is stopped is over": over}


def _at_once(view: RunView, step: Step) -> list[str]:
    if step.over:
        return []
    view.put(step, state=StepState.CANCELLED, failure=spread._STOPPED)
    return [step.key]
