"""What operators hold back: names of what can be held, and what a set of holds stops. Pure.

Authoritative for the words: a queue is a tenant, a project of one (`tenant/project`) or a handler (it holds an `@`) of every
tenant; a worker is `tenant/worker_id`; a shard is its number; a step is `RUN_ID/STEP_KEY`, with all its instances where the key
is not that of one. Can go wrong: a name that means nothing. `target_of` says so
before anything is stored.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum
from uuid import UUID

from libs.kernel.epochs import Mode
from libs.kernel.ids import SHARDS
from libs.kernel.values import value

MOST_KEY = 200
"""Characters of a step's key, at most."""


class HoldKind(IntEnum):
    """What is held."""

    SHARD = 1
    QUEUE = 2
    WORKER = 3
    STEP = 4


class HoldMode(IntEnum):
    """HOLD: nothing new is granted. DRAIN: and live attempts are asked to end soon."""

    HOLD = 1
    DRAIN = 2


@value(frozen=True, slots=True)
class Hold:
    """A hold, in force while `released_ms` is 0."""

    hold_id: int
    kind: HoldKind
    name: str
    mode: HoldMode
    reason: str
    actor: str
    at_ms: int
    released_ms: int = 0
    released_by: str = ""
    release_reason: str = ""


@value(frozen=True, slots=True)
class Placed:
    """A hold as stored, the revision that says so, and whether it was news."""

    hold: Hold
    revision: int
    changed: bool


@value(frozen=True, slots=True)
class Extent:
    """What a hold stops. `seen`: whether anything of that name was ever seen."""

    queued: int
    live: int
    workers: int
    seen: bool


@value(frozen=True, slots=True)
class QueueRow:
    """Tickets of one handler in one project."""

    tenant: str
    project: str
    handler: str
    waiting: int
    oldest_ms: int
    live: int
    workers: int

    @property
    def name(self) -> tuple[str, str, str]:
        """Tenant, project and handler."""
        return (self.tenant, self.project, self.handler)


@value(frozen=True, slots=True)
class Target:
    """What is held, taken apart; what is not named is empty, and -1 is no shard."""

    kind: HoldKind
    shard: int = -1
    tenant: str = ""
    project: str = ""
    handler: str = ""
    worker_id: str = ""
    run_id: UUID | None = None
    step_key: str = ""


@value(frozen=True, slots=True)
class Place:
    """Where a ticket or an attempt belongs."""

    shard: int
    tenant: str
    project: str
    handler: str
    calls: tuple[str, ...] = ()
    """Tools and models that it may call."""
    run_id: UUID | None = None
    step_key: str = ""

    @property
    def scopes(self) -> Iterable[tuple[str, str]]:
        """Everything whose switch stops it, as launch names it."""
        yield ("tenant", self.tenant)
        yield ("project", f"{self.tenant}/{self.project}")
        for call in self.calls:
            yield ("tool", call)

    @property
    def names(self) -> tuple[tuple[HoldKind, str], ...]:
        """Everything whose hold stops it."""
        return (
            (HoldKind.SHARD, str(self.shard)),
            (HoldKind.QUEUE, self.tenant),
            (HoldKind.QUEUE, f"{self.tenant}/{self.project}"),
            (HoldKind.QUEUE, self.handler),
        )

    @property
    def steps(self) -> tuple[tuple[HoldKind, str], ...]:
        """Its step, and where that is an instance the step that has it."""
        if self.run_id is None:
            return ()
        key, of = (HoldKind.STEP, f"{self.run_id}/{self.step_key}"), self.step_key.partition("[")[0]
        return (key,) if of == self.step_key else (key, (HoldKind.STEP, f"{self.run_id}/{of}"))


def target_of(kind: HoldKind, name: str) -> Target | None:
    """What a name means; None: nothing."""
    if kind is HoldKind.SHARD:
        shard = int(name) if name.isascii() and name.isdigit() and len(name) <= 2 else SHARDS
        return Target(kind, shard=shard) if shard < SHARDS and str(shard) == name else None
    if kind is HoldKind.QUEUE and "@" in name:
        return Target(kind, handler=name)
    if kind is HoldKind.STEP:
        return _step_of(name)
    tenant, slash, rest = name.partition("/")
    if not tenant or (slash and not rest) or (kind is HoldKind.WORKER and not rest):
        return None
    if kind is HoldKind.WORKER:
        return Target(kind, tenant=tenant, worker_id=rest)
    return Target(kind, tenant=tenant, project=rest) if "/" not in rest else None


def _step_of(name: str) -> Target | None:
    """A run's id, as it is written everywhere, and a step's key."""
    run, _, key = name.partition("/")
    try:
        run_id = UUID(run)
    except ValueError:
        return None
    good = str(run_id) == run and key and len(key) <= MOST_KEY and "\0" not in key
    return Target(HoldKind.STEP, run_id=run_id, step_key=key) if good else None


class Holds:
    """The holds in force, and the scopes that launch stopped, for quick questions."""

    def __init__(
        self, holds: Iterable[Hold] = (), revision: int = -1, stopped: Mapping[tuple[str, str], Mode] | None = None
    ) -> None:
        self.revision = revision
        self.stopped: Mapping[tuple[str, str], Mode] = stopped or {}
        self._by_name = {(hold.kind, hold.name): hold for hold in holds}
        self._steps = any(kind is HoldKind.STEP for kind, _ in self._by_name)

    def __bool__(self) -> bool:
        return bool(self._by_name or self.stopped)

    @property
    def steps(self) -> list[Hold]:
        """Those of single steps."""
        return [hold for (kind, _), hold in self._by_name.items() if kind is HoldKind.STEP]

    def killed(self, place: Place) -> bool:
        """Whether nothing of its tenant or project may commit any more."""
        scopes = ("tenant", place.tenant), ("project", f"{place.tenant}/{place.project}")
        return any(self.stopped.get(scope) is Mode.CLOSED for scope in scopes)

    def _switched_off(self, place: Place) -> bool:
        return bool(self.stopped) and any(scope in self.stopped for scope in place.scopes)

    def _names(self, place: Place) -> tuple[tuple[HoldKind, str], ...]:
        """Everything whose hold stops it; steps only where any is held: their names cost most."""
        return (*place.names, *place.steps) if self._steps else place.names

    def on(self, place: Place) -> list[Hold]:
        """Holds that stop a ticket there."""
        if not self._by_name:
            return []
        return [hold for name in self._names(place) if (hold := self._by_name.get(name)) is not None]

    def of(self, kind: HoldKind, name: str) -> Hold | None:
        """The hold in force on a name."""
        return self._by_name.get((kind, name))

    def stops(self, place: Place) -> bool:
        """Whether a ticket there is held back."""
        return self._switched_off(place) or (bool(self._by_name) and any(name in self._by_name for name in self._names(place)))

    def stops_worker(self, tenant: str, worker_id: str) -> bool:
        """Whether a worker gets nothing."""
        return bool(self._by_name) and (HoldKind.WORKER, f"{tenant}/{worker_id}") in self._by_name

    def asks_to_yield(self, place: Place, owner: str, worker_id: str) -> bool:
        """Whether a live attempt there is asked to end soon. `owner`: the tenant of its worker's key."""
        if self._switched_off(place):
            return True
        if not self._by_name:
            return False
        names = (*self._names(place), (HoldKind.WORKER, f"{owner}/{worker_id}"))
        return any((hold := self._by_name.get(name)) is not None and hold.mode is HoldMode.DRAIN for name in names)


def successors_of(shards: Iterable[int], leaders: Mapping[int, str], members: Collection[str], to: str = "") -> dict[int, str]:
    """Who takes each shard: `to`, else the members that do not lead it now, in turn; without one it is left out."""
    found: dict[int, str] = {}
    for turn, shard in enumerate(sorted(shards)):
        others = sorted(member for member in members if member != leaders.get(shard, "") and (not to or member == to))
        if others:
            found[shard] = others[turn % len(others)]
    return found
