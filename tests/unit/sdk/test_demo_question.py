"""The demo's question: a typo is no answer, and nothing typed is a no."""

import pytest

from libs.cli.demo.approving import yes_or_no

pytestmark = pytest.mark.requirement("ux.dev")


@pytest.mark.parametrize(
    ("typed", "said"),
    [(["y"], True), (["YES "], True), (["n"], False), ([""], False), (["yy", "yed", "y"], True), (["ok", "no"], False)],
)
def test_what_is_typed_is_understood_or_asked_again(typed: list[str], said: bool) -> None:
    asked: list[str] = []

    def answer(question: str) -> str:
        asked.append(question)
        return typed[len(asked) - 1]

    assert yes_or_no("push? [y/N] ", answer) is said
    assert len(asked) == len(typed)
    assert [word in question for word, question in zip(typed, asked[1:], strict=False)] == [True] * (len(typed) - 1)


def test_the_end_of_what_is_typed_is_a_no() -> None:
    def nobody(question: str) -> str:
        raise EOFError

    assert yes_or_no("push? [y/N] ", nobody) is False
