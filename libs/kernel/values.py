"""Authoritative for what a value is: a dataclass that nobody changes after it was made.

The type checker holds that (`frozen=True`, mypy strict, in the tests). At run time the class is an ordinary one with a hash: a
frozen one assigns each field by a call, three times as slow, and a step of a run passes through some hundred fields.

Can go wrong: code that no type checker sees and that assigns to a field. There is none, and a test looks for it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:
    T = TypeVar("T", bound=type)

    def value(*, frozen: bool, slots: bool) -> Callable[[T], T]:
        """`@value(frozen=True, slots=True)`: as `dataclass` with the same words."""
        if not (frozen and slots):
            raise TypeError("a value is frozen and has slots; for anything else use dataclass")
        return dataclass(slots=True, unsafe_hash=True)


__all__ = ["value"]
