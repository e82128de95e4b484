"""What the scheduler's verbs need from outside, as Protocols. Adapters live in `store` and `clients`; `main` joins them."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol
from uuid import UUID

from libs.kernel.clock import Clock
from libs.kernel.epochs import StepFence
from libs.kernel.ids import IdSource
from libs.kernel.refusal import Refusal
from libs.kernel.values import value
from services.scheduler.domain.commits import (
    Acknowledgement,
    Command,
    GateState,
    GrantAsk,
    Granted,
    Holder,
    Judged,
    Notice,
    Report,
    Signed,
    Won,
)
from services.scheduler.domain.ending import Ending, Finished
from services.scheduler.domain.lease import Lease
from services.scheduler.domain.ticket import End, Key, Ticket, TicketRow, Wanted

NewestRevision = Callable[[], Awaitable[int]]
"""Etcd's newest revision, asked now."""


class ColdGates(Protocol):
    """What launch answered about gates, and the incarnation in which the question was asked."""

    @property
    def started_in(self) -> int:
        """Incarnation of our database when the read began."""
        ...

    @property
    def has_scopes(self) -> bool:
        """Whether some scope of the runs is not open."""
        ...


class Notices(Protocol):
    """Builds the payloads of events; protobuf stays at the edge."""

    def first_lease(self, run_id: UUID, now_ms: int) -> Notice:
        """FirstLease → launch."""
        ...

    def capacity(self, key: Key, wanted: Wanted, leased_ms: int) -> Notice:
        """CommandAnswered → readiness: a step that waited for capacity was leased, or its time had passed then."""
        ...

    def finished(self, fact: Finished, now_ms: int, continued: Sequence[str] = (), *, patient: bool = False) -> Notice:
        """AttemptFinished → readiness; with successors that were ticketed in the same commit."""
        ...

    def next_input(self, ticket_input: bytes, step_key: str, output: bytes) -> bytes:
        """The input of a step that follows this one, whose ticket had that input."""
        ...

    def raises(self, key: Key, fence: StepFence, points: int) -> list[Notice]:
        """One raise per point."""
        ...

    def quiesced(self, run_id: UUID, epoch: int, incarnation: int, now_ms: int) -> Notice:
        """PointQuiesced → launch."""
        ...

    def command(self, holder: Holder, command: Command, now_ms: int) -> list[Notice]:
        """CommandRecorded → readiness, launch or both."""
        ...


class Watch(Protocol):
    """Who is told how commits go."""

    def deposed(self, shards: Collection[int]) -> None:
        """Another epoch is in the rows of shards that we believed to lead."""
        ...

    def took(self, ms: float) -> None:
        """How long a commit took: evidence against ourselves."""
        ...


class Tx(Protocol):
    """One transaction, behind the locks it was opened with."""

    @property
    def incarnation(self) -> int:
        """Incarnation of the database that will commit this."""
        ...

    @property
    def deposed(self) -> frozenset[int]:
        """Shards whose row has another epoch than the caller's: nothing of them may be written."""
        ...

    async def merge_cold(self, cold: ColdGates) -> None:
        """Gates and scopes as launch answered; stamps."""
        ...

    async def put_tickets(self, tickets: Sequence[Ticket], now_ms: int, first_incarnation: int) -> dict[Key, TicketRow]:
        """Stores tickets that are news. `first_incarnation` is noted for steps met for the first time; 0: raise first."""
        ...

    async def put_leased(
        self, tickets: Sequence[Ticket], asks: Sequence[GrantAsk], now_ms: int, first: int
    ) -> dict[Key, Granted]:
        """Stores tickets of steps met for the first time as leased, one ask each; `first` as `first_incarnation` above."""
        ...

    async def rows(self, keys: Collection[Key]) -> dict[Key, TicketRow]:
        """Rows as they stand."""
        ...

    async def open_keys(self, shards: Collection[int]) -> tuple[list[Key], list[Key]]:
        """Open tickets of these shards: what is leased or ending, and what waits, people first, then as it came."""
        ...

    async def open_rows_of(self, runs: Collection[UUID]) -> list[TicketRow]:
        """Everything open of these runs."""
        ...

    async def grant(self, asks: Sequence[GrantAsk], now_ms: int) -> dict[Key, Granted]:
        """Leases what still is as it was planned."""
        ...

    async def mark_first_lease(self, runs: Collection[UUID], now_ms: int) -> None:
        """Notes the first lease of runs that had none, as the grant saw under the gate's lock."""
        ...

    async def succeed(
        self, asks: Sequence[tuple[Holder, bytes]], epochs: Mapping[int, int], now_ms: int, continuing: Collection[Key]
    ) -> dict[Key, Won]:
        """Successes (holder, digest of the report) that pass the fences; of `continuing` ones also the ticket's input."""
        ...

    async def end_leases(self, endings: Sequence[Ending], epochs: Mapping[int, int], now_ms: int) -> set[Key]:
        """Other ends of leases that are exactly these."""
        ...

    async def acknowledge(self, acks: Sequence[Acknowledgement]) -> set[Key]:
        """Points' receipts; keys of tickets that they were news to."""
        ...

    async def finish(self, rows: Sequence[tuple[TicketRow, End]]) -> set[Key]:
        """Closes ends that nothing is awaited for, into the history."""
        ...

    async def raise_anew(self, keys: Collection[Key], epochs: Mapping[int, int]) -> set[Key]:
        """Greater ends for fences of an earlier incarnation."""
        ...

    async def drop_ready(self, keys: Mapping[Key, int]) -> set[Key]:
        """Withdraws tickets that wait or did not come yet, up to a sequence each."""
        ...

    async def note_revoked(self, keys: Mapping[Key, int], now_ms: int, first_incarnation: int) -> set[Key]:
        """Remembers withdrawals of tickets that did not come yet. `first_incarnation`: as in `put_tickets`."""
        ...

    async def quiet_runs(self, runs: Collection[UUID]) -> list[tuple[UUID, int]]:
        """Claims the report that nothing is live here: (run, epoch)."""
        ...

    async def put_commands(self, asks: Sequence[tuple[Holder, Command]], now_ms: int) -> set[tuple[UUID, str, str]]:
        """Commands whose slot was free: (run, step, slot)."""
        ...

    async def reports(self, leases: Sequence[tuple[Key, int]]) -> dict[Key, Report]:
        """How these leases ended."""
        ...

    async def judge(self, holders: Sequence[Holder], need: str) -> list[Judged]:
        """Gate and scopes: `intent` (a command), `progress` (a success) or `claim` (a grant). Leases are compared elsewhere."""
        ...

    async def gates(self, runs: Collection[UUID]) -> dict[UUID, GateState]:
        """Gates that are known."""
        ...

    async def forget_gate_notices(self, runs: Collection[UUID]) -> None:
        """Raises that were acted upon."""
        ...

    async def send(self, notices: Sequence[Notice], now_ms: int) -> None:
        """Puts events into the outbox; they leave after the commit."""
        ...


class Database(Protocol):
    """Where commits begin."""

    @property
    def incarnation(self) -> int:
        """Newest incarnation seen."""
        ...

    def commit(
        self,
        epochs: Mapping[int, int],
        runs: Collection[UUID],
        *,
        incarnation: int,
        scopes: Collection[tuple[str, str]] = (),
    ) -> AbstractAsyncContextManager[Tx]:
        """A transaction of a leader: locks the shards, compares their epochs, locks scopes and gates. NO_LEADER when the
        database is of another incarnation than the leader's memory."""
        ...

    def facts(self, runs: Collection[UUID]) -> AbstractAsyncContextManager[Tx]:
        """A transaction that records what others have committed: locked alike, by whichever process was told."""
        ...

    async def confirm(self, won: Mapping[int, int], holder: str, address: str, now_ms: int) -> tuple[dict[int, int], int]:
        """Leadership in the shards' rows: shard → authority epoch, and the incarnation that committed it."""
        ...

    async def raise_generation(self, shards: Collection[int], newest_revision: int, actor: str, now_ms: int) -> set[int]:
        """For shards whose row is ahead of etcd's newest revision."""
        ...

    async def reset_ordered(self, now_ms: int) -> str:
        """Who ordered that generations be raised, and why; empty where no order holds."""
        ...

    async def inputs(self, keys: Collection[Key]) -> dict[Key, tuple[bytes, str]]:
        """Input and trace of tickets."""
        ...

    async def gate_notices(self, shards: Collection[int], limit: int) -> list[UUID]:
        """Runs of these shards whose gate was raised."""
        ...

    async def read_rows(self, keys: Collection[Key]) -> dict[Key, TicketRow]:
        """Rows as they stand, unlocked."""
        ...

    async def read_gates(self, runs: Collection[UUID]) -> dict[UUID, GateState]:
        """Gates as they stand, unlocked."""
        ...

    async def birth(self) -> int:
        """Incarnation in which this database was first used."""
        ...


class Gates(Protocol):
    """Launch, as the authority for gates."""

    async def read(self, runs: Collection[UUID]) -> ColdGates:
        """Asks launch. Never inside a transaction."""
        ...


class Tokens(Protocol):
    """Signs and checks lease tokens."""

    def sign(self, lease: Lease, epoch: int) -> Signed:
        """A token for a live lease, under this epoch of its run."""
        ...

    def sign_many(self, leases: Sequence[tuple[Lease, int]]) -> list[Signed | Refusal]:
        """Tokens for leases of one moment, each under an epoch; of one that cannot be made, why."""
        ...


@value(frozen=True, slots=True)
class Limits:
    """Settings that verbs need."""

    lease_ttl_ms: int
    longest_lease_ttl_ms: int
    first_beat_ms: int
    token_life_ms: int


@value(frozen=True, slots=True)
class Ports:
    """Everything a verb of the scheduler may use."""

    db: Database
    gates: Gates
    notices: Notices
    tokens: Tokens
    clock: Clock
    ids: IdSource
    limits: Limits
