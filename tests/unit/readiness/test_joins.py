"""Joins by policy: the same decision under any order and repetition of facts; what is stopped, and who waits for that."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.readiness.domain.graph import Need, OnFailure, Policy, Rest, When, build_graph
from services.readiness.domain.joins import left_out, warns
from services.readiness.domain.steps import (
    EffectFact,
    End,
    StepState,
    end_of,
    finish_attempt,
    resolve_effect,
)
from tests.unit.readiness.joins_room import (
    ALL,
    ANY,
    COLLECT,
    FAIL_FAST,
    PRESETS,
    QUORUM,
    TWO,
    ended,
    join_of,
    node,
    stop_all,
    tell,
    view_of,
)

EXPECTED = {
    "all": [StepState.SKIPPED, StepState.SKIPPED, StepState.SKIPPED, StepState.READY],
    "fail_fast": [StepState.FAILED, StepState.FAILED, StepState.FAILED, StepState.READY],
    "any": [StepState.SKIPPED, StepState.READY, StepState.READY, StepState.READY],
    "two": [StepState.SKIPPED, StepState.SKIPPED, StepState.READY, StepState.READY],
    "quorum": [StepState.SKIPPED, StepState.SKIPPED, StepState.READY, StepState.READY],
    "collect": [StepState.READY] * 4,
}
"""By how many of three succeed."""


@pytest.mark.requirement("dag.join")
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("good", range(4))
def test_a_join_decides_the_same_under_any_order_and_repetition(preset: str, good: int) -> None:
    facts = [ended(f"r{n}", End.SUCCEEDED if n < good else End.FAILED) for n in range(3)]
    for order in itertools.permutations([*facts, facts[0]]):
        view = view_of(join_of(PRESETS[preset]))
        tell(view, *order)
        stop_all(view)
        assert view.steps["join"].state == EXPECTED[preset][good], order


@pytest.mark.requirement("dag.join")
def test_only_a_join_that_warns_tells_what_it_went_on_without_and_only_under_its_first_ticket() -> None:
    loud, facts = replace(COLLECT, warns=True), [ended("r0"), ended("r1", End.FAILED), ended("r2", End.FAILED)]
    for policy, told in ((loud, True), (COLLECT, False), (TWO, False)):
        view = view_of(join_of(policy))
        assert not warns(view, view.steps["join"]), "it is pending"
        tell(view, *facts)
        assert warns(view, view.steps["join"]) is told
        assert not any(warns(view, view.steps[f"r{n}"]) for n in range(3))
        if told:
            assert [step.key for step in left_out(view, view.node("join"))] == ["r1", "r2"]
            assert not warns(view, replace(view.steps["join"], ticket_sequence=2))
    quiet = view_of(join_of(loud))
    tell(quiet, *(ended(f"r{n}") for n in range(3)))
    assert not warns(quiet, quiet.steps["join"]), "nothing was left out"


@pytest.mark.requirement("dag.join")
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_graph_of_joins_ends_the_same_in_any_order(data: st.DataObject) -> None:
    """Random layers of joins that stop nobody: every order of the facts gives the same end of each step."""
    kept = [ALL, TWO, COLLECT, Policy(1, OnFailure.COUNT, Rest.LEAVE), Policy(0, OnFailure.FAIL, Rest.AWAIT), None]
    conditions = ["", "true", "false", "broken", "output is true"]
    nodes = [node(f"a{n}") for n in range(data.draw(st.integers(2, 4)))]
    for layer in "bc":
        before = [found.key for found in nodes]
        for n in range(data.draw(st.integers(1, 2))):
            keys = data.draw(st.lists(st.sampled_from(before), min_size=1, max_size=4, unique=True))
            needs = [Need(key, data.draw(st.sampled_from(list(When))), data.draw(st.sampled_from(conditions))) for key in keys]
            policy = data.draw(st.sampled_from(kept))
            nodes.append(
                node(f"{layer}{n}", *needs, policy=policy, condition=data.draw(st.sampled_from(["", "", *conditions])))
            )
    graph = build_graph(nodes, "")
    fates = {found.key: data.draw(st.sampled_from([End.SUCCEEDED, End.FAILED])) for found in nodes}
    results = set()
    for _ in range(4):
        view = view_of(graph)
        while left := [step.key for step in view.steps.values() if step.state == StepState.READY]:
            key = data.draw(st.sampled_from(left))
            tell(view, ended(key, fates[key]), ended(key, fates[key]))
        assert view.finished, "something waits for nothing"
        results.add((tuple(step.state for step in view.steps.values()), end_of(graph, view.steps).outcome))
    assert len(results) == 1


@pytest.mark.requirement("dag.join")
def test_awaiting_joins_wait_for_all_and_the_others_do_not() -> None:
    for policy, waits in ((TWO, True), (COLLECT, True), (QUORUM, False), (None, True)):
        view = view_of(join_of(policy))
        tell(view, ended("r0"), ended("r1"))
        assert (view.steps["join"].state == StepState.PENDING) is waits
    view = view_of(join_of(FAIL_FAST))
    tell(view, ended("r1", End.FAILED))
    assert view.steps["join"].state == StepState.FAILED
    assert "r1 failed: boom" in view.steps["join"].failure.message  # type: ignore[union-attr]
    assert view.revoked == {"r0": 1, "r2": 1}


@pytest.mark.requirement("dag.join")
def test_losers_are_revoked_and_the_successor_waits_for_those_that_may_touch_something() -> None:
    for points in (0, 1, 2):
        view = view_of(join_of(ANY, points=points))
        tell(view, ended("r1"))
        assert view.revoked == {"r0": 1, "r2": 1}
        assert view.steps["r0"].state == StepState.CANCELLING
        assert (view.steps["join"].state == StepState.PENDING) is bool(points)
        tell(view, ended("r0", End.CANCELLED))
        assert (view.steps["join"].state == StepState.PENDING) is bool(points)
        tell(view, ended("r2", End.SUCCEEDED))  # it was faster than its withdrawal: that is what happened
        assert [view.steps[key].state for key in ("r0", "r2", "join")] == [
            StepState.CANCELLED,
            StepState.SUCCEEDED,
            StepState.READY,
        ]
        tell(view, ended("join"))
        assert end_of(view.graph, view.steps).outcome == "succeeded", "a step that was stopped stops no run"


@pytest.mark.requirement("dag.join")
@pytest.mark.parametrize("end", [End.UNCERTAIN, End.CANCELLED])
def test_a_loser_in_doubt_is_waited_for_until_its_effects_are_known(end: End) -> None:
    view = view_of(join_of(ANY, points=1))
    tell(view, ended("r1"))
    finish_attempt(view, replace(ended("r0", end), unresolved={"push": 1}), {}, 0)
    tell(view, ended("r2", End.LOST))
    assert view.steps["r2"].state == StepState.CANCELLED, "a loser is not tried again"
    assert view.steps["r0"].state == StepState.WAITING
    assert view.steps["join"].state == StepState.PENDING
    resolve_effect(view, EffectFact("r0", "push", "observed", 2))
    assert view.steps["r0"].state == StepState.CANCELLED
    assert view.steps["join"].state == StepState.READY


@pytest.mark.requirement("dag.join")
def test_a_withdrawn_loser_whose_effects_are_known_by_then_is_over() -> None:
    view = view_of(join_of(ANY, points=1))
    tell(view, ended("r1"))
    tell(view, ended("r2", End.CANCELLED))
    finish_attempt(view, replace(ended("r0", End.CANCELLED), unresolved={"push": 1}), {"push": 2}, 0)
    assert (view.steps["r0"].state, view.steps["join"].state) == (StepState.CANCELLED, StepState.READY)


@pytest.mark.requirement("dag.join")
def test_what_somebody_else_needs_is_not_stopped_before_that_one_is_decided() -> None:
    graph = build_graph(
        [node("a"), node("b"), node("c"), node("any", "a", "b", policy=ANY), node("other", "b", "c", policy=TWO)], ""
    )
    view = view_of(graph)
    tell(view, ended("a"))
    assert (view.steps["any"].state, view.steps["b"].state) == (StepState.READY, StepState.READY)
    assert not view.revoked
    tell(view, ended("b"), ended("c"))
    assert view.steps["other"].state == StepState.READY


@pytest.mark.requirement("dag.join")
def test_what_was_on_its_way_to_a_loser_is_stopped_too() -> None:
    graph = build_graph([node("a"), node("slow"), node("late", "slow"), node("any", "a", "late", policy=ANY)], "")
    view = view_of(graph)
    tell(view, ended("a"))
    assert view.steps["late"].state == StepState.CANCELLING, "the scheduler may have ticketed it by itself"
    assert view.revoked == {"late": 1, "slow": 1}
    stop_all(view)
    assert {view.steps[key].state for key in ("late", "slow")} == {StepState.CANCELLED}


@pytest.mark.requirement("dag.conditions")
@pytest.mark.parametrize(
    ("condition", "state", "type_"),
    [
        ("true", StepState.READY, ""),
        ("false", StepState.SKIPPED, "CONDITION_FALSE"),
        ("broken", StepState.FAILED, "CONDITION_ERROR"),
    ],
)
def test_conditions_of_edges_of_steps_and_of_roots(condition: str, state: StepState, type_: str) -> None:
    graphs = [
        build_graph([node("a"), node("s", Need("a", When.SUCCESS, condition))], ""),
        build_graph([node("a"), node("s", "a", condition=condition)], ""),
        build_graph([node("a"), node("s", condition=condition)], ""),
    ]
    for graph in graphs:
        view = view_of(graph)
        tell(view, ended("a"))
        step = view.steps["s"]
        assert step.state == state
        assert (step.failure.type if step.failure else "") == type_
        if condition == "broken":
            assert step.failure is not None
            assert (step.failure.failure_class, "'broken'" in step.failure.message) == ("validation", True)
        assert not view.graph.followers("a") or graph is graphs[2], "the scheduler decides no condition"
