"""Who listens where, and what becomes of messages between processes: late, lost, twice, cut off, as the seed says.

Authoritative for nothing beyond that. Can go wrong: a message that no rule of the weather touched and that is lost all the same.
"""

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from tests.simulation.history import History
from tests.simulation.loop import DEAD, Process, VirtualLoop
from tests.simulation.traps import Traps

if TYPE_CHECKING:
    from tests.simulation.server import Server
    from tests.simulation.wire import Call

Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass(slots=True)
class Weather:
    """How bad the network is: shares of messages."""

    lost: float = 0.0
    twice: float = 0.0
    slow: float = 0.0
    slow_s: float = 1.5
    stuck: float = 0.0
    """Of the slow ones, those that take up to …"""
    stuck_s: float = 25.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What comes back: bytes, or a status."""

    raw: bytes = b""
    code: grpc.StatusCode = grpc.StatusCode.OK
    details: str = ""
    trailing: Metadata = ()

    def error(self) -> grpc.aio.AioRpcError:
        """The status as the caller's exception."""
        return grpc.aio.AioRpcError(
            self.code, grpc.aio.Metadata(), grpc.aio.Metadata(*self.trailing), details=self.details, debug_error_string=""
        )


class Network:
    """Who listens where, and what becomes of messages."""

    def __init__(self, loop: VirtualLoop, chance: random.Random, history: History) -> None:
        self.loop = loop
        self.chance = chance
        self.history = history
        self.weather = Weather()
        self.servers: dict[str, Server] = {}
        self.cut: set[frozenset[str]] = set()
        """Pairs of process names that do not hear each other."""
        self.counts = {"sent": 0, "lost": 0, "twice": 0, "slow": 0}
        self.calm: set[str] = {"world"}
        """Processes whose messages have good weather."""
        self.live: dict[int, Call] = {}
        self.avoided: set[str] = set()
        """Replicas that get no new calls while there are others: a balancer took them out."""
        self.traps: Traps[Call] = Traps(loop, history)
        """Requests that a directed day waits for."""
        self.faults: list[str] = []
        """Calls that ended in a way that no service means."""

    def delay(self, who: Process | None) -> float:
        """How long a message takes."""
        base = self.chance.uniform(0.0002, 0.003)
        if who is not None and who.name in self.calm:
            return base
        if self.weather.slow and self.chance.random() < self.weather.slow:
            self.counts["slow"] += 1
            return base + self.chance.uniform(
                0, self.weather.stuck_s if self.chance.random() < self.weather.stuck else self.weather.slow_s
            )
        return base

    def loses(self, who: Process | None) -> bool:
        """Whether a message is lost."""
        if who is not None and who.name in self.calm:
            return False
        gone = bool(self.weather.lost) and self.chance.random() < self.weather.lost
        self.counts["lost"] += gone
        return gone

    def repeats(self, who: Process | None) -> bool:
        """Whether a message is delivered twice."""
        if who is not None and who.name in self.calm:
            return False
        again = bool(self.weather.twice) and self.chance.random() < self.weather.twice
        self.counts["twice"] += again
        return again

    def severed(self, one: Process | None, other: Process | None) -> bool:
        """Whether two processes are cut off from each other."""
        return one is not None and other is not None and frozenset((one.name, other.name)) in self.cut

    def died(self, process: Process) -> None:
        """The connections of a killed process break: whoever handles its calls hears of it."""
        for call in [one for one in self.live.values() if one.source is process]:
            call.cancel()

    def find(self, address: str) -> "Server | None":
        """The server behind an address; of several replicas the seed takes one that lives."""
        found = [self.servers[one] for one in address.split(",") if one in self.servers]
        alive = [one for one in found if one.open and one.process.state != DEAD]
        alive = [one for one in alive if one.process.name not in self.avoided] or alive
        return self.chance.choice(alive) if alive else None
