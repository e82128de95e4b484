"""The protocols as models: within small bounds each holds, and each mutant breaks a rule. `make models` searches further.

Can go wrong: a mutant that nothing catches. Then the model does not model what the guard is for, and the test is red.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from tests.models.catalogue import MODELS, verdict
from tests.models.explorer import Broken, Model, Move, explore

CASES = [(name, mutant) for name, model in MODELS.items() for mutant in ("", *model.mutants) if mutant not in model.costly]


@pytest.mark.requirement("ops.drills")
@pytest.mark.parametrize(("name", "mutant"), CASES)
def test_the_protocol_holds_and_each_guard_is_needed(name: str, mutant: str) -> None:
    found = verdict(MODELS[name], mutant)
    assert not found.wrong, found.wrong


class Walk(Model[int]):
    """Counts up; `flaw` is where something is wrong."""

    name = "walk"
    about = "the explorer itself"
    mutants: ClassVar[Mapping[str, str]] = {"rule": "", "move": "", "trap": ""}

    def initial(self) -> int:
        return 0

    def moves(self, state: int) -> Any:
        if state == 3 and self.without("move"):
            yield Move("falls", Broken("a move that may not be"))
        if state < 5 and not (state == 4 and self.without("trap")):
            yield Move(f"to {state + 1}", state + 1)
        if state == 4:
            yield Move("by luck", 5, fair=False)

    def broken(self, state: int) -> str:
        return "five" if state == 5 and self.without("rule") else ""

    def goals(self) -> Any:
        return {"five": lambda state: state == 5}


def test_the_explorer_finds_rules_moves_and_traps_by_the_shortest_way() -> None:
    plain = explore(Walk())
    assert (plain.violation, plain.states, plain.depth, plain.complete) == (None, 6, 5, True)
    for mutant, rule, steps in (("rule", "five", 5), ("move", "a move that may not be", 4), ("trap", "out of reach: five", 0)):
        found = explore(Walk(mutant)).violation
        assert found is not None
        assert (found.rule, len(found.trace)) == (rule, steps)


def test_a_search_that_is_cut_short_proves_nothing() -> None:
    assert not explore(Walk(), limit=3).complete
