"""Authoritative for what a heartbeat means: a live lease in the leader's memory, and the answer to one that beats.

Can go wrong: a heartbeat that keeps alive what is no longer wanted. Only the exact fence of a lease that is not stopping is
extended. Times are the leader's own monotonic milliseconds; another process' clock is never compared.
"""

from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

from libs.kernel.epochs import Mode, StepFence
from libs.kernel.values import value
from services.scheduler.domain.asker import Asker
from services.scheduler.domain.buckets import Wants
from services.scheduler.domain.ticket import Contract, Key


class Answer(IntEnum):
    """The numbers of runway.scheduler.v1.LeaseStatus."""

    LIVE = 1
    FENCED = 2
    CANCELLED = 3
    UNKNOWN = 4


@value(frozen=True, slots=True)
class Beat:
    """One attempt that says it is alive."""

    run_id: UUID
    step_key: str
    attempt_id: UUID
    lease_epoch: int

    @property
    def key(self) -> Key:
        """Its step."""
        return (self.run_id, self.step_key)


@dataclass(slots=True)
class Lease:
    """A live lease. Memory of the shard's leader; rebuilt from its row on takeover, with a full TTL of grace."""

    run_id: UUID
    step_key: str
    shard: int
    fence: StepFence
    ticket_sequence: int
    tenant: str
    project: str
    worker_id: str
    claim_id: UUID
    contract: Contract
    workflow_digest: bytes
    attempt_number: int
    run_class: int
    deadline_ms: int
    epoch: int
    mode: Mode
    ttl_ms: int
    granted_ms: int
    heard_ms: int
    beaten: bool
    ends_ms: int | None
    renew_ms: int
    stopping: bool = False
    fleet: str = ""
    """The fleet that has it, by its key's tenant; empty: a worker of the run's own tenant."""
    give_back: bool = False
    """Whether its slot is borrowed and others need it: it is asked to end at its next checkpoint."""
    asked_ms: int = 0
    """Since when."""
    extra: float = 0.0
    """What it weighs in its tenant's share beyond a slot, as it was counted last."""
    launched_by: str = ""
    """Name of the key that launched the run."""
    wants: Wants = ()
    """Calls that it was granted with, where they are more than one."""
    lapsed: bool = False
    """Whether its step had waited for capacity until the time for that had passed."""

    @property
    def shared(self) -> bool:
        """Whether its worker serves every tenant."""
        return bool(self.fleet)

    @property
    def key(self) -> Key:
        """Its step."""
        return (self.run_id, self.step_key)

    def is_held_by(self, who: Asker, worker_id: str) -> bool:
        """Whether this worker may speak for it without its token."""
        return who.may_beat(self.tenant, self.project, self.fleet, self.worker_id, worker_id)


def beat(lease: Lease | None, said: Beat, who: Asker, worker_id: str, now_ms: int) -> Answer:
    """Judges one heartbeat; a live lease is heard of."""
    if lease is None or not lease.is_held_by(who, worker_id):
        return Answer.FENCED
    if lease.fence.attempt_id != said.attempt_id or lease.fence.lease_epoch != said.lease_epoch:
        return Answer.FENCED
    if lease.stopping:
        return Answer.CANCELLED
    lease.heard_ms = now_ms
    lease.beaten = True
    return Answer.LIVE
