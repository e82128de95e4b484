"""What the verbs of approvals need from outside, as Protocols."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from libs.fence.certificates import Certificate
from libs.kernel.values import value
from services.launch.domain.approvals import Answered, Approval, ApproverKey, DecisionFacts, HeldAnswer
from services.launch.domain.facts import Notice


class ApprovalRows(Protocol):
    """Approvals inside a transaction, behind the locks of their runs."""

    async def of_runs(self, run_ids: Sequence[UUID]) -> list[Approval]:
        """Every approval of these runs."""
        ...

    async def load(self, approval_ids: Collection[UUID]) -> dict[UUID, Approval]:
        """Approvals that exist."""
        ...

    async def add(self, approvals: Sequence[Approval]) -> set[UUID]:
        """Stores what no command asked before; those that are new."""
        ...

    async def save(self, approvals: Sequence[Approval]) -> None:
        """New states and times."""
        ...

    async def decisions(self, approval_ids: Collection[UUID]) -> dict[UUID, list[DecisionFacts]]:
        """What was decided about each, in order."""
        ...

    async def add_decisions(self, decisions: Sequence[DecisionFacts]) -> None:
        """Stores decisions."""
        ...

    async def keys(self, names: Collection[tuple[str, str]]) -> dict[tuple[str, str], ApproverKey]:
        """Keys by tenant and id."""
        ...

    async def shift(self, by_ms: Mapping[UUID, int]) -> None:
        """Later ends for what nobody has signed yet, of runs that stood still."""
        ...


class ApprovalReads(Protocol):
    """Reads outside transactions, one statement each."""

    async def load(self, approval_ids: Collection[UUID]) -> dict[UUID, Approval]:
        """Approvals that exist."""
        ...

    async def decisions(self, approval_ids: Collection[UUID]) -> dict[UUID, list[DecisionFacts]]:
        """What was decided about each, in order."""
        ...

    async def page(
        self, tenant: str, project: str, run_id: UUID | None, states: Sequence[int], before: UUID | None, limit: int
    ) -> list[Approval]:
        """A page, newest first; of one run, and of all below it where it is a root."""
        ...

    async def pending_of(self, run_id: UUID, limit: int, *, below: bool) -> list[Approval]:
        """What a run waits for, or what those below it do where it is a root; newest first."""
        ...

    async def over(self, now_ms: int, limit: int) -> list[tuple[UUID, UUID, bool]]:
        """Pending approvals whose time has passed, of runs that are not paused: run, approval, whether the run is over."""
        ...

    async def put_key(self, key: ApproverKey) -> ApproverKey:
        """The key as it stands under its id."""
        ...

    async def list_keys(self, tenant: str, after: str, limit: int) -> list[ApproverKey]:
        """A tenant's keys, by id."""
        ...

    async def revoke_key(self, tenant: str, key_id: str, approver: str, now_ms: int) -> ApproverKey | None:
        """The revoked key; None where there is none, or it is not this approver's (empty: anybody's)."""
        ...


class ApprovalNotices(Protocol):
    """Builds what is sent about approvals."""

    def certificate(self, certificate: Certificate) -> Notice:
        """For the gateway."""
        ...

    def answered(self, answer: Answered, now_ms: int) -> Notice:
        """CommandAnswered, for readiness."""
        ...


class ApprovalPoint(Protocol):
    """The gateway, which holds approvals."""

    async def hold(self, certificates: Sequence[Certificate], deadline_ms: int) -> list[HeldAnswer]:
        """How those stand that it judged within the deadline."""
        ...


@value(frozen=True, slots=True)
class ApprovalPorts:
    """All of it."""

    reads: ApprovalReads
    notices: ApprovalNotices
    point: ApprovalPoint
    default_length_ms: int
    hold_deadline_ms: int
