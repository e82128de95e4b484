"""Authoritative for when a ticket may begin, by how fast its like was granted lately, and on what that rests. Pure.

Can go wrong: an estimate without ground. Where nothing was granted lately, or time alone cures nothing, there is none. And one
that a bucket refutes: however fast its like was granted lately, a ticket begins no sooner than its bucket has enough for it.
"""

from libs.kernel.blockers import Block, Estimate
from libs.kernel.values import value
from services.scheduler.domain.explain import Explained, count_of
from services.scheduler.domain.lines import Candidate

CURED_BY_TIME = frozenset(
    {
        Block.TENANT_QUOTA,
        Block.PROJECT_QUOTA,
        Block.USER_QUOTA,
        Block.NO_FREE_SLOT,
        Block.RESOURCES_IN_USE,
        Block.RESERVE,
        Block.MIGRATION_CAP,
        Block.ANSWER_FULL,
        Block.BUCKET_EMPTY,
        Block.SHARE,
        Block.POSITION,
    }
)
"""Blockers that go when what goes before a ticket is done, or with time alone: only then a rate says anything."""


@value(frozen=True, slots=True)
class Pace:
    """So many tickets of one tenant and handler were granted in so long."""

    granted: int
    span_ms: int


def estimate(ticket: Candidate, explained: Explained, pace: Pace | None, now_ms: int) -> Estimate | None:
    """None where there is no ground: nothing was granted lately, or what blocks is not cured by time."""
    position = explained.position
    if pace is None or not pace.granted or position is None:
        return None
    if any(found.code not in CURED_BY_TIME for found in explained.blockers) or explained.fills_ms is None:
        return None
    before = position.ahead_in_tenant
    wait_ms = (before + 1) * pace.span_ms // pace.granted if explained.blockers else 0
    basis = (
        f"{count_of(pace.granted, 'ticket')} of tenant {ticket.tenant} for {ticket.handler} were granted here in the last "
        f"{pace.span_ms / 1000:.0f} s; {before} go before it"
    )
    if explained.fills_ms > wait_ms:
        wait_ms = explained.fills_ms
        basis += f"; the bucket of {explained.dry} has enough in {wait_ms / 1000:.1f} s at the earliest"
    return Estimate(now_ms + wait_ms, basis)
