"""Authoritative for which calls of a port are under way, which wait, and which are shed, as a pure decision: no I/O, no clock,
no chance. Time and the event loop's lag are parameters; `bulkhead.py` holds the calls themselves.

A port has places. The greater criticality starts first; within one, tenants take turns. Lesser calls may fill only a part of
the places, so that one that matters more finds one free at once. What waits is bounded in number and in time: once a line has
stood for a while, patience is short (controlled delay), and bulk loses it first. Over the bound, the oldest bulk call of the
tenant with the most is shed: its caller has most likely given up. Of the rest, the latest: who waits keeps the place. A tenant
that is more than half of the line pays for it with its own calls, or it would push others' bulk out with what it calls urgent.

Can go wrong: shedding a person's call while bulk work waits, or starting one whose client has gone. Criticality is given by
the caller of this file, who takes it from records and never from the request.
"""

from collections import OrderedDict
from dataclasses import dataclass
from enum import IntEnum


class Criticality(IntEnum):
    """How much a call matters; the numbers of `runway.common.v1.Criticality`. VITAL never comes here."""

    BULK = 1
    INTERACTIVE = 2
    WORK = 3
    VITAL = 4


RANKS = (Criticality.WORK, Criticality.INTERACTIVE, Criticality.BULK)
"""In the order in which they start."""
SHARE = {Criticality.WORK: 1.0, Criticality.INTERACTIVE: 0.75, Criticality.BULK: 0.5}
"""How much of the places calls of this and lesser criticality may fill together …"""
OWN = {Criticality.WORK: 1.0, Criticality.INTERACTIVE: 0.625, Criticality.BULK: 0.5}
"""… and how much those of one alone, so that something is left for the lesser."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a port bears. The least places are left to it however late its event loop runs."""

    places: int = 256
    least_places: int = 32
    waiting: int = 1_024
    patience_ms: tuple[int, int, int] = (2_000, 5_000, 10_000)
    """Of bulk, interactive and work, while the line empties now and then …"""
    hurried_ms: tuple[int, int, int] = (200, 1_000, 5_000)
    """… and once it has stood for `standing_ms`."""
    standing_ms: int = 500
    lag_ms: int = 100
    """An event loop that is later than this, twice in a row, has too much of our work …"""
    busy: int = 25
    """… if so many calls began since the former look: else something else makes it late."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call that waits. `number` is unique and grows with each call that comes."""

    number: int
    criticality: Criticality
    tenant: str
    since_ms: int


class Line:
    """Calls that wait. Both ways in and out keep every view of them."""

    def __init__(self) -> None:
        self._ranks: dict[Criticality, OrderedDict[int, Waiting]] = {rank: OrderedDict() for rank in RANKS}
        self._tenants: dict[Criticality, OrderedDict[str, OrderedDict[int, Waiting]]] = {rank: OrderedDict() for rank in RANKS}
        self._of: dict[str, int] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def waiting(self, rank: Criticality) -> int:
        """How many of this criticality wait."""
        return len(self._ranks[rank])

    def add(self, call: Waiting) -> None:
        """To the end."""
        self._ranks[call.criticality][call.number] = call
        self._tenants[call.criticality].setdefault(call.tenant, OrderedDict())[call.number] = call
        self._of[call.tenant] = self._of.get(call.tenant, 0) + 1
        self._length += 1

    def remove(self, call: Waiting) -> bool:
        """Takes a call out, wherever it stands; whether it was there."""
        if self._ranks[call.criticality].pop(call.number, None) is None:
            return False
        tenants = self._tenants[call.criticality]
        del tenants[call.tenant][call.number]
        if not tenants[call.tenant]:
            del tenants[call.tenant]
        self._of[call.tenant] -= 1
        if not self._of[call.tenant]:
            del self._of[call.tenant]
        self._length -= 1
        return True

    def next(self, rank: Criticality) -> Waiting | None:
        """Takes out the oldest call of the tenant whose turn it is."""
        tenants = self._tenants[rank]
        if not tenants:
            return None
        tenant, calls = next(iter(tenants.items()))
        tenants.move_to_end(tenant)
        call = next(iter(calls.values()))
        self.remove(call)
        return call

    def excess(self) -> Waiting | None:
        """Takes out the call that can best be spared."""
        largest = max(self._of, key=self._of.__getitem__, default="")
        greedy = self._of.get(largest, 0) * 2 > self._length
        for rank in reversed(RANKS):
            tenants = self._tenants[rank]
            if largest in tenants if greedy else tenants:
                calls = tenants[largest] if greedy else max(tenants.values(), key=len)
                call = next(iter(calls.values()) if rank is Criticality.BULK else reversed(calls.values()))
                self.remove(call)
                return call
        return None

    def late(self, rank: Criticality, before_ms: int) -> Waiting | None:
        """Takes out the oldest of this criticality where it came before this."""
        call = next(iter(self._ranks[rank].values()), None)
        if call is None or call.since_ms >= before_ms:
            return None
        self.remove(call)
        return call


class Port:
    """The places of one port and the line before them."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.line = Line()
        self.places = bounds.places
        self.under_way = dict.fromkeys(RANKS, 0)
        self._empty_ms = 0
        self._weighed_ms = 0
        self._lag_ms = 0.0
        self._begun = 0

    def begin(self, rank: Criticality) -> bool:
        """Takes a place where one is free for it and nobody of its kind waits."""
        if self.line.waiting(rank) or not self._free(rank):
            return False
        self._begun += 1
        self.under_way[rank] += 1
        return True

    def end(self, rank: Criticality) -> None:
        """Gives a place back."""
        self.under_way[rank] -= 1

    def wait(self, call: Waiting) -> None:
        """Stands in line."""
        if not len(self.line):
            self._empty_ms = call.since_ms
        self.line.add(call)

    def starting(self) -> Waiting | None:
        """Who starts next, with a place taken; None where none is free or nobody waits."""
        for rank in RANKS:
            if self.line.waiting(rank) and self._free(rank):
                call = self.line.next(rank)
                if call is not None:
                    self._begun += 1
                    self.under_way[rank] += 1
                    return call
        return None

    def shed(self, now_ms: int) -> Waiting | None:
        """Who is sent away next: too many wait, or one has waited for too long."""
        if len(self.line) > self.bounds.waiting:
            return self.line.excess()
        standing = now_ms - self._empty_ms >= self.bounds.standing_ms
        patience = self.bounds.hurried_ms if standing else self.bounds.patience_ms
        for rank in reversed(RANKS):
            call = self.line.late(rank, now_ms - patience[rank - 1])
            if call is not None:
                return call
        return None

    def weigh(self, lag_ms: float, now_ms: int) -> None:
        """Fewer places while the event loop is late with what it has, more again while it is not; a step every 250 ms."""
        if now_ms - self._weighed_ms < 250:
            return
        least_lag_ms, begun = min(lag_ms, self._lag_ms), self._begun
        self._lag_ms, self._weighed_ms, self._begun = lag_ms, now_ms, 0
        if least_lag_ms > self.bounds.lag_ms:
            if begun >= self.bounds.busy:
                self.places = max(self.bounds.least_places, self.places * 7 // 10)
        elif self.places < self.bounds.places:
            self.places = min(self.bounds.places, self.places + 16)

    def _free(self, rank: Criticality) -> bool:
        """Whether a call of this kind may take a place: of its own part, and of those of everything greater."""
        if self.under_way[rank] >= self.places * OWN[rank]:
            return False
        taken = 0
        for lesser in reversed(RANKS):
            taken += self.under_way[lesser]
            if lesser >= rank and taken >= self.places * SHARE[lesser]:
                return False
        return True


class Pacer:
    """When who was sent away should come again. Each of a tenant's gets a moment of its own, so that together they come at a
    rate that costs little, and no tenant's crowd puts off another's caller. Later by up to a quarter, never by chance."""

    def __init__(self, per_s: float, least_ms: int = 100, most_ms: int = 60_000, tenants: int = 1_000) -> None:
        self._every_ms = 1_000 / per_s
        self._least_ms, self._most_ms, self._tenants = least_ms, most_ms, tenants
        self._next_ms: OrderedDict[str, float] = OrderedDict()
        self._spread = 0.0

    def delay_ms(self, tenant: str, now_ms: int, slower: float = 1.0) -> int:
        """How long this one should wait; `slower`: how many times fewer a second than at best."""
        while self._next_ms and (len(self._next_ms) > self._tenants or next(iter(self._next_ms.values())) <= now_ms):
            self._next_ms.popitem(last=False)
        crowd = len(self._next_ms) or 1
        due_ms = max(self._next_ms.pop(tenant, 0.0), now_ms) + self._every_ms * crowd * slower
        self._next_ms[tenant] = min(due_ms, now_ms + self._most_ms)
        self._spread = (self._spread + 0.6180339887) % 1
        wait_ms = min(max(due_ms - now_ms, self._least_ms), self._most_ms)
        return int(wait_ms * (1 + self._spread / 4))
