"""What an author says of a step besides its code: how it is retried, what its edges want, how its needs join."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

When = Literal["success", "failure", "always"]


@dataclass(frozen=True, slots=True)
class Retry:
    """What follows a failed attempt; `on` names failure classes (lost attempts are always retried)."""

    max_attempts: int = 3
    initial: timedelta = timedelta(milliseconds=200)
    multiplier: float = 2.0
    longest: timedelta = timedelta(seconds=60)
    on: Sequence[str] = ("transient", "infrastructure", "attempt")


@dataclass(frozen=True, slots=True)
class Edge:
    """What an edge wants of its predecessor: how it ended, and a CEL condition over `run`, `steps` and `step`."""

    when: When = "success"
    condition: str = ""


@dataclass(frozen=True, slots=True)
class Join:
    """How needs join, where no preset says it: how many must hold (0: all), what one that does not hold does (`fail`, `count`,
    `ignore`), and what becomes of the rest (`await`, `cancel`, `leave`)."""

    need: int = 0
    on_failure: Literal["fail", "count", "ignore"] = "count"
    rest: Literal["await", "cancel", "leave"] = "await"
