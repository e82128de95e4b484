"""Authoritative for when a gateway process is proved dead. Unreachable, silent or stopped is not dead.

Proof is local: the machine has booted since, or the pid is gone, is a corpse, or belongs to a process that started at
another time. Can go wrong: judging pids of another pid namespace or machine. Those prove nothing, so they are left alone.
"""

from uuid import UUID

from libs.kernel.values import value


@value(frozen=True, slots=True)
class ProcessIdentity:
    """A process as it registered itself. `start`: its start time in clock ticks since boot; 0 where it could not be read."""

    process: UUID
    host: str
    boot: str
    pid_space: str
    pid: int
    start: int
    ended: bool = False
    """Whether it said itself, after cutting its last call, that it is over."""


@value(frozen=True, slots=True)
class PidState:
    """What the machine says of a pid now: None for `start` means that no such process runs."""

    start: int | None
    corpse: bool = False


def proved_dead(other: ProcessIdentity, here: ProcessIdentity, now: PidState) -> bool:
    """Whether `other` can never act again, as far as can be proved from where `here` runs."""
    if other.ended:
        return True
    if not other.host or not here.host or other.host != here.host or not other.boot or not here.boot:
        return False
    if other.boot != here.boot:
        return True
    if other.pid_space != here.pid_space or not other.start:
        return False
    return now.start is None or now.corpse or now.start != other.start
