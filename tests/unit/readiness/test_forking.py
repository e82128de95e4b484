"""What a run takes over of an ended one: closed under what follows, for any graph and any end."""

from hypothesis import given
from hypothesis import strategies as st

from services.readiness.domain.forking import kept
from services.readiness.domain.graph import Contract, Join, Need, Node, Retry, When, build_graph
from services.readiness.domain.state import Step, StepState

ENDS = [*[StepState.SUCCEEDED] * 6, StepState.FAILED, StepState.SKIPPED, StepState.CANCELLED]
CONTRACT = Contract("h", 0, 0, (), (), False, (), 0)


def node(key: str, needs: list[str], template: str = "") -> Node:
    edges = tuple(Need(name, When.ALWAYS) for name in needs)
    return Node(key, edges, Join.ALL, Retry(1, 1, 1.0, 1, frozenset()), CONTRACT, "", template=template)


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Node], dict[str, Step], list[str]]:
    keys = [f"s{number}" for number in range(draw(st.integers(3, 8)))]
    nodes = [node(key, draw(st.lists(st.sampled_from(keys[:at]), unique=True)) if at else []) for at, key in enumerate(keys)]
    former = {key: Step(key, draw(st.sampled_from(ENDS)), ticket_sequence=3, attempts=2, output=b"o") for key in keys}
    return nodes, former, draw(st.lists(st.sampled_from(keys), unique=True))


@given(runs())
def test_what_is_kept_needs_nothing_that_runs_again(made: tuple[list[Node], dict[str, Step], list[str]]) -> None:
    nodes, former, from_steps = made
    taken = kept(build_graph(nodes, ""), former, from_steps)
    assert not taken.keys() & set(from_steps)
    for one in nodes:
        if one.key in taken:
            assert all(need.step in taken for need in one.needs)
            state = former[one.key].state
            assert state != StepState.CANCELLED
            assert from_steps or state != StepState.FAILED
            assert (taken[one.key].output, taken[one.key].ticket_sequence) == (b"o", 0)


@given(runs())
def test_nothing_runs_again_without_a_reason(made: tuple[list[Node], dict[str, Step], list[str]]) -> None:
    nodes, former, from_steps = made
    taken = kept(build_graph(nodes, ""), former, from_steps)
    whole = (StepState.SUCCEEDED, StepState.SKIPPED, *([StepState.FAILED] if from_steps else []))
    for one in nodes:
        named = one.key in from_steps or former[one.key].state not in whole
        assert one.key in taken or named or any(need.step not in taken for need in one.needs)


def test_who_asks_for_instances_asks_again_and_what_follows_it_runs_again_too() -> None:
    nodes = [node("plan", [], template="work"), node("work", ["plan"]), node("note", ["plan"]), node("apart", [])]
    former = {key: Step(key, StepState.SUCCEEDED) for key in ("plan", "work", "work[0]", "work[1]", "note", "apart")}
    assert kept(build_graph(nodes, ""), former, ["work"]).keys() == {"apart"}
    assert kept(build_graph(nodes, ""), former, ["note"]).keys() == {"plan", "work", "work[0]", "work[1]", "apart"}
