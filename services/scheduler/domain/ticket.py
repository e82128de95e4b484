"""Authoritative for what a ticket, a contract and an end are. Pure values.

A step's fence counts grants and ends: odd lease epochs are or were granted, even ones are ends.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from uuid import UUID

from libs.kernel.capacity import PROVIDER, through
from libs.kernel.epochs import StepFence
from libs.kernel.ids import NIL, shard_of
from libs.kernel.values import value
from services.scheduler.domain.buckets import Wants
from services.scheduler.domain.resources import Amounts

POINT_GATEWAY = 1
POINT_CHECKPOINT = 2
POINT_NAMES: Mapping[int, str] = {POINT_GATEWAY: "gateway", POINT_CHECKPOINT: "checkpoint"}
POINT_BITS: Mapping[str, int] = {name: bit for bit, name in POINT_NAMES.items()}
OWN_POINT = "scheduler"

Key = tuple[UUID, str]
"""A step: its run and its key."""


NO_FENCE = StepFence(0, 0, NIL)
"""The fence of a step that was never granted."""


class TicketState(IntEnum):
    """ready → leased → (ending →) done; ready → revoked."""

    READY = 1
    LEASED = 2
    ENDING = 3
    DONE = 4
    REVOKED = 5


class End(IntEnum):
    """How an attempt ended; the numbers of runway.events.v1.AttemptEnd."""

    NONE = 0
    SUCCEEDED = 1
    FAILED = 2
    YIELDED = 3
    TIMED_OUT = 4
    CANCELLED = 5
    LOST = 6
    UNCERTAIN = 7


@value(frozen=True, slots=True)
class Failure:
    """What went wrong."""

    failure_class: str
    message: str
    type: str


@value(frozen=True, slots=True)
class Contract:
    """What the step's attempts may do and need."""

    handler: str
    timeout_ms: int
    lease_ttl_ms: int
    tools: tuple[str, ...]
    models: tuple[str, ...]
    requires: frozenset[str]
    points: int
    resources: Amounts = ()
    """What an attempt takes of its worker besides a slot."""

    @property
    def calls(self) -> tuple[str, ...]:
        """Tools, and models as `model:NAME`, that it may call."""
        return self.tools if not self.models else (*self.tools, *(f"model:{name}" for name in self.models))

    @property
    def point_names(self) -> tuple[str, ...]:
        """Services that the step may touch; the scheduler always."""
        return (*(name for bit, name in POINT_NAMES.items() if self.points & bit), OWN_POINT)


@value(frozen=True, slots=True)
class Wanted:
    """Capacity that a step waits for under a slot: so many calls of a tool, of a model as `model:NAME`, or of whatever the step
    declares at a provider, `provider:NAME`; until a time, 0: for ever."""

    slot: str
    call: str
    calls: int
    until_ms: int

    def lapsed(self, at_ms: int) -> bool:
        """Whether its time has passed. A lease that was granted then was granted without it, whatever its bucket held."""
        return 0 < self.until_ms <= at_ms

    def wants(self, declared: Sequence[str]) -> Wants:
        """For a step that declares these calls. Of one call of a tool or model nothing: each ticket waits for that anyway."""
        if self.call.startswith(PROVIDER):
            return tuple((through(call, self.call), self.calls) for call in declared)
        return ((self.call, self.calls),) if self.calls > 1 else ()


@value(frozen=True, slots=True)
class Successor:
    """A step that needs nothing but the success of another: the same in every run of a workflow version."""

    step_key: str
    contract: Contract
    input_limit_bytes: int
    whole: bool = False
    """Whether it, and those told with it, are all that follows."""


@value(frozen=True, slots=True)
class Ticket:
    """A step that waits for a worker, as readiness says it."""

    run_id: UUID
    step_key: str
    ticket_sequence: int
    tenant: str
    project: str
    run_class: int
    priority: int
    deadline_ms: int
    contract: Contract
    input: bytes
    workflow_digest: bytes
    attempt_number: int
    epoch: int
    traceparent: str
    launched_by: str = ""
    """Name of the key that launched the run."""
    wanted: Wanted | None = None
    """What it waits for besides a worker."""

    @property
    def key(self) -> Key:
        """Its step."""
        return (self.run_id, self.step_key)

    @property
    def shard(self) -> int:
        """The shard of its run."""
        return shard_of(self.run_id)


@value(frozen=True, slots=True)
class Before:
    """What there was of a step and its run when its ticket came."""

    worker_id: str
    end: End
    started: bool


NEVER_HELD = Before("", End.NONE, started=False)


@value(frozen=True, slots=True)
class TicketRow:
    """A ticket as its row stands, without its input."""

    run_id: UUID
    step_key: str
    state: TicketState
    ticket_sequence: int
    tenant: str
    project: str
    run_class: int
    priority: int
    deadline_ms: int
    contract: Contract
    workflow_digest: bytes
    attempt_number: int
    enqueued_ms: int
    fence: StepFence
    incarnation: int
    raise_need: int
    worker_id: str
    claim_id: UUID
    fleet: str
    leased_ms: int
    ended_attempt: UUID
    ended_authority: int
    ended_lease: int
    ended_ms: int
    end: End
    failure: Failure | None
    report: bytes
    unresolved: Mapping[str, int]
    input_bytes: int = 0
    awaits: tuple[str, ...] = ()
    """Slots that the step waits for since its last attempt yielded."""
    launched_by: str = ""
    """Name of the key that launched the run."""
    wanted: Wanted | None = None
    started: bool = False
    """Whether anything of its run was ever leased."""

    @staticmethod
    def of(
        ticket: Ticket, now_ms: int, fence: StepFence, incarnation: int, raise_need: int = 0, before: Before = NEVER_HELD
    ) -> "TicketRow":
        """A ticket as it is stored, with the step's fence as it stands."""
        return TicketRow(
            run_id=ticket.run_id,
            step_key=ticket.step_key,
            state=TicketState.READY,
            ticket_sequence=ticket.ticket_sequence,
            tenant=ticket.tenant,
            project=ticket.project,
            run_class=ticket.run_class,
            priority=ticket.priority,
            deadline_ms=ticket.deadline_ms,
            contract=ticket.contract,
            workflow_digest=ticket.workflow_digest,
            attempt_number=ticket.attempt_number,
            enqueued_ms=now_ms,
            fence=fence,
            incarnation=incarnation,
            raise_need=raise_need,
            worker_id=before.worker_id,
            claim_id=NIL,
            fleet="",
            leased_ms=0,
            ended_attempt=NIL,
            ended_authority=0,
            ended_lease=0,
            ended_ms=0,
            end=before.end,
            failure=None,
            report=b"",
            unresolved={},
            input_bytes=len(ticket.input),
            launched_by=ticket.launched_by,
            wanted=ticket.wanted,
            started=before.started,
        )

    @property
    def key(self) -> Key:
        """Its step."""
        return (self.run_id, self.step_key)

    @property
    def shard(self) -> int:
        """The shard of its run."""
        return shard_of(self.run_id)

    def must_be_raised(self, incarnation: int) -> bool:
        """Whether its fence was issued by an earlier incarnation: what that one granted may be lost to us."""
        return self.contract.points != 0 and self.incarnation != incarnation

    def grantable(self, incarnation: int) -> bool:
        """Whether the next grant is safe: its last end is acknowledged by every point it touches, in this incarnation."""
        if self.state is not TicketState.READY:
            return False
        return self.contract.points == 0 or (self.incarnation == incarnation and self.raise_need == 0)


@value(frozen=True, slots=True)
class Recorded:
    """A ticket as it was, for recordings; 0 for a time that is not kept or did not come."""

    run_id: UUID
    step_key: str
    attempt_number: int
    tenant: str
    project: str
    run_class: int
    priority: int
    deadline_ms: int
    handler: str
    requires: tuple[str, ...]
    ready_ms: int
    leased_ms: int
    ended_ms: int
    worker_id: str
    fleet: str
    resources: Amounts = ()
    launched_by: str = ""
