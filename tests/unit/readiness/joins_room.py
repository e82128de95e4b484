"""Graphs, expressions and ends of attempts for tests of joins."""

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from services.readiness.domain.graph import Contract, Graph, Join, Need, Node, OnFailure, Policy, Rest, Retry, When, build_graph
from services.readiness.domain.state import Output, Unusable
from services.readiness.domain.steps import (
    AttemptFact,
    End,
    FailureFacts,
    RunView,
    begin,
    begin_roots,
    finish_attempt,
)

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
