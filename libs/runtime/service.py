"""Authoritative for what a service hands to the process that hosts it. Services are found by name:
`services.<name>.main:compose(host) -> Service`; nothing in libs imports one.

Order of a process: every service is composed (constructs, opens nothing), the servers bind (`host.addresses` is set), each
service is started (opens pools, rebuilds memory), its loops run, its health turns SERVING. Until it is started its calls
are refused UNAVAILABLE. At the end: health NOT_SERVING, servers drain, loops are cancelled, `stop` runs in reverse order.

Can go wrong: a `start` that waits for another service. That one may be waiting too: ask peers from loops, not from `start`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from runway.internal.fence.v1 import fence_pb2
from runway.internal.inbox.v1 import inbox_pb2

from libs.rpc.identity import CallerDirectory, LeaseVerifier
from libs.rpc.server import Mounted as Mounted

SERVICES = ("launch", "readiness", "scheduler", "gateway", "checkpoint", "reconciler")
"""The names a process may host, in the order they are composed and started."""

InboxHandler = Callable[[list[bytes]], Awaitable[tuple[int, list[inbox_pb2.EventVerdict]]]]
"""Serialized runway.events.v1.Event in → (incarnation of the database at the commit, one verdict per event in order).
Raises a Refusal (AUTHORITY_UNREACHABLE) when nothing was applied."""


StuckHandler = Callable[[inbox_pb2.ListStuckRequest], Awaitable[inbox_pb2.ListStuckResponse]]
"""What of the service does not move (InboxService.ListStuck)."""


class FencesHandler(Protocol):
    """A point's or authority's fences. A leaf: never calls out. Requests are already validated, and are for this service."""

    async def raise_fences(self, request: fence_pb2.RaiseFencesRequest) -> fence_pb2.RaiseFencesResponse:
        """Merges by maximum; one answer per item in order. An authority that enforces nothing refuses METHOD_DENIED."""
        ...

    async def get_fences(self, request: fence_pb2.GetFencesRequest) -> fence_pb2.GetFencesResponse:
        """The present fences, for a cold read. A point that is no authority refuses METHOD_DENIED."""
        ...


@dataclass(frozen=True, slots=True)
class Loop:
    """Work that runs until it is cancelled. Raising or returning gets it restarted with backoff, and logged."""

    name: str
    run: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Every:
    """A verb called again and again, `interval_ms` between the end of one call and the start of the next.

    An exception is logged and backed off; a Refusal (a database away) is an expected one.
    """

    interval_ms: int
    verb: Callable[[], Awaitable[object]]
    name: str


class Service(Protocol):
    """What `compose` returns. A class of the service's own may satisfy it, or `Composed` below."""

    @property
    def name(self) -> str:
        """One of SERVICES."""
        ...

    @property
    def servicers(self) -> Sequence[Mounted]:
        """Its own gRPC services; not InboxService and FenceService, which the process serves once and routes."""
        ...

    @property
    def inbox(self) -> InboxHandler | None:
        """Where events for it go; None refuses them."""
        ...

    @property
    def stuck(self) -> StuckHandler | None:
        """Answers what does not move; None answers that nothing is stuck."""
        ...

    @property
    def fences(self) -> FencesHandler | None:
        """Its fences; None where it has none."""
        ...

    @property
    def loops(self) -> Sequence[Loop | Every]:
        """What runs between start and stop. Read after start."""
        ...

    @property
    def deadlines_ms(self) -> Mapping[str, int]:
        """Long polls: the server's own limit for clients that set no deadline, by the method's path
        (`/runway.launch.v1.LaunchService/WaitRun`); 30 s for every other unary method."""
        ...

    @property
    def callers(self) -> CallerDirectory | None:
        """How API keys are resolved: only their authority (launch) has one, and gives the raw directory, not a cached one. It
        serves the whole process through a cache; a process without it asks launch over the wire by itself."""
        ...

    @property
    def leases(self) -> LeaseVerifier | None:
        """How lease tokens for its methods are verified; needed where a method says FENCE_LEASE."""
        ...

    def start(self) -> Awaitable[None]:
        """Opens what it needs. A Refusal AUTHORITY_UNREACHABLE is retried with backoff; anything else ends the process."""
        ...

    def healthy(self) -> Awaitable[bool]:
        """Whether its database and whatever else it cannot do without answer. Asked every second, with a second to answer."""
        ...

    def stop(self) -> Awaitable[None]:
        """Closes what start opened; must also be safe when start failed half way."""
        ...


async def _nothing() -> None:
    return None


@dataclass(slots=True)
class Composed:
    """A Service as plain values: what most `compose` functions return."""

    name: str
    healthy: Callable[[], Awaitable[bool]]
    servicers: Sequence[Mounted] = ()
    inbox: InboxHandler | None = None
    stuck: StuckHandler | None = None
    fences: FencesHandler | None = None
    loops: Sequence[Loop | Every] = ()
    deadlines_ms: Mapping[str, int] = field(default_factory=dict)
    callers: CallerDirectory | None = None
    leases: LeaseVerifier | None = None
    start: Callable[[], Awaitable[None]] = _nothing
    stop: Callable[[], Awaitable[None]] = _nothing
