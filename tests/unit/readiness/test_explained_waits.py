"""What takes a wait away is said as a command that can be pasted: with the run, the step, the slot and the event."""

from uuid import UUID

import pytest

from services.readiness.domain.explain import child_asks, explain, shown_slots
from services.readiness.domain.graph import Graph
from services.readiness.domain.state import RunView, Step, StepState
from services.readiness.domain.waits import Asked, Kind, Wait, WaitState, declared
from tests.unit.pasted import commands

RUN = UUID(int=7)
GRAPH = Graph({}, (), {}, "", {})
pytestmark = pytest.mark.requirement("run.explain")


def wait_of(kind: Kind, slot: str, name: str = "", correlation: str = "", key: str = "ask") -> Wait:
    return Wait(key, slot, kind, WaitState.OPEN, name, correlation, 0, b"", 1)


def remedy(step: Step, *read: Wait) -> str:
    view = RunView(RUN, GRAPH, {step.key: step}, waits={wait.key: wait for wait in read})
    return explain(view, step.key)[0].remedy


def waiting(reason: str, *slots: str, key: str = "ask") -> Step:
    return Step(key, StepState.WAITING, wait_reason=reason, pending=dict.fromkeys(slots, 0))


def test_an_event_is_told_with_its_name_and_correlation() -> None:
    step = waiting("external_event", "event:paid#1")
    (words,) = commands(remedy(step, wait_of(Kind.EVENT, "event:paid#1", "paid it", "o-7")))
    assert words == ["run", "signal", "paid it", "--run", str(RUN), "--correlation", "o-7", "--payload", "JSON"]
    (words,) = commands(remedy(step, wait_of(Kind.EVENT, "event:paid#1", "paid")))
    assert words == ["run", "signal", "paid", "--run", str(RUN), "--payload", "JSON"]
    assert commands(remedy(step))[0] == ["run", "signal", "NAME", "--run", str(RUN)], "its row could not be read"


def test_a_question_is_answered_with_its_step_and_slot() -> None:
    asked = wait_of(Kind.INPUT, "input#2", key="review[3]")
    answer, look = commands(remedy(waiting("user_input", "input#2", key="review[3]"), asked))
    assert answer == ["run", "answer", str(RUN), "ANSWER", "--step", "review[3]", "--slot", "input#2"]
    assert look == ["run", "inputs", str(RUN)]
    below = child_asks(str(RUN), asked, "Ship it?")
    assert commands(below.remedy) == [answer, look]


def test_of_two_waits_the_one_is_named_that_the_step_is_said_to_wait_for() -> None:
    step = waiting("user_input", "event:paid#1", "input#1")
    assert shown_slots(step) == ["event:paid#1", "input#1"]
    answer, _ = commands(remedy(step, wait_of(Kind.EVENT, "event:paid#1", "paid"), wait_of(Kind.INPUT, "input#1")))
    assert answer[:2] == ["run", "answer"]


@pytest.mark.parametrize("reason", ["user_input", "approval", "child_tasks", "budget", "reconciliation"])
def test_every_wait_names_its_run(reason: str) -> None:
    found = commands(remedy(waiting(reason, "a#1", "a#2")))
    assert found
    assert all(str(RUN) in words for words in found)


def test_a_step_that_is_over_says_how_it_runs_again() -> None:
    (words,) = commands(remedy(Step("review[3]", StepState.FAILED)))
    assert words == ["run", "fork", str(RUN), "--from", "review"], "an instance runs again with its step"


@pytest.mark.requirement("step.wait")
def test_capacity_of_a_name_that_is_none_says_the_one_that_is_meant() -> None:
    def problem(name: str, *calls: str) -> str:
        return declared(Asked("s", "capacity", Kind.CAPACITY, name, calls=1), calls).problem

    assert problem("tool:http.request", "http.request") == (
        'capacity names tool:http.request: a tool is named without `tool:`, as in wait_for_capacity("http.request")'
    )
    assert problem("tool:git.push", "http.request").endswith('wait_for_capacity("git.push"), once the step declares it')
    assert problem("summary", "model:summary").endswith('a model is named as in wait_for_capacity("model:summary")')
    assert "add it to its tools or models, or name one of http.request" in problem("model:x", "http.request")
    assert problem("http.request", "http.request") == problem("provider:shop", "http.request") == ""
    assert len(problem("tool:" + "x" * 2_000)) <= 500
