"""How a guard is taken out of what a process has loaded: a statement that reads differently, or a function that is another.

Can go wrong: a guard that is not where it was. Whatever is replaced must be found.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from libs.pg import Queries, Statement
from tests.simulation import operation


@dataclass(frozen=True, slots=True)
class Mutant:
    """A guard, and how it is taken out."""

    what: str
    apply: Callable[[], None]
    day: str
    """The directed day that finds it."""
    reason: str
    """What is then said to be broken."""


def queries(module: Any, name: str) -> Queries:
    """The file of statements, of those that a module has, that knows this one."""
    for found in vars(module).values():
        if isinstance(found, Queries) and any(statement.name == name for statement in found):
            return found
    raise AssertionError(f"{module.__name__} has no statement {name}")


def swap(module: Any, name: str, old: str, new: str) -> Callable[[], None]:
    def apply() -> None:
        found = queries(module, name)
        before = getattr(found, name).sql
        assert old in before, f"{name} reads differently now"
        changed = Statement(name, before.replace(old, new))
        found._statements[name] = changed
        operation.CHANGED[changed.sql] = name

    return apply


def untriggered(trigger: str, table: str) -> Callable[[], None]:
    """Without a table's own guard."""

    def apply() -> None:
        operation.UNGUARDED.append(f"DROP TRIGGER {trigger} ON {table};")

    return apply


def both(*applied: Callable[[], None]) -> Callable[[], None]:
    def apply() -> None:
        for one in applied:
            one()

    return apply
