"""Authoritative for what a run takes over of an ended run that it continues. Pure.

A step runs again where it was named, or did not come to its end, or follows one that runs again. All else keeps what it gave:
its output, its failure, its instances. Can go wrong: a step that runs although what it needs was left out. What runs again is
closed under what follows.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from uuid import UUID

from libs.kernel.values import value
from services.readiness.domain.graph import Graph, base_of
from services.readiness.domain.spread import begin_roots, spread
from services.readiness.domain.state import FailureFacts, RunView, Step, StepState

GONE = "FORK_SOURCE_GONE"


@value(frozen=True, slots=True)
class Fork:
    """The run that is continued, and the steps to run again; none: those that did not succeed."""

    of: UUID
    from_steps: tuple[str, ...] = ()


def kept(graph: Graph, former: Mapping[str, Step], from_steps: Collection[str]) -> dict[str, Step]:
    """Steps of the ended run that are taken over, as those of a new one."""
    again = set(from_steps) & graph.nodes.keys()
    for step in former.values():
        whole = step.state in (StepState.SUCCEEDED, StepState.SKIPPED) or (from_steps and step.state == StepState.FAILED)
        if not whole:
            again.add(base_of(step.key))
    left = list(again)
    while left:
        key = left.pop()
        asker = graph.many.get(key)  # what it asked for goes with the run that asked: it asks again
        for other in (*graph.successors[key], *((asker,) if asker else ())):
            if other not in again:
                again.add(other)
                left.append(other)
    return {
        key: replace(Step(key, step.state), attempts=step.attempts, output=step.output, failure=step.failure, item=step.item)
        for key, step in former.items()
        if base_of(key) not in again
    }


def take_over(view: RunView, former: Mapping[str, Step] | None, from_steps: Collection[str]) -> None:
    """Begins a run with what another gave; where nothing is known of that any more, none of it is run."""
    if former is None:
        text = "the run that it continues is forgotten here: its retention has passed"
        for step in list(view.steps.values()):
            view.put(step, state=StepState.FAILED, failure=FailureFacts("policy", text, GONE))
        return
    taken = kept(view.graph, former, from_steps)
    view.take_over(taken)
    begin_roots(view)
    spread(view, list(taken))
