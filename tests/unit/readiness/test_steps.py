"""What moves a step: any order and repetition of facts gives the same result; retries, joins, reconciliation."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.readiness.domain.graph import Contract, Graph, Join, Need, Node, Retry, When, build_graph
from services.readiness.domain.steps import (
    TERMINAL,
    AttemptFact,
    EffectFact,
    End,
    FailureFacts,
    RunView,
    Step,
    StepState,
    backoff_ms,
    begin,
    close,
    end_of,
    finish_attempt,
    needs_ticket,
    refuse_oversized,
    resolve_effect,
    retry_due,
    too_early,
)

RUN = UUID(int=77)
RETRY = Retry(3, 200, 2.0, 1000, frozenset({"transient", "attempt"}))


def node(key: str, *needs: tuple[str, When], join: Join = Join.ALL, retry: Retry = RETRY) -> Node:
    contract = Contract(f"w.{key}@1", 0, 0, (), (), False, (), 0)
    return Node(key, tuple(Need(name, when) for name, when in needs), join, retry, contract, "")


def graph(*nodes: Node) -> Graph:
    return build_graph(list(nodes), "")


def view_of(graph_: Graph) -> RunView:
    return RunView(RUN, graph_, begin(graph_))


def ended(key: str, end: End = End.SUCCEEDED, ticket: int = 1, failure_class: str = "attempt") -> AttemptFact:
    failure = FailureFacts(failure_class, "boom", "ValueError") if end != End.SUCCEEDED else None
    return AttemptFact(key, ticket, end, b"out-" + key.encode(), failure, {})


def apply(view: RunView, *facts: AttemptFact, now: int = 0) -> None:
    for fact in facts:
        finish_attempt(view, fact, {}, now)


DIAMOND = graph(
    node("a"),
    node("b", ("a", When.SUCCESS)),
    node("c", ("a", When.SUCCESS)),
    node("d", ("b", When.SUCCESS), ("c", When.SUCCESS)),
)


@pytest.mark.requirement("dag.ready")
def test_a_join_is_ready_when_all_its_needs_hold_and_not_before() -> None:
    view = view_of(DIAMOND)
    assert [step.key for step in view.steps.values() if step.state == StepState.READY] == ["a"]
    apply(view, ended("a"), ended("b"))
    assert view.steps["d"].state == StepState.PENDING
    apply(view, ended("c"))
    assert (view.steps["d"].state, view.steps["d"].ticket_sequence) == (StepState.READY, 1)


@pytest.mark.requirement("dag.ready")
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_order_and_repetition_gives_the_same_end(data: st.DataObject) -> None:
    fates = {key: data.draw(st.sampled_from([End.SUCCEEDED, End.FAILED]), label=key) for key in "abcde"}
    whens = st.sampled_from(list(When))
    made = graph(
        node("a", retry=Retry(1, 1, 1, 1, frozenset())),
        node("b", retry=Retry(1, 1, 1, 1, frozenset())),
        node("c", ("a", data.draw(whens)), ("b", data.draw(whens)), join=data.draw(st.sampled_from(list(Join)))),
        node("d", ("b", data.draw(whens))),
        node("e", ("c", data.draw(whens)), ("d", data.draw(whens)), join=data.draw(st.sampled_from(list(Join)))),
    )
    single = {
        key: Node(n.key, n.needs, n.join, Retry(1, 1, 1, 1, frozenset()), n.contract, "") for key, n in made.nodes.items()
    }
    made = build_graph(list(single.values()), "")

    def play(order: list[str]) -> dict[str, tuple[StepState, int]]:
        view = view_of(made)
        pending = list(order)
        while any(step.state not in TERMINAL for step in view.steps.values()):
            ready = [key for key in pending if view.steps[key].state == StepState.READY]
            assert ready, "nothing is ready and the graph is not finished"
            key = ready[0]
            for _ in range(data.draw(st.integers(1, 2))):
                apply(view, ended(key, fates[key]))
            apply(view, ended(key, End.LOST, ticket=9))
        return {key: (step.state, step.ticket_sequence) for key, step in view.steps.items()}

    assert play(list("abcde")) == play(data.draw(st.permutations(list("abcde"))))


@pytest.mark.requirement("dag.ready")
def test_conditions_failure_always_and_any() -> None:
    made = graph(
        node("work", retry=Retry(1, 1, 1, 1, frozenset())),
        node("mend", ("work", When.FAILURE)),
        node("tell", ("work", When.ALWAYS)),
        node("next", ("work", When.SUCCESS)),
        node("after", ("mend", When.SUCCESS), ("next", When.SUCCESS), join=Join.ANY),
    )
    view = view_of(made)
    apply(view, ended("work", End.FAILED))
    states = {key: step.state for key, step in view.steps.items()}
    assert (states["mend"], states["tell"], states["next"]) == (StepState.READY, StepState.READY, StepState.SKIPPED)
    apply(view, ended("mend"))
    assert view.steps["after"].state == StepState.READY
    apply(view, ended("tell"), ended("after"))
    assert view.finished
    assert end_of(made, view.steps).outcome == "succeeded", "the failure was taken up and mended"


@pytest.mark.requirement("step.retry")
def test_failures_are_retried_by_class_with_growing_backoff_and_then_fail() -> None:
    view = view_of(graph(node("a")))
    waits = []
    for ticket in (1, 2):
        apply(view, ended("a", End.FAILED, ticket), now=1000)
        step = view.steps["a"]
        assert (step.state, step.wait_reason) == (StepState.WAITING, "retry_backoff")
        waits.append(step.retry_at_ms - 1000)
        retry_due(view, "a", step.retry_at_ms - 1)
        assert view.steps["a"].state == StepState.WAITING
        retry_due(view, "a", step.retry_at_ms)
        assert (view.steps["a"].state, view.steps["a"].ticket_sequence) == (StepState.READY, ticket + 1)
    assert 150 <= waits[0] <= 200
    assert 300 <= waits[1] <= 400
    apply(view, ended("a", End.FAILED, 3))
    assert view.steps["a"].state == StepState.FAILED
    assert end_of(view.graph, view.steps).failed_step == "a"


@pytest.mark.requirement("step.retry")
@pytest.mark.parametrize("failure_class", ["policy", "validation"])
def test_what_policy_does_not_name_is_never_retried(failure_class: str) -> None:
    view = view_of(graph(node("a")))
    apply(view, ended("a", End.FAILED, failure_class=failure_class))
    assert view.steps["a"].state == StepState.FAILED


@pytest.mark.requirement("step.retry")
def test_a_lost_attempt_is_retried_whatever_the_policy_names_inside_its_attempts() -> None:
    view = view_of(graph(node("a", retry=Retry(2, 10, 2, 10, frozenset()))))
    apply(view, ended("a", End.LOST))
    assert view.steps["a"].state == StepState.WAITING
    retry_due(view, "a", 10**9)
    apply(view, ended("a", End.LOST, 2))
    assert view.steps["a"].state == StepState.FAILED


@pytest.mark.requirement("step.retry")
def test_backoff_is_capped() -> None:
    assert backoff_ms(RUN, node("a"), 60) <= 1000


def test_a_yield_costs_no_attempt() -> None:
    view = view_of(graph(node("a")))
    apply(view, ended("a", End.YIELDED))
    assert (view.steps["a"].state, view.steps["a"].ticket_sequence, view.steps["a"].attempts) == (StepState.READY, 2, 0)


@pytest.mark.requirement("step.retry")
@pytest.mark.requirement("fx.unknown")
@pytest.mark.parametrize("first", ["uncertain", "resolved"])
def test_an_uncertain_end_waits_for_each_slot_whichever_news_comes_first(first: str) -> None:
    view = view_of(graph(node("a")))
    doubt = AttemptFact("a", 1, End.UNCERTAIN, b"", None, {"push": 2, "mail": 5})
    push = EffectFact("a", "push", "observed", 3)
    if first == "uncertain":
        finish_attempt(view, doubt, {}, 0)
        resolve_effect(view, push)
    else:
        resolve_effect(view, push)
        finish_attempt(view, doubt, {"push": 3}, 0)
    assert view.steps["a"].state == StepState.WAITING
    assert view.steps["a"].pending == {"mail": 5}
    resolve_effect(view, EffectFact("a", "mail", "needs_reconciliation", 6))
    resolve_effect(view, EffectFact("a", "mail", "succeeded", 5))
    assert view.steps["a"].state == StepState.WAITING, "a person's case, or older news, resolves nothing"
    resolve_effect(view, EffectFact("a", "mail", "absent", 7))
    assert (view.steps["a"].state, view.steps["a"].ticket_sequence) == (StepState.READY, 2)


@pytest.mark.requirement("dag.ready")
def test_a_closed_run_readies_nothing_more() -> None:
    view = view_of(DIAMOND)
    apply(view, ended("a"))
    close(view)
    apply(view, ended("b"), ended("c"))
    assert {step.state for step in view.steps.values()} == {StepState.SUCCEEDED, StepState.CANCELLED}
    assert end_of(DIAMOND, view.steps).outcome == "cancelled"


def test_versions_rise_once_a_transaction() -> None:
    view = view_of(DIAMOND)
    apply(view, ended("a"))
    assert {key: step.version for key, step in view.touched.items()} == {"a": 2, "b": 2, "c": 2}
    assert isinstance(view.touched["a"], Step)


def test_a_step_whose_input_no_ticket_carries_fails_and_what_needs_it_is_skipped() -> None:
    view = view_of(DIAMOND)
    apply(view, ended("a"))
    refuse_oversized(view, 100, 105)
    assert view.steps["b"].state == StepState.READY
    apply(view, ended("b"), ended("c"))
    refuse_oversized(view, 100, 109)
    failed = view.steps["d"]
    assert (failed.state, failed.failure and failed.failure.type) == (StepState.FAILED, "TOO_LARGE")
    assert end_of(DIAMOND, view.steps).outcome == "failed"
    chain = graph(node("a"), node("b", ("a", When.SUCCESS)), node("c", ("b", When.SUCCESS)))
    view = view_of(chain)
    apply(view, ended("a"))
    refuse_oversized(view, 0, 1)
    assert [step.state for step in view.steps.values()] == [StepState.SUCCEEDED, StepState.FAILED, StepState.SKIPPED]


def test_only_what_needs_the_one_success_and_nothing_else_follows_by_it_alone() -> None:
    made = graph(
        node("a"),
        node("b", ("a", When.SUCCESS)),
        node("c", ("a", When.ALWAYS)),
        node("d", ("a", When.FAILURE)),
        node("e", ("a", When.SUCCESS), ("b", When.SUCCESS)),
    )
    assert [after.key for after in made.followers("a")] == ["b", "c"]
    promised = replace(made.nodes["a"], output_schema="{}")
    assert build_graph([promised, *(made.nodes[key] for key in "bcde")], "").followers("a") == ()


def test_an_end_is_too_early_while_the_step_before_is_not_ended() -> None:
    view = view_of(DIAMOND)
    assert too_early(view, ended("b"))
    assert not too_early(view, ended("a"))
    assert too_early(view, ended("a", ticket=2)), "what its first attempt came to has to be told again"
    apply(view, ended("a"))
    assert not too_early(view, ended("a", ticket=2)), "it is over"
    assert not too_early(view, ended("b"))
    close(view)
    assert not too_early(view, ended("d"))


def test_a_step_that_was_continued_needs_no_first_ticket() -> None:
    view = view_of(DIAMOND)
    apply(view, replace(ended("a"), continued=frozenset({"b"})))
    assert [key for key in "bc" if needs_ticket(view, view.steps[key])] == ["c"]
    apply(view, ended("b", End.YIELDED))
    assert needs_ticket(view, view.steps["b"]), "its second ticket is readiness' own"
