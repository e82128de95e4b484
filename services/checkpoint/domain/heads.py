"""Authoritative for what may follow a step's head: the compare-and-set of checkpoints."""

from enum import Enum

from libs.kernel.refusal import Reason, Refusal, invalid_field
from libs.kernel.values import value
from services.checkpoint.domain.values import Head, Sealed

NO_HEAD = Head(b"", 0)


class Known(Enum):
    """Nothing is to be written."""

    REPLAYED = "replayed"
    """The head is this very checkpoint: the same attempt committed it before."""


@value(frozen=True, slots=True)
class Follow:
    """The checkpoint becomes the head, if the head still is `expected`."""

    expected: bytes


Decision = Known | Follow | Refusal


def decide(head: Head | None, asked: Sealed) -> Decision:
    """What a commit does to a head. It may follow the head, or, where that one was found damaged, the newest that verifies."""
    head = head or NO_HEAD
    if head.digest and head.digest == asked.digest:
        return Known.REPLAYED
    parent, sequence = asked.commit.parent, asked.commit.sequence
    if parent == head.digest:
        before = head.sequence
    elif head.resume is not None and parent == head.resume:
        before = head.resume_sequence
    else:
        return conflict(head)
    if sequence <= before:
        return invalid_field(
            "boundary_sequence", f"must be above {before}, the parent's", "number the boundaries of a step in rising order"
        )
    return Follow(head.digest)


def conflict(head: Head) -> Refusal:
    """CHECKPOINT_CONFLICT: somebody else's checkpoint came first."""
    return Refusal(
        Reason.CHECKPOINT_CONFLICT,
        f"the step's head is {head.digest.hex() or 'none'} now, not the parent named",
        remedy="restore the step, and build the checkpoint on what that gives",
        detail={"head_digest": head.digest.hex(), "boundary_sequence": str(head.sequence)},
    )
