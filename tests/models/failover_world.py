"""What the failover model keeps of three databases and the world: its records, and the bounds of each mutant's search."""

from typing import Any, NamedTuple

OPEN, DRAINING, CLOSED = 0, 1, 2
NOBODY = -1
GATEWAY, SCHEDULER = 1, 2
Epoch = tuple[int, int]
Fence = tuple[int, int, int]
Told = tuple[Epoch, int, int, str]
"""What a raise says: epoch, mode, which decision it is (a ghost), outcome."""


class Gate(NamedTuple):
    """A point's gate; `stamp`: the incarnation in which its last cold read began."""

    told: Told = ((0, 0), OPEN, 0, "")
    stamp: int = 0

    def merge(self, told: Told, stamp: int = 0) -> "Gate":
        """By maximum of epoch and mode."""
        return Gate(max(self.told, told, key=lambda value: value[:2]), max(self.stamp, stamp))


class Launch(NamedTuple):
    """The run's row. `acks`, `quiet`: bits of points; `confirmed`: the incarnation in which it has asked the points."""

    phase: str = "open"
    epoch: Epoch = (1, 0)
    decision: int = 0
    outcome: str = ""
    acks: int = 0
    quiet: int = 0
    incarnation: int = 1
    confirmed: int = 1

    @property
    def told(self) -> Told:
        """What its raise says."""
        mode = {"open": OPEN, "paused": DRAINING}.get(self.phase, CLOSED)
        return self.epoch, mode, self.decision, self.outcome


class Scheduler(NamedTuple):
    """The step's row and the gate there. `since`: the incarnation that the row was last written in; `acked`: its raise is."""

    state: str = "ready"
    fence: Fence = (1, 0, NOBODY)
    acked: bool = False
    since: int = 1
    gate: Gate = Gate(((1, 0), OPEN, 0, ""), 1)
    incarnation: int = 1


class Gateway(NamedTuple):
    """The gate and the step's fence there; None: no row."""

    gate: Gate | None = None
    fence: Fence | None = None
    incarnation: int = 1


class Ghost(NamedTuple):
    """What somebody was told, whatever databases remember."""

    decision: int = NOBODY
    epoch: Epoch = (0, 0)
    outcome: str = ""
    terminal: bool = False
    decisions: int = 1
    attempts: int = 0
    pauses: int = 0
    revokes: int = 0
    finished: bool = False
    quiet: int = 0


class Bounds(NamedTuple):
    """Whose database loses its last commits, and how much may happen."""

    victim: str
    attempts: int
    pauses: int = 0
    revokes: int = 0


class World(NamedTuple):
    """Everything. `cold`: a read under way at the gateway; `tokens`: each attempt's fence and the epochs it has tokens of."""

    launch: Launch = Launch()
    scheduler: Scheduler = Scheduler()
    gateway: Gateway = Gateway()
    cold: tuple[int, Told | None, Fence | int | None] | None = None
    tokens: tuple[tuple[Fence, frozenset[Epoch]], ...] = ()
    net: frozenset[tuple[str, Any]] = frozenset()
    ghost: Ghost = Ghost()
    bounds: Bounds | None = None
    snapshot: Any = None


UNASKED = 0
LOST = "lost"
SETTINGS = (Bounds("gateway", 1), Bounds("scheduler", 1), Bounds("launch", 1))
WIDER = (
    Bounds("gateway", 2),
    Bounds("gateway", 1, 1),
    Bounds("scheduler", 2),
    Bounds("launch", 2),
)
NEEDED = {
    "raise-stamps": Bounds("gateway", 1, 1),
    "stamp-at-write": Bounds("gateway", 2),
    "no-step-reseed": Bounds("gateway", 2),
    "unread-gate-admits": Bounds("gateway", 2),
    "newer-token-is-refused": Bounds("scheduler", 2),
    "no-incarnation": Bounds("scheduler", 3),
    "authority-of-the-lease": Bounds("scheduler", 3),
    "old-tickets-trusted": Bounds("scheduler", 3),
    "launch-acts-at-once": Bounds("launch", 1, 1),
    "launch-raises-nothing-anew": Bounds("launch", 2),
    "outcome-not-raised": Bounds("launch", 2),
    "nothing-sent-again": Bounds("launch", 2),
}
