"""Authoritative for when children that are waited for are enough, what becomes of the rest, and when their parent is told.
Pure.

A join is `{need, on_failure, rest}`. Can go wrong: two verdicts. The first that stands is kept: whatever ends later, the
answer is that one. Where the rest is cancelled, the parent goes on only when every point holds the cancel of each.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum
from uuid import UUID

from libs.kernel.values import value


class OnFailure(IntEnum):
    """What a child that does not succeed means."""

    FAIL = 1
    COUNT = 2
    IGNORE = 3


class Rest(IntEnum):
    """What becomes of those that still run once it is decided."""

    AWAIT = 1
    CANCEL = 2


class JoinState(IntEnum):
    """open → decided, while the rest ends → answered."""

    OPEN = 1
    ENDING = 2
    ANSWERED = 3


JoinKey = tuple[UUID, str, str]


@value(frozen=True, slots=True)
class Join:
    """What a step waits for. `need` 0: all. `slots`: spawns that are not known yet."""

    run_id: UUID
    step_key: str
    slot: str
    groups: tuple[str, ...]
    slots: tuple[str, ...]
    need: int
    on_failure: OnFailure
    rest: Rest
    state: JoinState = JoinState.OPEN
    met: bool = False
    warns: bool = False
    """Whether children that it goes on without are told in the run's log."""

    @property
    def key(self) -> JoinKey:
        """By which it is known."""
        return (self.run_id, self.step_key, self.slot)


@value(frozen=True, slots=True)
class JoinAsk:
    """A join as an attempt asks for it; `problem`: why it could not be read."""

    join: Join
    problem: str = ""


@value(frozen=True, slots=True)
class Counts:
    """How the children of a join stand. `denied` were never made."""

    total: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    denied: int = 0

    @property
    def failures(self) -> int:
        """All that ended without success."""
        return self.failed + self.cancelled + self.denied

    @property
    def open(self) -> int:
        """Those that have not ended."""
        return self.total - self.succeeded - self.failures

    def plus(self, other: "Counts") -> "Counts":
        """Both together."""
        return Counts(
            self.total + other.total,
            self.succeeded + other.succeeded,
            self.failed + other.failed,
            self.cancelled + other.cancelled,
            self.denied + other.denied,
        )


class Move(IntEnum):
    """What follows."""

    WAIT = 1
    CANCEL_REST = 2
    ANSWER = 3


def verdict(join: Join, counts: Counts) -> bool | None:
    """Whether the policy is met; None while that is open."""
    need = join.need or counts.total
    if join.on_failure is OnFailure.FAIL and counts.failures:
        return False
    good = counts.total - counts.open if join.on_failure is OnFailure.IGNORE else counts.succeeded
    if good >= need:
        return True
    return None if good + counts.open >= need else False


def move(join: Join, counts: Counts, unenforced: int) -> tuple[Join, Move]:
    """The join after what its children did, and what is to be done. `unenforced`: children whose end some point does not hold
    yet."""
    if join.state is JoinState.ANSWERED or (join.state is JoinState.OPEN and join.slots):
        return join, Move.WAIT
    now = join
    if join.state is JoinState.OPEN:
        found = verdict(join, counts)
        if found is None:
            return join, Move.WAIT
        now = replace(join, state=JoinState.ENDING, met=found)
        if counts.open and join.rest is Rest.CANCEL:
            return now, Move.CANCEL_REST
    left = unenforced if join.rest is Rest.CANCEL else counts.open
    if left:
        return now, Move.WAIT
    return replace(now, state=JoinState.ANSWERED), Move.ANSWER


def of_groups(join: Join, counts: Sequence[tuple[str, str, Counts]]) -> Counts:
    """The join's groups together; `counts` by step and group, of one run."""
    found = Counts()
    for step_key, group, one in counts:
        if step_key == join.step_key and group in join.groups:
            found = found.plus(one)
    return found
