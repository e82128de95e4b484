"""Joins by policy: the same decision under any order and repetition of facts; what is stopped, and who waits for that."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.readiness.domain.graph import Contract, Graph, Join, Need, Node, OnFailure, Policy, Rest, Retry, When, build_graph
from services.readiness.domain.state import JOIN_DECIDED, Output, Unusable
from services.readiness.domain.steps import (
    AttemptFact,
    EffectFact,
    End,
    FailureFacts,
    RunView,
    StepState,
    begin,
    begin_roots,
    end_of,
    finish_attempt,
    resolve_effect,
    retry_due,
)
from services.readiness.domain.waits import Asked, Kind, begin_wait

ALL = Policy(0, OnFailure.COUNT, Rest.AWAIT)
FAIL_FAST = Policy(0, OnFailure.FAIL, Rest.CANCEL)
ANY = Policy(1, OnFailure.COUNT, Rest.CANCEL)
TWO = Policy(2, OnFailure.COUNT, Rest.AWAIT)
QUORUM = Policy(0, OnFailure.COUNT, Rest.CANCEL, majority=True)
COLLECT = Policy(0, OnFailure.IGNORE, Rest.AWAIT)
PRESETS = {"all": ALL, "fail_fast": FAIL_FAST, "any": ANY, "two": TWO, "quorum": QUORUM, "collect": COLLECT}


class Said:
    """Expressions as the tests write them: `true`, `false`, `broken`, `N items`, `output is true`."""

    def holds(self, expression: str, run_input: bytes, outputs: Mapping[str, Output], step: Mapping[str, object]) -> bool:
        if expression == "broken":
            raise Unusable("there is no key 'x'")
        return expression == "true" or (expression == "output is true" and b"true" in outputs.values())

    def items(
        self, expression: str, run_input: bytes, outputs: Mapping[str, Output], step: Mapping[str, object]
    ) -> list[bytes]:
        if expression == "broken":
            raise Unusable("it gives a text, and no list")
        return [b"%d" % number for number in range(int(expression))]

    def asked(self, payload: bytes) -> list[bytes]:
        return payload.split(b",") if payload else []


def node(
    key: str, *needs: str | Need, policy: Policy | None = None, points: int = 0, attempts: int = 1, **more: object
) -> Node:
    contract = Contract(f"w.{key}@1", 0, 0, (), (), False, (), points)
    edges = tuple(need if isinstance(need, Need) else Need(need, When.SUCCESS) for need in needs)
    made = Node(key, edges, Join.ALL, Retry(attempts, 0, 1.0, 0, frozenset({"attempt"})), contract, "", policy)
    return replace(made, **more)  # type: ignore[arg-type]


def view_of(graph: Graph, max_steps: int = 0) -> RunView:
    view = RunView(UUID(int=77), graph, begin(graph), expressions=Said(), max_steps=max_steps)
    begin_roots(view)
    return view


def ended(key: str, end: End = End.SUCCEEDED, ticket: int = 1, output: bytes = b"true") -> AttemptFact:
    failure = FailureFacts("attempt", "boom", "ValueError") if end != End.SUCCEEDED else None
    return AttemptFact(key, ticket, end, output if end == End.SUCCEEDED else b"", failure, {})


def tell(view: RunView, *facts: AttemptFact) -> None:
    for fact in facts:
        finish_attempt(view, fact, {}, 0)


def stop_all(view: RunView) -> None:
    """The scheduler says of everything that was withdrawn that it is over."""
    while view.revoked:
        key, sequence = view.revoked.popitem()
        tell(view, AttemptFact(key, sequence, End.CANCELLED, b"", FailureFacts("attempt", "withdrawn", "REVOKED"), {}))


def join_of(policy: Policy | None, count: int = 3, points: int = 0) -> Graph:
    roots = [node(f"r{n}", points=points) for n in range(count)]
    return build_graph([*roots, node("join", *(f"r{n}" for n in range(count)), policy=policy)], "")


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
def test_a_loser_in_doubt_is_waited_for_until_its_effects_are_known() -> None:
    view = view_of(join_of(ANY, points=1))
    tell(view, ended("r1"))
    finish_attempt(view, replace(ended("r0", End.UNCERTAIN), unresolved={"push": 1}), {}, 0)
    tell(view, ended("r2", End.LOST))
    assert view.steps["r2"].state == StepState.CANCELLED, "a loser is not tried again"
    assert view.steps["r0"].state == StepState.WAITING
    assert view.steps["join"].state == StepState.PENDING
    resolve_effect(view, EffectFact("r0", "push", "observed", 2))
    assert view.steps["r0"].state == StepState.CANCELLED
    assert view.steps["join"].state == StepState.READY


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
