"""Steps that become many, behind joins by policy: caps, askers, losers, and that every graph comes to an end."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.readiness.domain.graph import Graph, Need, Node, OnFailure, Policy, Rest, When, build_graph
from services.readiness.domain.state import JOIN_DECIDED
from services.readiness.domain.steps import (
    AttemptFact,
    EffectFact,
    End,
    FailureFacts,
    RunView,
    StepState,
    end_of,
    finish_attempt,
    resolve_effect,
    retry_due,
)
from services.readiness.domain.waits import Asked, Kind, begin_wait
from tests.unit.readiness.joins_room import (
    ALL,
    ANY,
    COLLECT,
    PRESETS,
    TWO,
    ended,
    join_of,
    node,
    stop_all,
    tell,
    view_of,
)


def many(*after: Node, for_each: str = "3", most: int = 0, attempts: int = 1) -> Graph:
    return build_graph(
        [node("plan"), node("review", "plan", for_each=for_each, max_instances=most, attempts=attempts), *after], ""
    )


@pytest.mark.requirement("dag.expand")
def test_a_step_becomes_many_and_its_join_sees_each_of_them() -> None:
    for policy, fates, state in (
        (None, (1, 1, 1), StepState.READY),
        (None, (1, 0, 1), StepState.SKIPPED),
        (TWO, (1, 0, 1), StepState.READY),
        (COLLECT, (0, 0, 0), StepState.READY),
    ):
        view = view_of(many(node("sum", "review", policy=policy)))
        tell(view, ended("plan"))
        assert [step.key for step in view.instances("review")] == ["review[0]", "review[1]", "review[2]"]
        assert view.born == {"review[0]", "review[1]", "review[2]"}
        assert [step.item for step in view.instances("review")] == [b"0", b"1", b"2"]
        for number in (2, 0, 1):
            assert view.steps["sum"].state == StepState.PENDING
            tell(view, ended(f"review[{number}]", End.SUCCEEDED if fates[number] else End.FAILED))
            if policy is None and not fates[number]:
                break
        assert view.steps["sum"].state == state


@pytest.mark.requirement("dag.expand")
@pytest.mark.parametrize(
    ("policy", "state"), [(None, StepState.READY), (ALL, StepState.READY), (COLLECT, StepState.READY), (ANY, StepState.SKIPPED)]
)
def test_of_an_empty_list_all_are_there(policy: Policy | None, state: StepState) -> None:
    view = view_of(many(node("sum", "review", policy=policy), for_each="0"))
    tell(view, ended("plan"))
    assert (view.steps["review"].state, view.steps["sum"].state) == (StepState.SUCCEEDED, state)


@pytest.mark.requirement("dag.expand")
def test_over_a_cap_none_is_made_and_both_numbers_are_told() -> None:
    for most, steps, text in ((2, 0, "3 instances, and 2 are"), (0, 5, "6 steps, and 5 are")):
        view = view_of(many(node("sum", "review"), most=most), max_steps=steps)
        tell(view, ended("plan"))
        review = view.steps["review"]
        assert (review.state, len(view.steps)) == (StepState.FAILED, 3)
        assert review.failure is not None
        assert review.failure.failure_class == "policy"
        assert text in review.failure.message
        assert view.steps["sum"].state == StepState.SKIPPED


def asking(view: RunView, *slots: tuple[str, bytes]) -> AttemptFact:
    """The success of `plan`, which asked for these items."""
    for slot, items in slots:
        view.waits["plan", slot] = begin_wait(Asked("plan", slot, Kind.EXPAND, payload=items), 0)
    return replace(ended("plan"), awaits=tuple(slot for slot, _ in slots))


@pytest.mark.requirement("dag.expand")
def test_instances_that_were_asked_for_are_made_when_their_asker_has_succeeded() -> None:
    nodes = [node("plan", template="review", max_instances=3), node("review", "plan"), node("sum", "review")]
    view = view_of(build_graph(nodes, ""))
    assert view.graph.followers("plan") == ()
    tell(view, asking(view, ("b", b"z"), ("a", b"x,y")))
    assert [step.item for step in view.instances("review")] == [b"x", b"y", b"z"], "by slot, whatever came first"
    view = view_of(build_graph(nodes, ""))
    tell(view, ended("plan"))
    assert view.steps["sum"].state == StepState.READY, "nothing was asked for"
    view = view_of(build_graph(nodes, ""))
    tell(view, asking(view, ("a", b"x,y"), ("b", b"u,v")))
    plan = view.steps["plan"]
    assert (plan.state, len(view.steps)) == (StepState.FAILED, 3)
    assert plan.failure == FailureFacts("policy", "it would have 4 instances, and 3 are the most", "EXPANSION_TOO_LARGE")
    view = view_of(build_graph([node("plan")], ""))
    tell(view, asking(view, ("a", b"x")))
    assert view.steps["plan"].failure is not None
    assert view.steps["plan"].failure.type == "EXPANSION_REFUSED"


@pytest.mark.requirement("dag.expand")
@pytest.mark.requirement("dag.join")
def test_instances_that_lose_are_stopped() -> None:
    view = view_of(many(node("first", "review", policy=ANY), for_each="4"))
    tell(view, ended("plan"), ended("review[2]"))
    assert view.steps["first"].state == StepState.READY
    assert set(view.revoked) == {"review[0]", "review[1]", "review[3]"}
    stop_all(view)
    assert view.steps["review"].state == StepState.CANCELLED
    assert view.steps["review"].failure is not None
    assert view.steps["review"].failure.type == JOIN_DECIDED
    tell(view, ended("first"))
    assert end_of(view.graph, view.steps).outcome == "succeeded"


@pytest.mark.requirement("dag.join")
def test_what_a_join_does_without_fails_no_run() -> None:
    def outcome(policy: Policy | None, fates: Iterable[End], last: End) -> str:
        view = view_of(join_of(policy))
        tell(view, *(ended(f"r{n}", fate) for n, fate in enumerate(fates)), ended("join", last))
        return end_of(view.graph, view.steps).outcome

    mixed: Sequence[End] = (End.SUCCEEDED, End.SUCCEEDED, End.FAILED)
    assert outcome(TWO, mixed, End.SUCCEEDED) == "succeeded"
    assert outcome(TWO, mixed, End.FAILED) == "failed"
    assert outcome(COLLECT, [End.FAILED] * 3, End.SUCCEEDED) == "succeeded"
    assert outcome(ALL, mixed, End.SUCCEEDED) == "failed"


@pytest.mark.requirement("dag.expand")
def test_no_join_is_decided_before_what_it_counts_is_sealed() -> None:
    leave = Policy(1, OnFailure.COUNT, Rest.LEAVE)
    graph = build_graph(
        [node("x"), node("plan"), node("review", "plan", for_each="2"), node("any", "x", "review", policy=leave)], ""
    )
    view = view_of(graph)
    tell(view, ended("x"))
    assert view.steps["any"].state == StepState.PENDING, "nobody knows yet of how many it is one"
    tell(view, ended("plan"))
    assert view.steps["any"].state == StepState.READY


@pytest.mark.requirement("dag.join")
def test_a_step_that_was_in_doubt_before_it_lost_is_waited_for() -> None:
    view = view_of(join_of(ANY, points=1))
    finish_attempt(view, replace(ended("r0", End.UNCERTAIN), unresolved={"push": 1}), {}, 0)
    tell(view, ended("r1"))
    assert (view.steps["r0"].state, view.steps["r0"].stopping) == (StepState.WAITING, True)
    tell(view, ended("r2", End.CANCELLED))
    assert view.steps["join"].state == StepState.PENDING, "nobody knows yet what its effect did"
    resolve_effect(view, EffectFact("r0", "push", "observed", 2))
    assert (view.steps["r0"].state, view.steps["join"].state) == (StepState.CANCELLED, StepState.READY)


@pytest.mark.requirement("dag.join")
@pytest.mark.requirement("step.wait")
def test_losers_that_wait_are_over_at_once_and_wake_no_more() -> None:
    view = view_of(join_of(ANY))
    view.waits["r0", "nap"] = begin_wait(Asked("r0", "nap", Kind.TIMER, for_ms=50), 0)
    finish_attempt(view, replace(ended("r0", End.YIELDED), awaits=("nap",)), {}, 0)
    tell(view, ended("r1"))
    assert (view.steps["r0"].state, view.steps["r0"].retry_at_ms) == (StepState.CANCELLED, 0)
    retry_due(view, "r0", 100)
    assert view.steps["r0"].state == StepState.CANCELLED


@pytest.mark.requirement("dag.join")
@pytest.mark.requirement("dag.expand")
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_graph_that_stops_and_multiplies_comes_to_an_end(data: st.DataObject) -> None:
    """Random layers with every policy, points, conditions, lists and doubts, facts and withdrawals in any order: nothing hangs,
    nothing acts behind a loser that may still act, and nothing that is over moves again."""
    policies = [*PRESETS.values(), Policy(1, OnFailure.COUNT, Rest.LEAVE), Policy(0, OnFailure.FAIL, Rest.AWAIT), None, None]
    nodes = [node(f"a{n}", points=data.draw(st.integers(0, 1))) for n in range(data.draw(st.integers(1, 3)))]
    for layer in "bcd":
        before = [found.key for found in nodes]
        for n in range(data.draw(st.integers(1, 2))):
            keys = data.draw(st.lists(st.sampled_from(before), min_size=1, max_size=4, unique=True))
            needs = [Need(key, data.draw(st.sampled_from([When.SUCCESS, When.SUCCESS, *When]))) for key in keys]
            nodes.append(
                node(
                    f"{layer}{n}",
                    *needs,
                    policy=data.draw(st.sampled_from(policies)),
                    points=data.draw(st.integers(0, 1)),
                    attempts=data.draw(st.integers(1, 2)),
                    condition=data.draw(st.sampled_from(["", "", "", "true", "false", "broken"])),
                    for_each=data.draw(st.sampled_from(["", "", "0", "1", "3", "broken"])),
                )
            )
    graph = build_graph(nodes, "")
    view = view_of(graph)
    doubts: list[tuple[str, str]] = []
    over: dict[str, StepState] = {}
    begun: set[str] = set()
    for _ in range(500):
        check_stopped(view, over, begun)
        withdrawn = [("withdrawn", key) for key in view.revoked]
        ready = [("end", key) for key, step in view.steps.items() if step.state in (StepState.READY, StepState.CANCELLING)]
        late = [("retry", key) for key, step in view.steps.items() if step.wait_reason == "retry_backoff"]
        moves = [*withdrawn, *ready, *late, *(("known", key) for key, _ in doubts)]
        if not moves:
            break
        what, key = data.draw(st.sampled_from(moves))
        step = view.steps[key]
        if what == "withdrawn":
            sequence = view.revoked.pop(key)
            tell(view, ended(key, End.CANCELLED, sequence))
        elif what == "retry":
            retry_due(view, key, 2**60)
        elif what == "known":
            slot = next(slot for name, slot in doubts if name == key)
            doubts.remove((key, slot))
            resolve_effect(view, EffectFact(key, slot, "absent", 2))
        else:
            end = data.draw(st.sampled_from([End.SUCCEEDED, End.SUCCEEDED, End.FAILED, End.LOST, End.UNCERTAIN]))
            fact = ended(key, end, step.ticket_sequence)
            if end == End.UNCERTAIN:
                slot = f"s{step.ticket_sequence}"
                doubts.append((key, slot))
                fact = replace(fact, unresolved={slot: 1})
            tell(view, fact, fact)
    assert view.finished, {key: step.state.name for key, step in view.steps.items() if not step.over}
    end_of(graph, view.steps)


def check_stopped(view: RunView, over: dict[str, StepState], begun: set[str]) -> None:
    """What is over stays so; no step begins behind a join that stops the rest while a loser of it may still act."""
    for key, step in view.steps.items():
        assert over.get(key, step.state) == step.state
        if step.over:
            over[key] = step.state
        found = view.node(key)
        begins = step.state == StepState.READY and key in view.graph.nodes and key not in begun
        if not begins:
            continue
        begun.add(key)
        if found.joins.rest is Rest.CANCEL:
            for need in found.needs:
                for before in (view.steps[need.step], *view.instances(need.step)):
                    assert not (before.stopping and view.node(before.key).contract.points), (key, before.key)


@pytest.mark.requirement("dag.join")
def test_a_join_far_behind_a_loser_goes_on_when_that_is_over() -> None:
    """The loser is no neighbour of the join: what lay between them was stopped at once."""
    for end in (End.CANCELLED, End.SUCCEEDED):
        far = [node("a"), node("b", points=1), node("c", points=1), node("both", "b", "c", policy=ALL)]
        view = view_of(build_graph([*far, node("any", "a", "both", policy=ANY)], ""))
        tell(view, ended("a"))
        assert view.steps["both"].state == StepState.CANCELLED
        assert view.steps["any"].state == StepState.PENDING
        tell(view, ended("b", end))
        assert view.steps["any"].state == StepState.PENDING
        tell(view, ended("c", end))
        assert view.steps["any"].state == StepState.READY
