"""Authoritative for when silence means lost. Pure; all times are the leader's own monotonic milliseconds.

A sweep that would end leases is held once, for one TTL, on evidence against *ourselves*: we were late, our database or
etcd was slow, or nobody at all was heard although many leases of several workers are due. A step's own time limit and a
grant that was never taken up need no such care.

Can go wrong: judging by wall time, or by another process' clock. Neither is a parameter here.
"""

from collections.abc import Iterable

from libs.kernel.values import value
from services.scheduler.domain.ending import LOST, NOT_TAKEN_UP, TIMED_OUT, Ending
from services.scheduler.domain.lease import Lease
from services.scheduler.domain.ticket import End

MANY_LEASES = 20
SEVERAL_WORKERS = 3


@value(frozen=True, slots=True)
class Evidence:
    """What speaks against ourselves since the last sweep."""

    loop_lag_ms: float
    database_ms: float
    etcd_ms: float
    heard: int
    """Heartbeats of anybody."""


@value(frozen=True, slots=True)
class Hold:
    """Whether a hold is on, and until when; a hold that has passed is not repeated until a sweep was clean."""

    until_ms: int = 0
    used: bool = False


@value(frozen=True, slots=True)
class Sweep:
    """What to end now, and the hold to remember."""

    endings: list[Ending]
    hold: Hold
    held: bool = False


def sweep(leases: Iterable[Lease], now_ms: int, first_beat_ms: int, ttl_ms: int, evidence: Evidence, hold: Hold) -> Sweep:
    """Which leases end now. `ttl_ms` is the default TTL: the length of a hold and the measure of being late."""
    sure: list[Ending] = []
    silent: list[Lease] = []
    for lease in leases:
        if lease.stopping:
            continue
        if lease.ends_ms is not None and now_ms >= lease.ends_ms:
            sure.append(_ending(lease, timed_out=True))
        elif now_ms - lease.heard_ms >= (lease.ttl_ms if lease.beaten else min(first_beat_ms, lease.ttl_ms)):
            silent.append(lease)
    if not silent:
        return Sweep(sure, Hold())
    if now_ms < hold.until_ms:
        return Sweep(sure, hold, held=True)
    if not hold.used and _against_us(silent, evidence, ttl_ms):
        return Sweep(sure, Hold(now_ms + ttl_ms, used=True), held=True)
    return Sweep(sure + [_ending(lease, timed_out=False) for lease in silent], Hold(hold.until_ms, hold.used))


def _ending(lease: Lease, *, timed_out: bool) -> Ending:
    if timed_out:
        return Ending(lease.run_id, lease.step_key, lease.fence, End.TIMED_OUT, TIMED_OUT)
    return Ending(lease.run_id, lease.step_key, lease.fence, End.LOST, LOST if lease.beaten else NOT_TAKEN_UP)


def _against_us(silent: list[Lease], evidence: Evidence, ttl_ms: int) -> bool:
    late_ms = ttl_ms / 4
    if max(evidence.loop_lag_ms, evidence.database_ms, evidence.etcd_ms) > late_ms:
        return True
    workers = {lease.worker_id for lease in silent}
    return evidence.heard == 0 and len(silent) > MANY_LEASES and len(workers) >= SEVERAL_WORKERS
