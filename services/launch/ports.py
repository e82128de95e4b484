"""What launch's verbs need from outside, as Protocols. Adapters live in `store` and `clients`; `main` joins them."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar
from uuid import UUID

from libs.kernel.clock import Clock
from libs.kernel.ids import IdSource
from libs.kernel.values import value
from services.launch.domain.admission import Account, Admitted, Launch
from services.launch.domain.adopting import Adopted, Orphan
from services.launch.domain.children import (
    BudgetWait,
    DeniedSpawn,
    JoinedChild,
    JoinedFacts,
    SliceBack,
)
from services.launch.domain.closing import Closing, Decided, Limit, Progress
from services.launch.domain.facts import (
    FirstReceipt,
    Notice,
    RunFilter,
    Usage,
)
from services.launch.domain.joining import Counts, Join, JoinKey
from services.launch.domain.pausing import Moved
from services.launch.domain.run import Run, RunEventFacts, RunHead
from services.launch.domain.spawning import Child, HeldSpawn, SpawnAsk, Spawned
from services.launch.ports_approvals import ApprovalPorts, ApprovalRows
from services.launch.ports_children import ChildReads as ChildReads
from services.launch.ports_children import Envelopes as Envelopes
from services.launch.ports_children import HeldReads, HeldRows
from services.launch.ports_points import LeafReads as LeafReads
from services.launch.ports_points import Points as Points
from services.launch.ports_points import Waits as Waits
from services.launch.ports_tenancy import Catalogue as Catalogue
from services.launch.ports_tenancy import Projects as Projects
from services.launch.ports_tenancy import Tenancy as Tenancy

T = TypeVar("T")


class Tx(HeldRows, Protocol):
    """One transaction of launch's database."""

    @property
    def incarnation(self) -> int:
        """Incarnation of the database that this transaction runs in."""
        ...

    async def take_receipts(self, asks: Sequence[FirstReceipt], now_ms: int) -> set[bytes]:
        """Key digests that were free and are now taken by these asks."""
        ...

    async def prove(self) -> None:
        """Makes the commit confirm what others stored before, as it confirms what is stored here."""
        ...

    async def lock_accounts(self, tenants: Sequence[str]) -> dict[str, Account]:
        """The tenants, locked in order."""
        ...

    async def admit(self, admitted: Sequence[Admitted], incarnation: int, now_ms: int) -> None:
        """Stores runs (denied ones too), first events, reservations, and the tenants' new balances."""
        ...

    async def note_start_by(self, launches: Sequence[Launch]) -> None:
        """When these, just admitted, expire if nothing of them has begun."""
        ...

    async def note_forks(self, forks: Sequence[Launch], now_ms: int) -> None:
        """Which runs these, just admitted, continue: on their rows and in their logs."""
        ...

    async def lock_heads(self, run_ids: Sequence[UUID]) -> dict[UUID, RunHead]:
        """Runs that exist, locked in order."""
        ...

    async def apply_closings(self, decided: Sequence[Decided], now_ms: int) -> None:
        """Moves locked runs to their closing, under their next epoch."""
        ...

    async def apply_pauses(self, moved: Sequence[Moved], now_ms: int) -> None:
        """Pauses and resumes."""
        ...

    async def apply_revocations(self, moved: Sequence[Moved], now_ms: int) -> None:
        """Smaller grants, under the next epoch and in the same mode."""
        ...

    async def apply_progress(self, progress: Sequence[Progress], now_ms: int, back: Collection[UUID] = ()) -> None:
        """Records receipts; settles and ends runs whose progress is terminal. `back`: children whose rest is their parent's
        again."""
        ...

    async def adopt(self, adopted: Sequence[Adopted], now_ms: int) -> None:
        """Moves locked runs to this incarnation."""
        ...

    async def tell_again(self, told: Sequence[Closing], now_ms: int) -> None:
        """Fills in what belongs to adopted outcomes of locked runs; those that have every receipt are settled."""
        ...

    async def lock_family(self, run_ids: Sequence[UUID]) -> dict[UUID, RunHead]:
        """Runs and their parents, locked in order."""
        ...

    async def lock_trees(self, tops: Sequence[UUID], alone: Sequence[UUID] = ()) -> dict[UUID, RunHead]:
        """Runs with everything that came of them, is not terminal and does not outlive its parent, and others by themselves,
        locked in order. What came of which: `domain.children.below`."""
        ...

    async def spawns_known(self, keys: Sequence[JoinKey]) -> set[JoinKey]:
        """Which of these commands have been judged."""
        ...

    async def admit_children(self, children: Sequence[Child], now_ms: int) -> None:
        """Stores children; their parents and tenants, which are locked, count them."""
        ...

    async def put_spawns(self, spawned: Sequence[Spawned], now_ms: int) -> None:
        """What became of commands."""
        ...

    async def count_ended(self, run_ids: Sequence[UUID], back: Collection[UUID]) -> None:
        """Counts children that have just become terminal; `back`: those whose rest is their parent's again."""
        ...

    async def slices_of(self, run_ids: Sequence[UUID]) -> list[SliceBack]:
        """Slices of children that have ended."""
        ...

    async def put_joins(self, joins: Sequence[Join], now_ms: int) -> None:
        """What steps wait for; the first of each slot stands."""
        ...

    async def open_joins(self, run_ids: Sequence[UUID]) -> list[tuple[Join, Join, int]]:
        """Joins that are not answered: as stored, with the spawns still unknown, and how many of the cancelled some point may
        not know closed."""
        ...

    async def groups_of(self, run_ids: Sequence[UUID]) -> dict[UUID, list[tuple[str, str, Counts]]]:
        """How groups stand: by run, (step, group, counts)."""
        ...

    async def rest_of(self, run_ids: Sequence[UUID]) -> list[UUID]:
        """Children whose outcome is open, of joins of these runs that go on without the rest."""
        ...

    async def save_joins(self, joins: Sequence[Join], now_ms: int) -> None:
        """How joins stand."""
        ...

    async def joined(self, keys: Sequence[JoinKey], limit: int) -> dict[JoinKey, list[JoinedChild]]:
        """The first children of each join."""
        ...

    async def failed_of(self, keys: Sequence[JoinKey], limit: int) -> dict[JoinKey, list[JoinedChild]]:
        """The first children of each join that ended without success."""
        ...

    async def denied_of(self, keys: Sequence[JoinKey]) -> dict[JoinKey, list[DeniedSpawn]]:
        """Spawns of joins that were refused."""
        ...

    async def raise_budgets(self, run_id: UUID, micros: int, sequence: int, now_ms: int) -> None:
        """More money for a run, from its tenant or its parent. Behind all their locks."""
        ...

    async def put_budget_waits(self, waits: Sequence[BudgetWait]) -> None:
        """Steps that wait for a greater budget."""
        ...

    async def end_budget_waits(self, run_ids: Sequence[UUID], now_ms: int) -> list[tuple[BudgetWait, int]]:
        """Waits whose run has another budget than their step knew, once each, with that budget."""
        ...

    async def start_runs(self, run_ids: Sequence[UUID], now_ms: int) -> list[UUID]:
        """accepted → running; the runs that moved."""
        ...

    async def apply_usage(self, usage: Sequence[Usage], now_ms: int) -> None:
        """Replaces each run's usage by a later one; a run that is settled gets an adjustment posting."""
        ...

    async def append_events(self, events: Sequence[RunEventFacts], *, once: bool = False, words: bool = False) -> None:
        """Appends log entries under the next sequences of locked runs; `once`: at most one of a kind and step."""
        ...

    async def send(self, notices: Sequence[Notice], now_ms: int) -> None:
        """Puts events into the outbox; they leave when the transaction has committed."""
        ...

    @property
    def approvals(self) -> ApprovalRows:
        """Approvals."""
        ...


class Reads(Protocol):
    """Reads outside transactions, one statement each."""

    @property
    def incarnation(self) -> int:
        """Incarnation of the database."""
        ...

    async def receipts(self, key_digests: Sequence[bytes]) -> dict[bytes, FirstReceipt]:
        """What stands under these request_ids."""
        ...

    async def runs(self, run_ids: Sequence[UUID]) -> dict[UUID, Run]:
        """Runs that exist."""
        ...

    async def list_runs(self, wanted: RunFilter, before: UUID | None, limit: int) -> list[Run]:
        """A page of runs, newest first."""
        ...

    async def events(self, run_id: UUID, after: int, limit: int) -> list[RunEventFacts]:
        """Log entries after a sequence, in order."""
        ...

    async def overdue_runs(self, now_ms: int, limit: int) -> list[tuple[UUID, Limit]]:
        """Undecided runs that have outlived a limit, and which: of each limit so many."""
        ...

    async def idle_runs(self, before_ms: int, limit: int) -> list[tuple[UUID, int]]:
        """Accepted runs that nobody has begun since `before_ms`, with when they were accepted."""
        ...

    async def unsettled_runs(self, before_ms: int, limit: int) -> list[tuple[UUID, int]]:
        """Decided runs that are not terminal since `before_ms`."""
        ...


class Notices(Protocol):
    """Builds the payloads of events; protobuf stays at the edge."""

    def launched(self, admitted: Admitted, epoch: int, now_ms: int) -> Notice:
        """RunLaunched for readiness."""
        ...

    def closing(self, decided: Decided, now_ms: int) -> list[Notice]:
        """Raises for every point, and RunClosing for readiness where steps may still be open."""
        ...

    def moved(self, moved: Moved) -> list[Notice]:
        """The gate of a paused or resumed run for every point."""
        ...

    def adopted(self, adopted: Adopted, now_ms: int) -> list[Notice]:
        """The run's gate under its new epoch for every point; RunClosing where its outcome is decided."""
        ...

    def spawn_again(self, held: HeldSpawn) -> SpawnAsk:
        """What a spawn that waits asked for, from what is kept of it."""
        ...

    def spawned(self, parent: RunHead, child: Child, epoch: int, now_ms: int) -> Notice:
        """RunLaunched of a child."""
        ...

    def slice_back(self, item: SliceBack, now_ms: int) -> Notice:
        """SliceReturned for the gateway."""
        ...

    def joined(self, joined: JoinedFacts, now_ms: int) -> Notice:
        """CommandAnswered of a join, for readiness."""
        ...

    def refused_join(self, join: Join, problem: str, now_ms: int) -> Notice:
        """CommandAnswered of a join that cannot be read."""
        ...

    def budget_told(self, wait: BudgetWait, micros: int, now_ms: int) -> Notice:
        """CommandAnswered of a wait for a greater budget."""
        ...

    def envelope(self, head: RunHead, micros: int, sequence: int) -> Notice:
        """The run's gate with another envelope, for the gateway."""
        ...

    def plain(self, value: bytes) -> object:
        """A serialized Value as Python data."""
        ...

    def orphaned(self, orphan: Orphan, now_ms: int) -> list[Notice]:
        """Raises that close a run that launch does not know, and RunClosing."""
        ...


class Hub(Protocol):
    """Who waits for changes of runs."""

    def poke(self, run_ids: Iterable[UUID], *, state: bool = True) -> None:
        """Says that these runs changed; `state` False: only their logs grew."""
        ...


@value(frozen=True, slots=True)
class Limits:
    """Settings that the verbs need; money in micros, times in milliseconds, sizes in bytes."""

    default_deadline_ms: int
    max_deadline_ms: int
    default_budget_micros: int
    default_budget_tokens: int
    enforce_deadline_ms: int
    input_limit_bytes: int
    longest_pause_ms: int = 604_800_000
    max_children: int = 20_000
    max_child_depth: int = 8


class Database(Protocol):
    """Where transactions begin."""

    async def run(self, work: Callable[[Tx], Awaitable[T]]) -> T:
        """Does `work` in a READ COMMITTED transaction, committed when it ends well; what was sent leaves after the commit. Done
        again from the start where the server undid it because of a neighbour's locks, so `work` changes nothing outside but by
        what it returns."""
        ...


class Promotion(Protocol):
    """What a launch may do that has not yet adopted its runs, and how it says that it has."""

    async def stored(self) -> int | None:
        """The incarnation in which runs were adopted last; None in a database that is new."""
        ...

    async def unadopted(self, incarnation: int, limit: int) -> list[UUID]:
        """Runs that are not terminal and whose epoch an earlier incarnation issued."""
        ...

    async def known(self, run_ids: Sequence[UUID]) -> set[UUID]:
        """Which of these runs launch knows."""
        ...

    def tx(self, incarnation: int) -> AbstractAsyncContextManager[Tx]:
        """A transaction in exactly this incarnation."""
        ...

    async def done(self, incarnation: int) -> None:
        """Launch may answer in this incarnation."""
        ...


@value(frozen=True, slots=True)
class Ports:
    """Everything a verb of launch may use."""

    db: Database
    reads: Reads
    children: ChildReads
    held: HeldReads
    envelopes: Envelopes
    catalogue: Catalogue
    tenancy: Tenancy
    projects: Projects
    points: Points
    notices: Notices
    hub: Hub
    clock: Clock
    ids: IdSource
    limits: Limits
    approvals: ApprovalPorts
