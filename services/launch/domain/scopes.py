"""Authoritative for switches: what a scope is called, and what stopping and releasing make of it. Pure.

A scope's fence is `(epoch, mode)`, and every change takes the next epoch: a later release is above an earlier kill, whatever
order the points hear of them in. Can go wrong: a name that means nothing. It is refused before anything is stored.
"""

from enum import StrEnum
from uuid import UUID, uuid5

from libs.kernel.epochs import Mode, incarnation_of, next_epoch
from libs.kernel.refusal import Reason, Refusal, invalid_field
from libs.kernel.values import value

_LANE = UUID("5c0be5d4-52a3-4f0e-9a2e-0d7d6a6f0f37")
"""Names the order in which the raises of one scope travel."""


class Kind(StrEnum):
    """What is stopped."""

    TENANT = "tenant"
    PROJECT = "project"
    TOOL = "tool"
    PROVIDER = "provider"


@value(frozen=True, slots=True)
class Name:
    """A scope's kind and id; a project is `tenant/project`."""

    kind: str
    scope_id: str

    @property
    def lane(self) -> UUID:
        """The same for the same scope."""
        return uuid5(_LANE, f"{self.kind} {self.scope_id}")

    @property
    def capability(self) -> str:
        """What runs must be granted to call a tool."""
        return self.scope_id if self.scope_id.startswith("model:") else f"tool:{self.scope_id}"


@value(frozen=True, slots=True)
class Scope:
    """A scope as its row stands."""

    name: Name
    epoch: int
    mode: Mode
    reason: str = ""
    actor: str = ""
    changed_ms: int = 0


@value(frozen=True, slots=True)
class Ack:
    """The greatest epoch of a scope that a point committed, and when it said so."""

    name: Name
    point: str
    epoch: int
    at_ms: int = 0


@value(frozen=True, slots=True)
class Change:
    """Who changes it, and why."""

    actor: str
    reason: str

    def check(self) -> None:
        """Refuses a change without either."""
        for name in ("actor", "reason"):
            if not getattr(self, name).strip():
                raise invalid_field(name, "is empty", "say who switches it, and why: it is kept")


def check_name(name: Name) -> None:
    """Refuses what is no scope."""
    if not name.scope_id.isprintable():
        raise invalid_field("name", "has characters that cannot be printed", "give the name as it is configured")
    parts = name.scope_id.split("/")
    if name.kind == Kind.PROJECT and (len(parts) != 2 or not all(parts)):
        raise invalid_field("name", "is no project", "give `tenant/project`")
    if name.kind == Kind.TENANT and len(parts) != 1:
        raise invalid_field("name", "is no tenant", "give the tenant alone, or stop the project")


def check_epoch(scope: Scope | None, expected: int | None) -> None:
    """Refuses a change on top of what is not there any more."""
    standing = scope.epoch if scope else 0
    if expected is not None and expected != standing:
        raise Refusal(
            Reason.VERSION_CONFLICT,
            f"the scope is at epoch {standing}, not {expected}",
            field="expected_epoch",
            remedy="read it and decide again",
            detail={"current_epoch": str(standing)},
        )


def stopped(former: Scope | None, name: Name, mode: Mode, change: Change, incarnation: int, now_ms: int) -> Scope | None:
    """The scope stopped that far; None where it is."""
    if former is not None and former.mode is mode:
        return None
    epoch = next_epoch(former.epoch if former else 0, incarnation)
    return Scope(name, epoch, mode, change.reason, change.actor, now_ms)


def released(former: Scope | None, change: Change, incarnation: int, now_ms: int) -> Scope:
    """The scope open again; refused where it is."""
    if former is None or former.mode is Mode.OPEN:
        raise Refusal(
            Reason.NOT_FOUND, "it is not stopped", field="name", remedy="`runway scope list` says what is; nothing was changed"
        )
    return Scope(former.name, next_epoch(former.epoch, incarnation), Mode.OPEN, change.reason, change.actor, now_ms)


def adopted(mine: Scope | None, held: Scope, incarnation: int, now_ms: int) -> Scope | None:
    """After a promotion: what a point holds above what is remembered, under a new epoch; None: nothing above."""
    if mine is not None and (held.epoch, held.mode) <= (mine.epoch, mine.mode):
        return None
    epoch = next_epoch(held.epoch, incarnation)
    reason = "its change was lost with the former primary; its points held it"
    return Scope(held.name, epoch, held.mode, reason, "launch", now_ms)


def anew(mine: Scope, incarnation: int) -> Scope | None:
    """After a promotion: what is remembered, above whatever the former primary may have issued; None where it is already."""
    if incarnation_of(mine.epoch) >= incarnation:
        return None
    return Scope(mine.name, next_epoch(mine.epoch, incarnation), mine.mode, mine.reason, mine.actor, mine.changed_ms)
