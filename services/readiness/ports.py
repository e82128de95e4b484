"""What readiness' verbs need from outside, as Protocols."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol
from uuid import UUID

from libs.kernel.clock import Clock
from libs.kernel.values import value
from services.readiness.domain.graph import Graph
from services.readiness.domain.steps import AttemptFact, EffectFact, GraphEnd, Step


@value(frozen=True, slots=True)
class RunFacts:
    """What readiness keeps of a run. `state`: 1 active, 2 closed by launch, 3 graph finished."""

    run_id: UUID
    tenant: str
    project: str
    digest: bytes
    build: str
    run_class: int
    priority: int
    deadline_ms: int
    epoch: int
    input: bytes
    traceparent: str
    state: int
    version: int


ACTIVE, CLOSED, FINISHED = 1, 2, 3


@value(frozen=True, slots=True)
class Facts:
    """What one delivery says, sorted by kind; `due` are steps whose backoff has passed."""

    launched: Sequence[RunFacts] = ()
    closed: Sequence[UUID] = ()
    attempts: Sequence[tuple[UUID, AttemptFact]] = ()
    effects: Sequence[tuple[UUID, EffectFact]] = ()
    due: Sequence[tuple[UUID, str]] = ()


@value(frozen=True, slots=True)
class Notice:
    """An event to send beside a commit; `patient`: nothing waits for it."""

    receiver: str
    kind: str
    run_id: UUID
    payload: bytes
    patient: bool = False


class Notices(Protocol):
    """Builds the payloads of events; protobuf stays at the edge."""

    def ready(self, run: RunFacts, graph: Graph, step: Step, steps: Mapping[str, Step], now_ms: int) -> Notice:
        """StepReady: a ticket for the scheduler, with the step's input."""
        ...

    def finished(self, run: RunFacts, steps: Sequence[Step], now_ms: int) -> Notice:
        """StepsFinished, for the run's log."""
        ...

    def graph_finished(
        self, run: RunFacts, graph: Graph, end: GraphEnd, steps: Mapping[str, Step], told: Sequence[Step], now_ms: int
    ) -> Notice:
        """GraphFinished, with the steps that were not told before."""
        ...


class Tx(Protocol):
    """One transaction of readiness' database."""

    async def add_runs(self, runs: Sequence[RunFacts]) -> set[UUID]:
        """Those that were not known."""
        ...

    async def closed_early(self, run_ids: Sequence[UUID]) -> set[UUID]:
        """Those that launch closed before they were known here."""
        ...

    async def add_steps(self, steps: Sequence[tuple[UUID, Step]]) -> None:
        """The steps of new runs."""
        ...

    async def lock_runs(self, run_ids: Sequence[UUID]) -> dict[UUID, RunFacts]:
        """Runs that are known, locked in order."""
        ...

    async def load_steps(self, run_ids: Sequence[UUID]) -> dict[UUID, dict[str, Step]]:
        """All steps of these runs."""
        ...

    async def save(self, runs: Sequence[RunFacts], steps: Sequence[tuple[UUID, Step]]) -> None:
        """Changed runs and steps."""
        ...

    async def wait_for_births(self) -> None:
        """Until every launch under way is committed; none begins before this transaction ends."""
        ...

    async def remember_closed(self, run_ids: Sequence[UUID], now_ms: int) -> None:
        """Closings that overtook their launch."""
        ...

    async def save_resolutions(self, effects: Sequence[tuple[UUID, EffectFact]]) -> None:
        """Outcomes of slots; a later version replaces an earlier one."""
        ...

    async def resolutions(self, steps: Sequence[tuple[UUID, str]]) -> dict[tuple[UUID, str], dict[str, int]]:
        """Newest version at which each slot of a step is resolved."""
        ...

    async def send(self, notices: Sequence[Notice], now_ms: int) -> None:
        """Puts events into the outbox; they leave after the commit."""
        ...


class Database(Protocol):
    """Where transactions begin."""

    @property
    def incarnation(self) -> int:
        """Incarnation of the database."""
        ...

    def tx(self) -> AbstractAsyncContextManager[Tx]:
        """A READ COMMITTED transaction, committed when the block ends well."""
        ...


class Versions(Protocol):
    """Graphs of workflow versions; they never change."""

    async def graphs(self, digests: Sequence[bytes]) -> dict[bytes, Graph]:
        """Those that launch knows; may ask it, so never inside a transaction."""
        ...

    def known(self, digests: Sequence[bytes]) -> dict[bytes, Graph]:
        """Those in memory; raises UnknownVersions where one is not."""
        ...


class UnknownVersions(Exception):
    """Versions that are not in memory: leave the transaction, ask for them, begin again."""

    def __init__(self, digests: Sequence[bytes]) -> None:
        super().__init__(f"{len(digests)} versions are not in memory")
        self.digests = tuple(digests)


class Cache(Protocol):
    """Steps of runs as this process last committed them."""

    def get(self, run_id: UUID, version: int) -> dict[str, Step] | None:
        """The steps at this version of the run."""
        ...

    def put(self, run_id: UUID, version: int, steps: dict[str, Step]) -> None:
        """After a commit."""
        ...

    def drop(self, run_id: UUID) -> None:
        """When the run is finished, or a commit failed."""
        ...


class Reads(Protocol):
    """Reads outside transactions."""

    async def due_retries(self, now_ms: int, limit: int) -> list[tuple[UUID, str]]:
        """Steps whose backoff has passed."""
        ...


class HouseKeeping(Protocol):
    """What loops and operators ask."""

    def retry_may_be_due(self, now_ms: int, looked_before_ms: int) -> bool:
        """Whether some backoff has passed, as far as this process knows; what others noted is found by looking now and then."""
        ...

    async def forget_closed(self, before_ms: int) -> None:
        """Drops old notes of closings that overtook their launch."""
        ...

    async def waiting_long(self, limit: int) -> list[tuple[UUID, str, str]]:
        """Steps that wait for an effect's outcome: run, step, slots."""
        ...


class Owners(Protocol):
    """Who owns a run, by launch's account."""

    async def owner(self, run_id: UUID) -> tuple[str, str] | None:
        """(tenant, project); None where launch does not know the run."""
        ...


class StepReads(Protocol):
    """Reads for people."""

    async def read_steps(self, run_id: UUID) -> tuple[RunFacts, dict[str, Step]] | None:
        """A run and its steps."""
        ...


@value(frozen=True, slots=True)
class Ports:
    """Everything a verb of readiness may use."""

    db: Database
    reads: Reads
    versions: Versions
    cache: Cache
    notices: Notices
    clock: Clock
    ticket_limit_bytes: int
    retention_ms: int
    keeps_events: bool
    """Whether delivered events are kept, to be sent again to a receiver that lost commits. Every ticket is an event then."""
