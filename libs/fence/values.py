"""Authoritative for the words of fencing: operations and what each needs, verdicts, the values that are raised and held.

Can go wrong: an operation that needs less than it should. What each needs is one table here, read by the SQL as limits.
"""

from collections.abc import Mapping
from enum import StrEnum
from uuid import UUID

from libs.fence.claims import VerifiedLease
from libs.kernel.epochs import Gate, Mode, StepFence
from libs.kernel.refusal import invalid_field
from libs.kernel.values import value


class Verdict(StrEnum):
    """What a judging statement says of one item. The gateway adds the six that speak of grants, slots, approvals and money."""

    OK = "ok"
    SCOPE = "scope"
    COLD = "cold"
    CLOSED = "closed"
    PAUSED = "paused"
    FENCED = "fenced"
    STALE = "stale"
    DENIED = "denied"
    REPLAYED = "replayed"
    TAKEN = "taken"
    BUDGET = "budget"
    APPROVAL = "approval"


class Operation(StrEnum):
    """What wants to commit."""

    INTENT = "intent"
    """A model or tool call, or a command."""
    CLAIM = "claim"
    """A grant at the scheduler; the step's own compare-and-set is its ticket."""
    PROGRESS = "progress"
    """A checkpoint manifest, an artifact, a success: may still land while the run drains."""
    COMPENSATION = "compensation"
    """Under a cleanup lease issued by launch, with its own step key."""


@value(frozen=True, slots=True)
class Need:
    """Limits: the greatest mode of scope and run it may meet, and whether epoch and lease must be equal."""

    scope_most: Mode
    run_most: Mode
    epoch_equal: bool
    step_equal: bool


NEEDS: Mapping[Operation, Need] = {
    Operation.INTENT: Need(Mode.OPEN, Mode.OPEN, epoch_equal=True, step_equal=True),
    Operation.CLAIM: Need(Mode.OPEN, Mode.OPEN, epoch_equal=False, step_equal=False),
    Operation.PROGRESS: Need(Mode.DRAINING, Mode.DRAINING, epoch_equal=True, step_equal=True),
    Operation.COMPENSATION: Need(Mode.DRAINING, Mode.CLOSED, epoch_equal=False, step_equal=True),
}
"""The table of the protocol. Yields, failures and lost attempts need no fence but their compare-and-set; receipts need none."""


@value(frozen=True, slots=True)
class Asked:
    """What a cold read is asked about. `expired`: its token has died, so the scheduler must confirm the lease."""

    run_id: UUID
    step_key: str
    fence: StepFence
    epoch: int
    expired: bool = False


@value(frozen=True, slots=True)
class Admission:
    """One item to judge: who asks, for what operation, under which scopes."""

    asked: Asked
    operation: Operation
    tenant: str
    project: str
    tool: str = ""
    provider: str = ""

    @property
    def scopes(self) -> tuple[tuple[str, str], ...]:
        """The scopes it stands under, as (kind, id)."""
        named = (
            ("tenant", self.tenant),
            ("project", project_scope(self.tenant, self.project)),
            ("tool", self.tool),
            ("provider", self.provider),
        )
        return tuple((kind, scope_id) for kind, scope_id in named if scope_id)


def project_scope(tenant: str, project: str) -> str:
    """The scope id of a project, unique among tenants."""
    return f"{tenant}/{project}"


def admission_of(lease: VerifiedLease, operation: Operation, *, tool: str = "", provider: str = "") -> Admission:
    """The item that a call under this lease puts before the judge."""
    asked = Asked(lease.run_id, lease.step_key, lease.fence, lease.epoch, lease.expired)
    return Admission(asked, operation, lease.tenant, lease.project, tool, provider)


@value(frozen=True, slots=True)
class Judgement:
    """The verdict on one item and what it met. `gate` is None where the point knows nothing of the run."""

    verdict: Verdict
    gate: Gate | None
    outcome: str = ""
    capabilities: tuple[str, ...] = ()
    scope: str = ""


@value(frozen=True, slots=True)
class GateValue:
    """A run's gate as launch issues it: compared by (epoch, mode), the rest follows the greater value."""

    run_id: UUID
    epoch: int
    mode: Mode
    outcome: str = ""
    capabilities: tuple[str, ...] = ()
    granted_micros: int = 0
    envelope_sequence: int = 0
    tenant: str = ""
    project: str = ""

    def __post_init__(self) -> None:
        if any("\n" in capability for capability in self.capabilities):
            raise invalid_field("capabilities", "must not hold a line break", "write capabilities as action:resource")

    @property
    def gate(self) -> Gate:
        """What is compared."""
        return Gate(self.epoch, self.mode)


@value(frozen=True, slots=True)
class GateRow:
    """A gate as a point holds it."""

    value: GateValue
    stamp: int
    held: int
    used: int
    quiesced_epoch: int


@value(frozen=True, slots=True)
class StepValue:
    """A step's fence as the scheduler issues it."""

    run_id: UUID
    step_key: str
    fence: StepFence


@value(frozen=True, slots=True)
class ScopeValue:
    """A scope's fence as launch issues it."""

    kind: str
    scope_id: str
    epoch: int
    mode: Mode
