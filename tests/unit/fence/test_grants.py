"""What is left of a grant once something is taken: entries that take away only ever come to it."""

from hypothesis import given
from hypothesis import strategies as st

from libs.fence.grants import Revoked, allows, grants, narrowed, revocation_of, revoked_of
from libs.fence.rules import rule_text

NAMES = ("tool:a", "tool:b", "tool:*", "model:m", "model:*")
RULE = rule_text("act", "a", 1, 0, "p" * 64)


def taken(*capabilities: str) -> list[Revoked]:
    return [Revoked(capability, 5, "key:olga: night shift") for capability in capabilities]


def test_one_of_all_is_an_exception() -> None:
    grant = narrowed(("tool:*", RULE), taken("tool:a"))
    assert (allows(grant, "tool:a"), allows(grant, "tool:b"), RULE in grant) == (False, True, True)
    assert revocation_of(grant, "tool:a") == Revoked("tool:a", 5, "key:olga: night shift")
    assert all(" " not in entry and "\n" not in entry for entry in grant)


def test_all_of_a_kind_takes_each() -> None:
    grant = narrowed(("tool:a", "tool:b", "model:m"), taken("tool:a", "tool:*"))
    assert [entry for entry in grant if grants(entry)] == ["model:m"]
    assert [one.capability for one in revoked_of(grant)] == ["tool:a", "tool:*"]
    assert narrowed(grant, taken("tool:*", "tool:b", "tool:a")) == grant


def test_what_was_never_held_changes_nothing() -> None:
    assert narrowed(("tool:a",), taken("tool:b", "model:*")) == ("tool:a",)


@given(
    st.lists(st.sampled_from(NAMES), unique=True),
    st.lists(st.lists(st.sampled_from(NAMES), max_size=3), max_size=4),
)
def test_a_grant_only_ever_narrows(held: list[str], orders: list[list[str]]) -> None:
    grant: tuple[str, ...] = (*held, RULE)
    gone: set[str] = set()
    for order in orders:
        before = {name for name in ("tool:a", "tool:b", "model:m") if allows(grant, name)}
        grant = narrowed(grant, taken(*order))
        gone |= {name for name in before if {name, name.partition(":")[0] + ":*"} & set(order)}
        after = {name for name in ("tool:a", "tool:b", "model:m") if allows(grant, name)}
        assert after == before - gone
        assert RULE in grant
