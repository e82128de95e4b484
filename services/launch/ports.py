"""What launch's verbs need from outside, as Protocols. Adapters live in `store` and `clients`; `main` joins them."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol
from uuid import UUID

from libs.kernel.clock import Clock
from libs.kernel.ids import IdSource
from libs.kernel.values import value
from services.launch.domain.admission import Account, Admitted
from services.launch.domain.adopting import Adopted, Held, Orphan
from services.launch.domain.closing import Closing, Decided, Progress, Receipt
from services.launch.domain.facts import (
    FirstReceipt,
    GateFacts,
    InFlight,
    KeyRecord,
    Notice,
    ScopeFacts,
    Usage,
    Version,
    Waiting,
)
from services.launch.domain.pausing import Moved
from services.launch.domain.run import Run, RunEventFacts, RunHead
from services.launch.domain.workflow import WorkflowSpec
from services.launch.ports_approvals import ApprovalPorts, ApprovalRows


class Tx(Protocol):
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

    async def lock_heads(self, run_ids: Sequence[UUID]) -> dict[UUID, RunHead]:
        """Runs that exist, locked in order."""
        ...

    async def apply_closings(self, decided: Sequence[Decided], now_ms: int) -> None:
        """Moves locked runs to their closing, under their next epoch."""
        ...

    async def apply_pauses(self, moved: Sequence[Moved], now_ms: int) -> None:
        """Pauses and resumes."""
        ...

    async def apply_progress(self, progress: Sequence[Progress], now_ms: int) -> None:
        """Records receipts; settles and ends runs whose progress is terminal."""
        ...

    async def adopt(self, adopted: Sequence[Adopted], now_ms: int) -> None:
        """Moves locked runs to this incarnation."""
        ...

    async def tell_again(self, told: Sequence[Closing], now_ms: int) -> None:
        """Fills in what belongs to adopted outcomes of locked runs; those that have every receipt are settled."""
        ...

    async def start_runs(self, run_ids: Sequence[UUID], now_ms: int) -> list[UUID]:
        """accepted → running; the runs that moved."""
        ...

    async def apply_usage(self, usage: Sequence[Usage], now_ms: int) -> None:
        """Replaces each run's usage by a later one; a run that is settled gets an adjustment posting."""
        ...

    async def append_events(self, events: Sequence[RunEventFacts], *, once: bool = False) -> None:
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

    async def list_runs(
        self, tenant: str, project: str, states: Sequence[int], workflow: str, before: UUID | None, limit: int
    ) -> list[Run]:
        """A page of runs, newest first."""
        ...

    async def events(self, run_id: UUID, after: int, limit: int) -> list[RunEventFacts]:
        """Log entries after a sequence, in order."""
        ...

    async def due_runs(self, now_ms: int, limit: int) -> list[UUID]:
        """Undecided runs whose deadline has passed."""
        ...

    async def paused_long(self, now_ms: int, limit: int) -> list[UUID]:
        """Runs that are paused for longer than they may be."""
        ...

    async def idle_runs(self, before_ms: int, limit: int) -> list[tuple[UUID, int]]:
        """Accepted runs that nobody has begun since `before_ms`, with when they were accepted."""
        ...

    async def unsettled_runs(self, before_ms: int, limit: int) -> list[tuple[UUID, int]]:
        """Decided runs that are not terminal since `before_ms`."""
        ...


class Catalogue(Protocol):
    """Published workflow versions."""

    async def publish(
        self, tenant: str, project: str, spec: WorkflowSpec, raw: bytes, publisher: str, now_ms: int
    ) -> tuple[Version, bool]:
        """The version of this content, and whether this call made it."""
        ...

    async def resolve(self, tenant: str, project: str, workflow: str) -> Version:
        """By `name` (newest), `name@number` or hexadecimal digest; refuses NOT_FOUND."""
        ...

    async def by_digest(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Raw specs by digest."""
        ...

    async def page(self, tenant: str, project: str, name: str, after: tuple[str, int] | None, limit: int) -> list[Version]:
        """Versions, by name, newest first."""
        ...


class Tenancy(Protocol):
    """Tenants and keys."""

    async def put_tenant(
        self, tenant: str, limit_micros: int, max_active: int, expected: int | None, now_ms: int
    ) -> Account | None:
        """The tenant after the change; None when `expected` lost."""
        ...

    async def tenant(self, tenant: str) -> Account | None:
        """The tenant, if it exists."""
        ...

    async def add_key(self, key: KeyRecord, now_ms: int) -> bool:
        """Stores a key; False when the tenant does not exist."""
        ...

    async def revoke_key(self, key_id: UUID, now_ms: int) -> int | None:
        """When the key was revoked (the first time); None: no such key."""
        ...

    async def keys(self, digests: Sequence[bytes]) -> dict[bytes, KeyRecord]:
        """Keys that are valid."""
        ...


class Points(Protocol):
    """The enforcement points, over the wire."""

    async def raise_now(self, decided: Sequence[Decided], deadline_ms: int) -> tuple[list[Receipt], list["InFlight"]]:
        """Raises at every point at once; what was confirmed within the deadline, and effects still unresolved."""
        ...

    async def raise_moved(self, moved: Sequence[Moved], deadline_ms: int) -> tuple[list[Receipt], list["InFlight"]]:
        """The same of pauses and resumes."""
        ...

    async def held(self, run_ids: Sequence[UUID]) -> dict[UUID, Held]:
        """The greatest gate of each run among all points. Refuses where a point does not answer."""
        ...

    async def open_runs(self, after: UUID, limit: int) -> tuple[list[Held], UUID | None]:
        """Runs that a point holds open, a page in order of ids after one; and where the next page begins, None at the end."""
        ...


class LeafReads(Protocol):
    """What the leaf port answers from its own small pool."""

    async def gates(self, run_ids: Sequence[UUID]) -> tuple[int, list[GateFacts], list[ScopeFacts]]:
        """The incarnation in which the read began, gates in the order asked, scopes that are not open."""
        ...

    async def owners(self, run_ids: Sequence[UUID]) -> dict[UUID, tuple[str, str]]:
        """(tenant, project) of runs that exist."""
        ...


class Waits(Protocol):
    """Readiness, by its own account."""

    async def waits(self, run_ids: Sequence[UUID]) -> dict[UUID, Waiting]:
        """Of runs that wait for something; empty where nobody can say now."""
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


class Database(Protocol):
    """Where transactions begin."""

    def tx(self) -> AbstractAsyncContextManager[Tx]:
        """A READ COMMITTED transaction, committed when the block ends well; what was sent leaves after the commit."""
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
    catalogue: Catalogue
    tenancy: Tenancy
    points: Points
    notices: Notices
    hub: Hub
    clock: Clock
    ids: IdSource
    limits: Limits
    approvals: ApprovalPorts
