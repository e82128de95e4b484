"""What the reconciler's verbs need from outside, as Protocols."""

from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

from libs.kernel.clock import Clock
from libs.kernel.ids import IdSource
from libs.kernel.values import value
from services.reconciler.domain.cases import Case, CaseState, Change, Inspection, Name, Opening, Policy, Resolve, Resolved


class Cases(Protocol):
    """Rows of cases. Each method is one statement."""

    @property
    def incarnation(self) -> int:
        """Incarnation of the database."""
        ...

    async def open(self, openings: Sequence[tuple[UUID, Opening]], now_ms: int) -> int:
        """New cases, due at once, by (case id, opening); a try that has its case changes nothing. How many were opened."""
        ...

    async def resolve(self, facts: Sequence[Resolved], now_ms: int) -> None:
        """The gateway's events: undecided cases of these slots follow; an older try's event only makes its case due."""
        ...

    async def claim(self, lease: UUID, now_ms: int, until_ms: int, limit: int, put_off_most_ms: int) -> list[Case]:
        """Due cases, left to this lease until then; nobody else's meanwhile. What is put off for longer than anybody puts it
        off, a clock that jumped put off: it is due."""
        ...

    async def next_due(self) -> int | None:
        """When the next look-up is due, in ms since the Unix epoch; None where no case is open."""
        ...

    async def change(self, lease: UUID, changes: Sequence[tuple[UUID, Change]], now_ms: int) -> None:
        """What look-ups did to the cases of this lease; one that was decided meanwhile stays as it is."""
        ...

    async def put_off(self, lease: UUID, cases: Sequence[UUID], next_ms: int, evidence: str) -> None:
        """Nothing was looked up: the cases of this lease are due again then."""
        ...

    async def decide(self, case_id: UUID, state: CaseState, actor: str, reason: str, version: int, now_ms: int) -> Case | None:
        """A person's decision; None where the case was decided otherwise meanwhile."""
        ...

    async def find(self, case_id: UUID, tenant: str) -> Case | None:
        """A case of this tenant."""
        ...

    async def page(
        self, tenant: str, project: str, states: Sequence[int], run_id: UUID | None, after: int, limit: int
    ) -> list[tuple[int, Case]]:
        """Oldest first, each with its place."""
        ...

    async def undecided(self, names: Sequence[Name]) -> set[Name]:
        """Those of these slots that have an undecided case."""
        ...

    async def counts(self) -> Mapping[CaseState, int]:
        """How many cases are undecided, by state."""
        ...

    async def waiting(self, before_ms: int, limit: int) -> list[Case]:
        """Undecided cases opened before then, oldest first."""
        ...


@value(frozen=True, slots=True)
class Answer:
    """The gateway's answer to one resolution."""

    recorded: bool
    state: str
    version: int


@value(frozen=True, slots=True)
class Stuck:
    """One thing that does not move, as its service says."""

    service: str
    kind: str
    run_id: UUID | None
    since_ms: int
    detail: str


class Effects(Protocol):
    """The gateway, which alone can look up effects."""

    async def inspect(self, names: Sequence[Name]) -> list[Inspection]:
        """One answer a slot, in order."""
        ...

    async def resolve(self, asked: Sequence[tuple[Name, Resolve, str]]) -> list[Answer]:
        """Records what was found, each with its actor; one answer each, in order."""
        ...

    async def unknown(self, older_than_ms: int) -> list[Opening]:
        """Slots whose outcome is unknown, by the gateway's own account; without owners."""
        ...


class Others(Protocol):
    """The other services."""

    async def owners(self, run_ids: Sequence[UUID]) -> dict[UUID, tuple[str, str]]:
        """Tenant and project of runs, as launch knows them."""
        ...

    async def stuck(self, older_than_ms: int) -> tuple[list[Stuck], list[str]]:
        """What every service says does not move, and the services that could not be asked."""
        ...


class Gauges(Protocol):
    """What is counted."""

    def undecided(self, counts: Mapping[CaseState, int]) -> None:
        """Cases that are undecided."""
        ...

    def decided(self, state: CaseState) -> None:
        """One case that look-ups or a person decided."""
        ...

    def needs_person(self, case: Case, evidence: str) -> None:
        """A case that no look-up decides."""
        ...


@value(frozen=True, slots=True)
class Limits:
    """From the settings."""

    batch_cases: int
    lookup_lease_ms: int
    sweep_older_than_ms: int


@value(frozen=True, slots=True)
class Ports:
    """Everything a verb of the reconciler may use."""

    cases: Cases
    effects: Effects
    others: Others
    gauges: Gauges
    clock: Clock
    ids: IdSource
    policy: Policy
    limits: Limits
