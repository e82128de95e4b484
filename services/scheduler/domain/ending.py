"""Authoritative for how an attempt's end is told: what worker and points said → the end that readiness gets.

Can go wrong: calling an attempt lost whose effect may have happened. An end without success, with an effect whose outcome
is in doubt at a point that acknowledged the raise, is `uncertain`; nothing follows until each is resolved. One that was
withdrawn stays `cancelled`, and what is in doubt is told with it: a step behind it may have to wait for that.
"""

from collections.abc import Mapping
from uuid import UUID

from libs.kernel.epochs import StepFence
from libs.kernel.values import value
from services.scheduler.domain.ticket import End, Failure, Key, TicketRow

IN_DOUBT = frozenset({"requested", "unknown", "needs_reconciliation"})
"""States of a slot that may have reached the outside. `proposed` was never sent, and never will be under an ended lease."""

_OWN = frozenset({End.SUCCEEDED, End.CANCELLED})

LOST = Failure("infrastructure", "the worker stopped reporting", "LEASE_LOST")
NOT_TAKEN_UP = Failure("infrastructure", "the worker never reported after the grant", "LEASE_LOST")
TIMED_OUT = Failure("attempt", "the attempt took longer than its step allows", "TIMED_OUT")
SUPERSEDED = Failure("infrastructure", "the scheduler's database was promoted or restored", "LEASE_LOST")


@value(frozen=True, slots=True)
class Ending:
    """An end to commit: of this step, under this fence."""

    run_id: UUID
    step_key: str
    fence: StepFence
    end: End
    failure: Failure | None = None
    report: bytes = b""
    output: bytes = b""
    awaits: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        """Its step."""
        return (self.run_id, self.step_key)


@value(frozen=True, slots=True)
class Finished:
    """What readiness is told."""

    run_id: UUID
    step_key: str
    ticket_sequence: int
    attempt_id: UUID
    lease_epoch: int
    authority_epoch: int
    end: End
    failure: Failure | None
    output: bytes
    unresolved: Mapping[str, int]
    worker_id: str
    ended_ms: int
    awaits: tuple[str, ...] = ()
    """Of a yield: slots that the step waits for."""


def told(end: End, unresolved: Mapping[str, int]) -> End:
    """The end that readiness gets."""
    return End.UNCERTAIN if unresolved and end not in _OWN else end


def finished(row: TicketRow) -> Finished:
    """What is told of an end that every point has acknowledged."""
    end = told(row.end, row.unresolved)
    return Finished(
        run_id=row.run_id,
        step_key=row.step_key,
        ticket_sequence=row.ticket_sequence,
        attempt_id=row.ended_attempt,
        lease_epoch=row.ended_lease,
        authority_epoch=row.ended_authority,
        end=end,
        failure=row.failure,
        output=b"",
        unresolved=row.unresolved,
        worker_id=row.worker_id,
        ended_ms=row.ended_ms,
        awaits=row.awaits if end is End.YIELDED else (),
    )
