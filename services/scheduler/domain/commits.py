"""Authoritative for what goes into a commit and comes out of it: who asks, what is granted, won, acknowledged and told.
Pure values.

Can go wrong: a value that says less than the statement compares. What a grant compares is all in `GrantAsk`.
"""

from collections.abc import Mapping
from uuid import UUID

from libs.kernel.epochs import Mode, StepFence
from libs.kernel.ids import shard_of
from libs.kernel.refusal import Refusal
from libs.kernel.values import value
from services.scheduler.domain.ticket import Key, Wanted


@value(frozen=True, slots=True)
class Holder:
    """Who asks, as a verified token says: an attempt under its fence, at the run's epoch that the token carries."""

    run_id: UUID
    step_key: str
    fence: StepFence
    epoch: int
    tenant: str
    project: str

    @property
    def key(self) -> Key:
        """Its step."""
        return (self.run_id, self.step_key)

    @property
    def shard(self) -> int:
        """The shard of its run."""
        return shard_of(self.run_id)


@value(frozen=True, slots=True)
class GateState:
    """A run's gate as the scheduler holds it. `stamp`: the incarnation of the cold read that it rests on."""

    epoch: int
    mode: Mode
    stamp: int
    outcome: str


@value(frozen=True, slots=True)
class GrantAsk:
    """One lease of a plan; compared with the row as it was when it was planned."""

    key: Key
    ticket_sequence: int
    lease_epoch: int
    authority_epoch: int
    attempt_id: UUID
    worker_id: str
    claim_id: UUID
    fleet: str = ""
    wanted: Wanted | None = None
    """Capacity that the step waits for until it is leased."""


@value(frozen=True, slots=True)
class Granted:
    """What a committed grant needs beside what is in memory."""

    lease_epoch: int
    input: bytes
    traceparent: str
    epoch: int
    first: bool
    leased_ms: int = 0
    """Where the step had waited for capacity, this says how that ended."""


@value(frozen=True, slots=True)
class Won:
    """A success that was recorded."""

    run_id: UUID
    step_key: str
    ticket_sequence: int
    points: int
    fence: StepFence
    worker_id: str
    mode: Mode
    priority: int
    traceparent: str
    input: bytes
    """Of its ticket, where it was asked for."""
    expanded: tuple[str, ...] = ()
    """Slots under which the step's attempts asked for instances of another."""


@value(frozen=True, slots=True)
class Acknowledgement:
    """Points committed the raise of an end; slots there whose outcome is in doubt, with their versions."""

    run_id: UUID
    step_key: str
    fence: StepFence
    points: int
    unresolved: Mapping[str, int]

    @property
    def key(self) -> Key:
        """Its step."""
        return (self.run_id, self.step_key)


@value(frozen=True, slots=True)
class Command:
    """What an attempt asks of the control plane. `kind`: runway.events.v1.CommandKind."""

    slot: str
    kind: int
    payload: bytes


@value(frozen=True, slots=True)
class Judged:
    """The verdict on one holder: None and not cold: it may. `refusal` is set for a fence that says no."""

    cold: bool
    refusal: Refusal | None


@value(frozen=True, slots=True)
class Report:
    """How an attempt ended, and the digest of what its worker said."""

    attempt_id: UUID
    report: bytes


@value(frozen=True, slots=True)
class Notice:
    """An event to send beside a commit; `patient`: nothing waits for it."""

    receiver: str
    kind: str
    run_id: UUID
    payload: bytes
    patient: bool = False


@value(frozen=True, slots=True)
class Signed:
    """A token that was signed, and when it wants renewal."""

    token: bytes
    expires_at_ms: int
