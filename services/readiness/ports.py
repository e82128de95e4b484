"""What readiness' verbs need from outside, as Protocols."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from typing import Protocol
from uuid import UUID

from libs.kernel.clock import Clock
from libs.kernel.values import value
from services.readiness.domain.forking import Fork
from services.readiness.domain.graph import Graph
from services.readiness.domain.state import AttemptFact, EffectFact, Expressions, RunView, Step
from services.readiness.domain.steps import GraphEnd
from services.readiness.domain.waits import Asked, Kept, Signal, Told, Wait, WaitKey


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
    launched_by: str = ""
    """Name of the key that launched it."""
    root_run_id: UUID | None = None
    """The run on top of the tree that spawned it; None: nothing did."""


ACTIVE, CLOSED, FINISHED = 1, 2, 3


@value(frozen=True, slots=True)
class Facts:
    """What one delivery says, sorted by kind. `due_limit`: so many steps whose backoff or timer has passed are taken up too."""

    launched: Sequence[RunFacts] = ()
    closed: Sequence[UUID] = ()
    attempts: Sequence[tuple[UUID, AttemptFact]] = ()
    effects: Sequence[tuple[UUID, EffectFact]] = ()
    asked: Sequence[tuple[UUID, Asked]] = ()
    told: Sequence[tuple[UUID, Told]] = ()
    due_limit: int = 0
    forks: Mapping[UUID, Fork] = field(default_factory=dict)
    """By launched run: what it continues."""

    @property
    def wait_keys(self) -> Iterator[WaitKey]:
        """Slots that attempts or launch speak of."""
        for run_id, asked in self.asked:
            yield run_id, asked.step_key, asked.slot
        for run_id, told in self.told:
            yield run_id, told.step_key, told.slot


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

    def ready(self, run: RunFacts, view: RunView, step: Step, waited: Sequence[Wait], now_ms: int) -> Notice:
        """StepReady: a ticket for the scheduler, with the step's input and what it has waited for."""
        ...

    def finished(self, run: RunFacts, view: RunView, steps: Sequence[Step], warned: Sequence[Step], now_ms: int) -> Notice:
        """StepsFinished, for the run's log; `warned`: steps that go on, and whose joins left out what failed."""
        ...

    def asked(self, run: RunFacts, wait: Wait, now_ms: int) -> Notice:
        """InputAsked, of a run that another has spawned."""
        ...

    def revoked(self, run: RunFacts, step_key: str, sequence: int, now_ms: int) -> Notice:
        """StepRevoked: a ticket, and every earlier one, is withdrawn."""
        ...

    def graph_finished(
        self, run: RunFacts, view: RunView, end: GraphEnd, told: Sequence[Step], warned: Sequence[Step], now_ms: int
    ) -> Notice:
        """GraphFinished, with the steps that were not told before, and warnings."""
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
        """The steps of new runs, and new instances."""
        ...

    async def lock_runs(self, run_ids: Sequence[UUID]) -> dict[UUID, RunFacts]:
        """Runs that are known, locked in order."""
        ...

    async def load_steps(self, run_ids: Sequence[UUID]) -> dict[UUID, dict[str, Step]]:
        """All steps of these runs."""
        ...

    async def save(self, runs: Sequence[RunFacts], steps: Sequence[tuple[UUID, Step]]) -> None:
        """Changed runs and steps that are stored already."""
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

    async def take_due(self, now_ms: int, limit: int) -> list[tuple[UUID, str]]:
        """Steps whose backoff or timer has passed, their runs locked; those that another process holds are left to it."""
        ...

    async def lock_correlations(self, keys: Sequence[str]) -> None:
        """One transaction at a time for each of these; before any run is locked."""
        ...

    async def add_waits(self, runs: Mapping[UUID, RunFacts], waits: Sequence[tuple[UUID, Wait]]) -> set[WaitKey]:
        """Those whose slot was free."""
        ...

    async def load_waits(self, keys: Sequence[WaitKey]) -> dict[WaitKey, Wait]:
        """Waits of these slots."""
        ...

    async def ended_waits(self, steps: Sequence[tuple[UUID, str]]) -> dict[tuple[UUID, str], list[Wait]]:
        """What these steps have waited for."""
        ...

    async def waits_for_events(self, signals: Sequence[Signal], now_ms: int) -> list[list[tuple[UUID, Wait]]]:
        """Open waits that each of these fits, oldest first."""
        ...

    async def signals_for_waits(
        self, runs: Mapping[UUID, RunFacts], waits: Sequence[tuple[UUID, Wait]]
    ) -> list[list[tuple[str, str, bytes, str]]]:
        """Events kept that each of these waits fits, oldest first: tenant, id, payload, who told."""
        ...

    async def add_signals(self, signals: Sequence[Signal], now_ms: int) -> set[tuple[str, str]]:
        """Those that were not told of before."""
        ...

    async def read_signals(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Kept]:
        """Events as they stand."""
        ...

    async def use_signals(self, uses: Sequence[tuple[tuple[str, str], WaitKey]], now_ms: int) -> None:
        """Each for one wait."""
        ...

    async def inputs_of(self, run_ids: Sequence[UUID]) -> dict[UUID, list[Wait]]:
        """Questions of these runs."""
        ...

    async def known_runs(self, run_ids: Sequence[UUID]) -> set[UUID]:
        """Which of these are known."""
        ...

    async def save_waits(self, waits: Sequence[tuple[UUID, Wait]]) -> None:
        """Waits that ended."""
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


class HouseKeeping(Protocol):
    """What loops and operators ask."""

    def retry_may_be_due(self, now_ms: int, looked_before_ms: int) -> bool:
        """Whether some backoff or timer has passed, as far as this process knows; what others noted is found by looking now and
        then."""
        ...

    async def forget_closed(self, before_ms: int) -> None:
        """Drops old notes of closings that overtook their launch."""
        ...

    async def forget_signals(self, before_ms: int, limit: int) -> int:
        """Drops old events that named no run and that nobody used; how many."""
        ...

    async def waiting_long(self, limit: int) -> list[tuple[UUID, str, str]]:
        """Steps that wait for an effect's outcome: run, step, slots."""
        ...


class Owners(Protocol):
    """Who owns a run, by launch's account."""

    async def owner(self, run_id: UUID) -> tuple[str, str] | None:
        """(tenant, project); None where launch does not know the run."""
        ...


@value(frozen=True, slots=True)
class Question:
    """A question to people; `run_open`: whether its run goes on."""

    run_id: UUID
    wait: Wait
    run_open: bool
    root_run_id: UUID | None = None
    """The run on top of its tree; None: itself."""


class StepReads(Protocol):
    """Reads for people."""

    async def owner(self, run_id: UUID) -> tuple[str, str] | None:
        """(tenant, project) of a run that is known here."""
        ...

    async def page_inputs(self, run_id: UUID, after: WaitKey, limit: int) -> list[Question]:
        """Questions of a run, and of all below it where it is a root, whatever their state."""
        ...

    async def open_below(self, root: UUID, now_ms: int, limit: int) -> list[Question]:
        """Open questions of all below a root."""
        ...

    async def page_open_inputs(self, tenant: str, project: str, after: WaitKey, limit: int, now_ms: int) -> list[Question]:
        """Open questions of a tenant, or of a project of it."""
        ...

    async def read_steps(self, run_id: UUID) -> tuple[RunFacts, dict[str, Step]] | None:
        """A run and its steps."""
        ...

    async def read_waits(self, run_id: UUID, slots: Sequence[tuple[str, str]]) -> list[Wait]:
        """What these steps wait for under these slots."""
        ...


@value(frozen=True, slots=True)
class Ports:
    """Everything a verb of readiness may use."""

    db: Database
    versions: Versions
    expressions: Expressions
    cache: Cache
    notices: Notices
    clock: Clock
    ticket_limit_bytes: int
    retention_ms: int
    keeps_events: bool
    """Whether delivered events are kept, to be sent again to a receiver that lost commits. Every ticket is an event then."""
    max_steps: int
    """Most steps of a run, instances counted."""
