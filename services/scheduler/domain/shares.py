"""Authoritative for what a fair share is: weights, quotas, usage with a half-life, and the value by which tenants are
compared. Pure.

A tenant's claim is `(running + average) / (2 × weight)`: slots held now (of a lease that takes a great part of something else,
as many as that part is of all: domain/resources.py), and slots held on average over the half-life, so
that who took much lately yields to who did not, and rounding evens out. A start adds `entry_penalty_ms` of a slot to the
average: a flood of tiny steps, which no sample of running ones would show, pays too. Less goes first.

Can go wrong: a newcomer that takes everything because it used nothing. Its running slots count at once, so it gets at most
twice its share before it waits as the others do. A clock that jumps: times are monotonic milliseconds of one process, and
only differences count.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from libs.kernel.values import value

MOST_WEIGHT = 1_000_000
DEFAULT_WEIGHT = 1

Project = tuple[str, str]
"""Tenant and project; or tenant and user, with a mark that no project's name has. Both have bounds only."""
USER_MARK = "@"


def user_of(tenant: str, name: str) -> Project:
    """The bound of who launched runs."""
    return (tenant, USER_MARK + name)


@value(frozen=True, slots=True)
class Policy:
    """What holds for the installation. Shares of capacity are in thousandths."""

    reserve_permille: int = 100
    """Of shared capacity, what only interactive runs may take."""
    migration_permille: int = 500
    """Of shared capacity, what migrations may take while others wait."""
    half_life_ms: int = 300_000
    """After so long, half of what a tenant used is forgotten."""
    entry_penalty_ms: int = 1_000
    """What a start costs, in slot-milliseconds, whatever the step takes."""
    most_waiting: int = 250_000
    """Tickets of a tenant that may wait, where its part says nothing."""

    def reserve(self, capacity: int) -> int:
        """Of so many shared slots, those for interactive runs alone: the nearest number, since leaders' parts shall add up; all
        of them only where that is what was decided."""
        nearest = (capacity * self.reserve_permille + 500) // 1000
        return nearest if nearest < capacity or self.reserve_permille == 1000 else max(0, capacity - 1)


@value(frozen=True, slots=True)
class Part:
    """What an operator decided about a tenant, or a project or user of it (only its bound counts then)."""

    weight: int = DEFAULT_WEIGHT
    most_leases: int | None = None
    """Live leases at most; None: no bound. 0: nothing is granted."""
    most_waiting: int | None = None
    """Tickets that may wait; None: the policy's bound."""


@value(frozen=True, slots=True)
class Used:
    """What a tenant has and had, in slots."""

    running: int = 0
    average: float = 0.0
    waiting: int = 0
    extra: float = 0.0
    """What its leases weigh beyond a slot each (domain/resources.py)."""

    @property
    def held(self) -> float:
        """Slots that its leases weigh."""
        return self.running + self.extra


@value(frozen=True, slots=True)
class Report:
    """What a leader says of a tenant (without a project), or of a tenant's project."""

    tenant: str
    project: str
    running: int
    average: float
    holder: str = ""
    """The process that says it."""
    beat: int = 0
    """Rises with each of its reports."""
    waiting: int = 0
    """Tickets that wait there, where they are many."""
    extra: float = 0.0
    """What its leases weigh beyond a slot each."""


@value(frozen=True, slots=True)
class Decided:
    """Every row about shares, at one version."""

    version: int
    policy: Policy
    parts: Mapping[str, Part]
    projects: Mapping[Project, Part]
    """Of users too."""

    @property
    def users(self) -> frozenset[Project]:
        """Users with a bound."""
        return frozenset(name for name in self.projects if name[1].startswith(USER_MARK))

    def most_waiting(self, tenant: str) -> int:
        """Tickets of a tenant that may wait."""
        part = self.parts.get(tenant)
        return self.policy.most_waiting if part is None or part.most_waiting is None else part.most_waiting


@value(frozen=True, slots=True)
class StoredPart:
    """A part as its row stands; without a project it is the tenant's."""

    tenant: str
    project: str
    part: Part
    version: int
    changed_ms: int


@value(frozen=True, slots=True)
class Change:
    """Who changes shares, and why."""

    actor: str
    reason: str


NOTHING = Used()


def claim(running: float, average: float, weight: int) -> float:
    """What tenants are compared by: less goes first.

    For who has slots, in the middle of the grant that it decides about: before it, tenants of little weight would get more
    than their part in the rounding, after it less. Who has none is compared by its past alone, or a little weight would never
    come up where there is less than a slot for it.
    """
    return ((running + 0.5 if running else 0) + average) / (2 * weight)


@dataclass(slots=True)
class Meter:
    """A tenant's usage as one process knows it: exact between its own events, no sampling."""

    running: int = 0
    average: float = 0.0
    at_ms: int = 0
    extra: float = 0.0
    """What its leases weigh beyond a slot each."""

    def now(self, now_ms: int, half_life_ms: int) -> float:
        """The average as of now."""
        passed_ms = max(0, now_ms - self.at_ms)
        held = self.running + self.extra
        return held + (self.average - held) * math.exp2(-passed_ms / half_life_ms)

    def move(self, by: int, now_ms: int, policy: Policy, *, entering: float = 0, extra: float = 0.0) -> None:
        """So many leases more, or fewer, which weigh so much beyond a slot each; those that enter pay for it."""
        self.average = self.now(now_ms, policy.half_life_ms)
        self.at_ms = max(self.at_ms, now_ms)
        self.running += by
        if extra or self.extra:
            self.extra = max(0.0, self.extra + extra) if self.running else 0.0  # sums of fractions must not drift
        if entering:
            self.average += entering * policy.entry_penalty_ms * math.log(2) / policy.half_life_ms

    def idle(self, now_ms: int, half_life_ms: int) -> bool:
        """Whether it says nothing any more."""
        return self.running == 0 and self.now(now_ms, half_life_ms) < 0.001


def share_error(got: Mapping[str, float], weights: Mapping[str, int]) -> float:
    """The greatest relative difference between what a tenant got and what its weight is worth, where all could use more."""
    whole, parts = sum(got.values()), sum(weights.values())
    return max(abs(got[name] / whole - weight / parts) / (weight / parts) for name, weight in weights.items())


def jain(got: Mapping[str, float], weights: Mapping[str, int]) -> float:
    """Jain's index of weighted shares: 1 where all are equal, 1/n where one has everything."""
    shares = [got[name] / weight for name, weight in weights.items()]
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))
