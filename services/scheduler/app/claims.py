"""What a claim asks, who waits, and what it is given. Values; authoritative for nothing.

Can go wrong: a repeat that is taken for another claim: who asks is part of a claim's name. And a memory of claims that
grows with what each got: its bound is of leases. A repeat whose claim is forgotten still finds the leases that live, and is
a new claim else.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from libs.kernel.epochs import StepFence
from libs.kernel.values import value
from services.scheduler.app.queue import Ready
from services.scheduler.app.roll import Heard
from services.scheduler.domain.asker import Asker
from services.scheduler.domain.commits import GrantAsk, Granted, Signed
from services.scheduler.domain.lease import Lease
from services.scheduler.domain.polls import Poll
from services.scheduler.domain.resources import Amounts
from services.scheduler.domain.ticket import Key

LEASES_REMEMBERED = 50_000

Name = tuple[Asker, UUID]
"""What a claim's repeat is known by."""


class AnsweredClaims:
    """What claims got lately, the oldest forgotten first."""

    def __init__(self, most_leases: int = LEASES_REMEMBERED) -> None:
        self._most_leases = most_leases
        self._leases = 0
        self._claims: OrderedDict[Name, dict[Key, StepFence]] = OrderedDict()

    def get(self, name: Name) -> Mapping[Key, StepFence] | None:
        """What a claim got; None where it is not known."""
        return self._claims.get(name)

    def add(self, name: Name, key: Key, fence: StepFence) -> None:
        """A lease that a claim got. Its own claim is not forgotten, however many it gets."""
        got = self._claims.setdefault(name, {})
        self._leases += key not in got
        got[key] = fence
        self._claims.move_to_end(name)
        while self._leases > self._most_leases and len(self._claims) > 1:
            self._leases -= len(self._claims.popitem(last=False)[1])


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
    free: Amounts = ()
    """What is free besides slots."""
    total: Amounts = ()
    """What the worker has in all, at least what is free."""
    total_slots: int = 0
    process: bytes = b""
    """Which of the worker's name it is."""

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


@dataclass(slots=True)
class Waiting:
    """A poll that waits."""

    ask: ClaimAsk
    number: int
    answer: "asyncio.Future[list[GrantedLease]]"
    busy: bool = False
    leaving: bool = False

    def poll(self) -> Poll:
        """As the planner sees it."""
        ask = self.ask
        return Poll(
            self.number,
            ask.tenant,
            ask.who.project,
            ask.handlers,
            ask.capabilities,
            ask.slots,
            ask.room_bytes,
            ask.worker_id,
            ask.free,
            ask.total,
        )


Taken = tuple[Waiting, Ready]
"""A ticket for a poll."""


@dataclass(slots=True)
class Direct:
    """Grants made in the transaction that stores their tickets; nothing of it counts before that commits."""

    taken: list[Taken]
    asks: list[GrantAsk]
    granted: dict[Key, Granted]


def heard_of(ask: ClaimAsk, now_ms: int) -> Heard:
    """What a claim says of its worker."""
    who, slots = ask.who, max(ask.slots, ask.total_slots)
    told = ask.handlers, ask.capabilities
    return Heard(who.owner, who.project, ask.worker_id, *told, now_ms, who.fleet, ask.total, slots, ask.process)


def scopes_of(tenant: str, project: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """The scopes that a grant of a tenant's project stands under."""
    return (("tenant", tenant), ("project", f"{tenant}/{project}"))
