"""Authors' expressions: what may be published, what they give, and that none of them takes long."""

import string
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.rpc.expressions import MAX_CHARACTERS, MAX_MACRO_NODES, Unusable, evaluate, flaws, steps_named


@pytest.mark.requirement("dag.conditions")
@pytest.mark.parametrize(
    ("expression", "flaw"),
    [
        ("steps.a.ok && run.n > 1 || step.key == 'x'", ""),
        ("run.l.exists(x, x.ok) && size(steps['a-b']) > 2", ""),
        ("'matches(' == run.x || run.y == \"it's\" || run.z == ''", ""),
        ("run.x.matches('^a')", ""),
        ("1 +", "is no CEL expression"),
        ("", "is no CEL expression"),
        ("lst > 3", "names 'lst'"),
        ("timestamp(run.at).getHours() < 9 && string(run.n).endsWith('1') && max(run.a, 2) == 2", ""),
        ("now() > 3", "calls 'now'"),
        ("[1].all(x, [2].all(y, y > x))", "inside another"),
        ("run.l.all(x, x.matches('a'))", "inside another"),
        ("run.l.all(x, true)" + " && run.l.all(x, true)" * 4, "at most 4"),
        ("1" + " + 1" * 17, "at most 16"),
        ("r'\\' == run.x", "plain texts"),
        ("'''a''' == run.x", "plain texts"),
        ("b'a' == run.x", "plain texts"),
        ("'" + "a" * MAX_CHARACTERS + "'", "at most 1000"),
        ("(" * 300 + "1" + ")" * 300, "is no CEL expression"),
    ],
)
def test_what_may_be_published(expression: str, flaw: str) -> None:
    found = flaws(expression)
    assert (flaw in " ".join(found)) if flaw else not found


@pytest.mark.requirement("dag.conditions")
def test_what_an_expression_names() -> None:
    assert steps_named("steps.a.steps.c > 1 && steps['b-c'] == 'steps.d' && run.steps.e") == {"a", "b-c"}
    assert steps_named("steps[run.x]") is None
    assert steps_named("size(steps)") is None


@pytest.mark.requirement("dag.conditions")
@pytest.mark.parametrize(
    ("expression", "data", "cause"),
    [
        ("steps.a", {"steps": {}}, "there is no key 'a'"),
        ("run.n + 1", {"run": {"n": "x"}}, "TypeError"),
        ("run[4]", {"run": [1]}, "IndexError"),
        ("1 / run", {"run": 0}, "ZeroDivisionError"),
        ("run.map(x, x)", {"run": list(range(MAX_MACRO_NODES))}, "2000 are the most"),
        ("size(run) > 1", {"run": "x" * 2**21}, "1048576 are the most"),
        ("now()", {}, "now"),
    ],
)
def test_what_gives_nothing_says_why(expression: str, data: dict[str, object], cause: str) -> None:
    with pytest.raises(Unusable, match=cause):
        evaluate(expression, data)


@pytest.mark.requirement("dag.conditions")
def test_none_takes_long() -> None:
    """The worst that may be published, over the most that it may look at."""
    numbers = list(range(MAX_MACRO_NODES - 3))
    large = {"run": "a" * 900_000}
    began = time.perf_counter()
    for expression in (
        "run.map(x, x).filter(x, x in run).map(x, [x, x])",
        "run.filter(x, x in run && size(run) > x).all(x, x in run)",
        "run.map(x, string(x) + string(x)).all(x, x != '')",
    ):
        assert not flaws(expression)
        evaluate(expression, {"run": numbers})
    for expression in (" + ".join(["run"] * 16) + " != ''", "run.matches('(a+)+$') && run.contains('aaab') == false"):
        assert not flaws(expression)
        evaluate(expression, large)
    assert time.perf_counter() - began < 10


@pytest.mark.requirement("dag.conditions")
@settings(max_examples=200, deadline=None)
@given(
    st.text(alphabet=string.printable + "é\0", max_size=60) | st.text(alphabet="runstep.[]()'\"+-*/!&|?:,x1 \\", max_size=60)
)
def test_nonsense_is_refused_or_evaluated_and_nothing_else(expression: str) -> None:
    if flaws(expression):
        return
    try:
        evaluate(expression, {"run": {"n": 1}, "steps": {"s": [1, "a"]}, "step": {"key": "k"}})
    except Unusable as error:
        assert str(error)  # noqa: PT017
