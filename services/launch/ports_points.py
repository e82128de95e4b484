"""What launch's verbs ask of the points and of readiness, and what points ask of launch, as Protocols."""

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from services.launch.domain.adopting import Held
from services.launch.domain.closing import Decided, Receipt
from services.launch.domain.facts import (
    GateFacts,
    InFlight,
    ScopeFacts,
    Waiting,
)
from services.launch.domain.pausing import Moved


class Points(Protocol):
    """The enforcement points, over the wire."""

    async def raise_now(self, decided: Sequence[Decided], deadline_ms: int) -> tuple[list[Receipt], list["InFlight"]]:
        """Raises at every point at once; what was confirmed within the deadline, and effects still unresolved."""
        ...

    async def raise_moved(self, moved: Sequence[Moved], deadline_ms: int) -> tuple[list[Receipt], list["InFlight"]]:
        """The same of pauses and resumes."""
        ...

    async def held(self, run_ids: Sequence[UUID]) -> dict[UUID, Held]:
        """The greatest gate of each run among all points. Refuses where a point does not answer."""
        ...

    async def open_runs(self, after: UUID, limit: int) -> tuple[list[Held], UUID | None]:
        """Runs that a point holds open, a page in order of ids after one; and where the next page begins, None at the end."""
        ...


class LeafReads(Protocol):
    """What the leaf port answers from its own small pool."""

    async def gates(self, run_ids: Sequence[UUID]) -> tuple[int, list[GateFacts], list[ScopeFacts]]:
        """The incarnation in which the read began, gates in the order asked, scopes that are not open."""
        ...

    async def owners(self, run_ids: Sequence[UUID]) -> dict[UUID, tuple[str, str]]:
        """(tenant, project) of runs that exist."""
        ...


class Waits(Protocol):
    """Readiness, by its own account."""

    async def waits(self, run_ids: Sequence[UUID]) -> dict[UUID, Waiting]:
        """Of runs that wait for something; empty where nobody can say now."""
        ...
