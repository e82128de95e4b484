"""Authoritative for whether a run's envelope has slices for its children: each ask whole or not at all, first come, first
served.

Pure. Can go wrong: a slice that is taken twice. It is known by its delegation: what is out already costs nothing, and what
came back is not taken again.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from libs.kernel.epochs import Mode
from libs.kernel.values import value


@value(frozen=True, slots=True)
class Envelope:
    """What a gate holds, in micros."""

    run_id: UUID
    mode: Mode
    granted: int
    held: int
    used: int
    delegated: int
    sequence: int

    @property
    def free(self) -> int:
        """What a call or a child may still take."""
        return self.granted - self.held - self.used - self.delegated


@value(frozen=True, slots=True)
class Slice:
    """A child's part, in all. `sequence` rises with each raise that was stored."""

    delegation: bytes
    micros: int
    sequence: int = 1


@value(frozen=True, slots=True)
class Delegated:
    """A slice as it is stored."""

    micros: int
    sequence: int
    returned: bool


@value(frozen=True, slots=True)
class SliceAsk:
    """Slices of one parent."""

    run_id: UUID
    slices: tuple[Slice, ...]


@value(frozen=True, slots=True)
class SliceAnswer:
    """Whether all of an ask is taken; else why: budget, closed or returned. `free` afterwards."""

    taken: bool
    reason: str
    free: int


@value(frozen=True, slots=True)
class Returned:
    """A slice that comes back: `spent` by the child and all below it."""

    run_id: UUID
    delegation: bytes
    spent: int


def take(
    envelopes: Mapping[UUID, Envelope], known: Mapping[tuple[UUID, bytes], Delegated], asks: Sequence[SliceAsk]
) -> tuple[list[SliceAnswer], list[tuple[UUID, Slice]]]:
    """One answer per ask, in order, and what is new to be stored."""
    free = {run_id: envelope.free for run_id, envelope in envelopes.items()}
    standing = dict(known)
    answers: list[SliceAnswer] = []
    new: list[tuple[UUID, Slice]] = []
    for ask in asks:
        reason, more = _judge(envelopes.get(ask.run_id), standing, ask, free.get(ask.run_id, 0))
        if not reason:
            wanted = [s for s in ask.slices if _adds(standing.get((ask.run_id, s.delegation)), s)]
            standing |= {(ask.run_id, s.delegation): Delegated(s.micros, s.sequence, False) for s in wanted}
            new += [(ask.run_id, s) for s in wanted]
            free[ask.run_id] -= more
        answers.append(SliceAnswer(not reason, reason, max(0, free.get(ask.run_id, 0))))
    return answers, new


def _judge(
    envelope: Envelope | None, standing: Mapping[tuple[UUID, bytes], Delegated], ask: SliceAsk, free: int
) -> tuple[str, int]:
    """Why not, and what it takes."""
    if envelope is None or envelope.mode is Mode.CLOSED:
        return "closed", 0
    more = 0
    for one in ask.slices:
        stands = standing.get((ask.run_id, one.delegation))
        if stands is not None and stands.returned:
            return "returned", 0
        if _adds(stands, one):
            more += one.micros - (stands.micros if stands is not None else 0)
    return ("budget", more) if more > free else ("", more)


def _adds(stands: Delegated | None, one: Slice) -> bool:
    """Of two raises at once, which have one number, the greater is out: whichever of them is stored, its money was taken."""
    return stands is None or (stands.sequence, stands.micros) < (one.sequence, one.micros)
