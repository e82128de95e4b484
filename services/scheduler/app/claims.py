"""What a claim asks and what it is given. Values; authoritative for nothing.

Can go wrong: a repeat that is taken for another claim. Who asks is part of a claim's name.
"""

from uuid import UUID

from libs.kernel.values import value
from services.scheduler.domain.asker import Asker
from services.scheduler.domain.lease import Lease
from services.scheduler.ports import Signed


@value(frozen=True, slots=True)
class ClaimAsk:
    """Free slots of one worker process."""

    claim_id: UUID
    worker_id: str
    who: Asker
    handlers: frozenset[str]
    capabilities: frozenset[str]
    slots: int
    room_bytes: int = 2**62

    @property
    def tenant(self) -> str:
        """Whose tickets it takes; empty: every tenant's."""
        return self.who.tickets_of

    @property
    def name(self) -> tuple[Asker, UUID]:
        """What a repeat is known by."""
        return (self.who, self.claim_id)


@value(frozen=True, slots=True)
class GrantedLease:
    """A lease with what its attempt needs."""

    lease: Lease
    input: bytes
    traceparent: str
    signed: Signed
