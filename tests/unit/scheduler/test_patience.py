"""An end is told without haste only where everything that follows it was ticketed, and nothing else follows."""

from typing import Any, cast
from uuid import UUID

import pytest

from services.scheduler.app.continue_runs import Continuation, carries_on
from services.scheduler.domain.ticket import Contract, Successor

KEY = (UUID(int=1), "a")
CONTRACT = cast(Contract, None)


@pytest.mark.parametrize(
    ("told", "successors", "patient"),
    [
        (["b"], (Successor("b", CONTRACT, 1, True),), True),
        (["b"], (Successor("b", CONTRACT, 1, False),), False),
        ([], (Successor("b", CONTRACT, 1, True),), False),
        (["b"], (Successor("b", CONTRACT, 1, True), Successor("c", CONTRACT, 1, True)), False),
        (["b", "c"], (Successor("b", CONTRACT, 1, True), Successor("c", CONTRACT, 1, True)), True),
    ],
)
def test_readiness_is_hurried_unless_nothing_is_left_to_it(told: list[str], successors: Any, patient: bool) -> None:
    work = Continuation({KEY: (cast(Any, None), successors)})
    if told:
        work.told[KEY] = told
    assert carries_on(work, KEY) is patient


def test_a_step_of_which_nothing_is_known_is_told_at_once() -> None:
    assert not carries_on(Continuation({}), KEY)
