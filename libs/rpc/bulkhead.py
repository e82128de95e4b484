"""Authoritative for which calls of one port may go on now: it holds those that wait, starts them, and sends away what the port
does not bear, with a reason and the time at which to come again. The decisions are `shedding.py`'s.

Can go wrong: a place that is never given back. Whoever was let in holds a `Seat`, and leaves it in a `finally`; a call that is
cancelled while it waits leaves the line by itself.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from libs.kernel.refusal import Reason, Refusal
from libs.rpc.shedding import RANKS, Bounds, Criticality, Pacer, Port, Waiting
from libs.telemetry.catalogue import RPC_LASTING, RPC_PLACES, RPC_SHED, RPC_WAITING

LOOK_S = 0.05
"""How often what waits is looked at for those who have waited too long."""
NAMES: Mapping[Criticality, str] = {rank: rank.name.lower() for rank in Criticality}


@dataclass(frozen=True, slots=True)
class Strength:
    """What a port bears, and how fast those whom it sent away may come again, all together."""

    bounds: Bounds = field(default_factory=Bounds)
    lasting_per_tenant: int = 1_000
    again_per_s: int = 200


class Seat:
    """The right to go on; left once."""

    __slots__ = ("_leave",)

    def __init__(self, leave: Callable[[], None] | None = None) -> None:
        self._leave = leave

    def leave(self) -> None:
        """The call is over."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()


FREE = Seat()
"""Of calls that nobody counts."""


class Bulkhead:
    """The calls of one port."""

    def __init__(self, port_name: str, strength: Strength, lag_ms: Callable[[], float] = lambda: 0.0) -> None:
        self._name = port_name
        self._strength = strength
        self._lag_ms = lag_ms
        self.port = Port(strength.bounds)
        self._pacer = Pacer(strength.again_per_s)
        self._calls: dict[int, tuple[Waiting, asyncio.Future[None]]] = {}
        self._lasting: dict[tuple[str, str], int] = {}
        self._numbers = 0
        self._looking: asyncio.TimerHandle | None = None
        self._leaving = {rank: self._leaver(rank) for rank in RANKS}
        self._waiting = {rank: RPC_WAITING.labels(port_name, NAMES[rank]) for rank in RANKS}
        self._places = RPC_PLACES.labels(port_name)
        self._places.set(self.port.places)
        self._lasting_gauges: dict[str, Any] = {}

    async def enter(self, rank: Criticality, tenant: str, method: str, *, lasting: bool) -> Seat:
        """Waits for a place, or refuses with OVERLOADED. A lasting call waits for one and gives it back at once."""
        if rank is Criticality.VITAL:
            return FREE
        self.port.weigh(self._lag_ms(), self._now_ms())
        seat = self._last(rank, tenant, method) if lasting else None
        try:
            if not self.port.begin(rank):
                await self._wait(rank, tenant)
        except BaseException:
            if seat is not None:
                seat.leave()
            raise
        if seat is None:
            return Seat(self._leaving[rank])
        self._leaving[rank]()
        return seat

    def _leaver(self, rank: Criticality) -> Callable[[], None]:
        def leave() -> None:
            self.port.end(rank)
            if len(self.port.line):
                self._move()

        return leave

    def _last(self, rank: Criticality, tenant: str, method: str) -> Seat:
        """Counts a lasting call, from before it stands in line."""
        if self._lasting.get((tenant, method), 0) >= self._strength.lasting_per_tenant:
            raise self._refusal(
                rank, tenant, "lasting_calls", f"the tenant has {self._strength.lasting_per_tenant} such calls waiting here"
            )
        key = (tenant, method)
        self._lasting[key] = self._lasting.get(key, 0) + 1
        gauge = self._lasting_gauges.get(method)
        if gauge is None:
            gauge = self._lasting_gauges[method] = RPC_LASTING.labels(self._name, method)
        gauge.inc()

        def leave() -> None:
            gauge.dec()
            left = self._lasting[key] - 1
            if left:
                self._lasting[key] = left
            else:
                del self._lasting[key]

        return Seat(leave)

    async def _wait(self, rank: Criticality, tenant: str) -> None:
        """Returns with a place taken."""
        self._numbers += 1
        call = Waiting(self._numbers, rank, tenant, self._now_ms())
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls[call.number] = (call, turn)
        self.port.wait(call)
        self._waiting[rank].inc()
        self._move()
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._leaving[rank]()  # cancelled in the very moment in which its turn came
            elif self._calls.pop(call.number, None) is not None:
                self.port.line.remove(call)
            raise
        finally:
            self._waiting[rank].dec()

    def _move(self) -> None:
        """Starts who may start, sends away who must go, and comes back while somebody waits."""
        now_ms = self._now_ms()
        self.port.weigh(self._lag_ms(), now_ms)
        while (call := self.port.starting()) is not None:
            self._calls.pop(call.number)[1].set_result(None)
        while (call := self.port.shed(now_ms)) is not None:
            turn = self._calls.pop(call.number)[1]
            turn.set_exception(
                self._refusal(call.criticality, call.tenant, "overload", "more calls wait here than can be served in time")
            )
        self._places.set(self.port.places)
        if len(self.port.line) and self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._looking = None
        self._move()

    def _refusal(self, rank: Criticality, tenant: str, bound: str, message: str) -> Refusal:
        RPC_SHED.labels(self._name, NAMES[rank], bound).inc()
        slower = self.port.bounds.places / self.port.places  # who is late can look at fewer who come again
        delay_ms = self._pacer.delay_ms(tenant, self._now_ms(), slower)
        return overloaded(message, delay_ms, bound, NAMES[rank])

    @staticmethod
    def _now_ms() -> int:
        return int(asyncio.get_running_loop().time() * 1000)


def overloaded(message: str, retry_after_ms: int, bound: str, criticality: str) -> Refusal:
    """OVERLOADED: nothing was decided, and the same call will do better at the time that is named."""
    return Refusal(
        Reason.OVERLOADED,
        f"{message}; nothing was decided",
        remedy="repeat the same call after the delay in RetryInfo, not sooner",
        retry_after_ms=retry_after_ms,
        detail={"bound": bound, "criticality": criticality, "commit": "none"},
    )
