"""Authoritative for which attempts of migrations are asked to give back slots that they borrowed. Pure.

Beyond their cap migrations take what is idle. When others wait that could use such a slot, the newest borrowed leases are asked
to end at their next checkpoint: just as many as it takes, never so many that migrations fall below their cap. Who would use
them is found by the planner itself: it plans for what is free and, after that, for the slots of borrowed leases, over tickets
of all other classes. So nobody is asked for those whom a bound, a bucket, a label or a resource keeps waiting anyway.

Asked first are those that are asked already, so that an ask is not moved from one that is about to end to a newer one. Who was
asked for `DEAF_MS` and goes on is asked still, but not relied on: another is asked as well. Can go wrong: asking for what would
be free in a moment. A need counts only as far as it was there a look before, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from libs.kernel.values import value
from services.scheduler.domain.lines import TenantQueue
from services.scheduler.domain.planner import Standing, play
from services.scheduler.domain.polls import Poll
from services.scheduler.domain.rank import MIGRATION
from services.scheduler.domain.resources import Amounts
from services.scheduler.domain.ticket import Key

DEAF_MS = 15_000
"""Who was asked so long ago may never come to a checkpoint."""


@value(frozen=True, slots=True)
class Held:
    """A live lease of a migration on a shared worker, and what that worker carries."""

    key: Key
    granted_ms: int
    asked: bool
    handlers: frozenset[str]
    labels: frozenset[str]
    takes: Amounts = ()
    """What of its worker comes free with its slot."""
    total: Amounts = ()
    deaf: bool = False
    """Whether it was asked long ago."""


def borrowed(held: Iterable[Held], polls: Sequence[Poll], standing: Standing) -> list[Held]:
    """Those beyond the cap, the first to be asked first."""
    leases = sorted(held, key=lambda one: (not one.asked, -one.granted_ms, one.key))
    capacity = sum(standing.shared_leases.values()) + sum(poll.slots for poll in polls if not poll.tenant)
    cap = capacity * standing.policy.migration_permille // 1000
    return leases[: max(0, standing.shared_leases.get(MIGRATION, 0) - cap)]


def wanted(held: Iterable[Held], polls: Sequence[Poll], queues: Mapping[str, TenantQueue], standing: Standing) -> list[Key]:
    """Leases whose slots others would use now, the first to be asked first."""
    offered = borrowed(held, polls, standing)
    order = _used(offered, polls, queues, standing)
    deaf = {one.key for one in offered if one.deaf}
    relied = sum(key in deaf for key in order)
    if relied:
        others = _used([one for one in offered if not one.deaf], polls, queues, standing)
        order += [key for key in others if key not in order][:relied]
    return order


def _used(offered: Sequence[Held], polls: Sequence[Poll], queues: Mapping[str, TenantQueue], standing: Standing) -> list[Key]:
    """Those of which others would use the slots, in the order given."""
    waiting = {name: others for name, queue in queues.items() if (others := queue.without(MIGRATION)).heads}
    if not offered or not waiting:
        return []
    first = max((poll.number for poll in polls), default=0) + 1
    slots = [
        Poll(first + at, "", "", one.handlers, one.labels, 1, free=one.takes, total=one.total) for at, one in enumerate(offered)
    ]
    left = {**standing.shared_leases, MIGRATION: standing.shared_leases[MIGRATION] - len(offered)}
    before = replace(standing, shared_leases=left)
    played = play([*polls, *slots], waiting, before)
    used = {grant.poll for grant in played.grants}
    order = [one.key for at, one in enumerate(offered) if first + at in used]
    if played.others_left < play([*polls, *slots], {}, before).others_left:
        # Others took part of what the reserve leaves to them: where a free slot is the reserve's, one more is due for it.
        rest = [one.key for at, one in enumerate(offered) if first + at not in used]
        order += rest[: max(0, len(offered) - played.others_left - len(order))]
    return order


def asked(now: Sequence[Key], before: int) -> frozenset[Key]:
    """Which of these are asked, where so many slots were wanted a look before."""
    return frozenset(now[:before])
