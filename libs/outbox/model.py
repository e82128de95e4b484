"""Authoritative for what an outgoing event is and how a receiver answers. Pure.

Can go wrong: a receiver that answers fewer verdicts than it got events. What has no verdict is sent again.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol
from uuid import UUID

from libs.kernel.values import value

RAISE_KIND = "raise_fences"
RAISE_LANE = "raise"
EVENT_LANE = "event"


@value(frozen=True, slots=True)
class Outgoing:
    """An event for one receiver. `kind` is the name of its fact in `runway.events.v1.Event`, or `raise_fences`.

    `patient`: nothing waits for it, so it may wait for others of its key. Memory's alone: read from the table, it goes at once.
    """

    event_id: UUID
    receiver: str
    kind: str
    key: UUID
    payload: bytes
    patient: bool = False

    @property
    def lane(self) -> str:
        """Raises go to the leaf port and never queue behind events."""
        return RAISE_LANE if self.kind == RAISE_KIND else EVENT_LANE


class Verdict(IntEnum):
    """What became of an event; the numbers of `runway.internal.inbox.v1.Verdict`."""

    UNSPECIFIED = 0
    APPLIED = 1
    RETRY = 2
    REFUSED = 3


@value(frozen=True, slots=True)
class SendResult:
    """A receiver's answer: its database's incarnation, and for each payload in order (verdict, reason, answer bytes)."""

    incarnation: int
    verdicts: Sequence[tuple[Verdict, str, bytes]]


class Sender(Protocol):
    """Takes payloads to a receiver. Raises anything when it cannot: then nothing is known, and all are sent again."""

    async def send(self, receiver: str, lane: str, payloads: Sequence[bytes]) -> SendResult:
        """One call; `lane` is `event` (Deliver) or `raise` (RaiseFences)."""
        ...
