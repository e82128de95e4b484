"""What launch's verbs need to know of children and of money down the tree, as Protocols."""

from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

from services.launch.domain.children import ChildRow, Envelope, SliceTaken, TreeCounts
from services.launch.domain.joining import JoinKey
from services.launch.domain.run import Run, RunHead
from services.launch.domain.spawning import HeldSpawn, SpawnAsk, SpawnKey


class ChildReads(Protocol):
    """Reads about children outside transactions, one statement each."""

    async def spawns_known(self, keys: Sequence[JoinKey]) -> set[JoinKey]:
        """Which of these commands have been judged."""
        ...

    async def children(self, run_id: UUID, after: UUID, step_key: str, group: str, limit: int) -> list[ChildRow]:
        """A page of a run's children, in the order in which they were spawned."""
        ...

    async def tree(self, run_id: UUID, after: UUID, limit: int) -> list[tuple[str, Run, int]]:
        """A page of a run and all below it: its name, itself, and what came back to it."""
        ...

    async def tree_counts(self, run_ids: Sequence[UUID]) -> Mapping[UUID, TreeCounts]:
        """How far all below these runs has come."""
        ...

    async def revoked_below(self, run_id: UUID) -> tuple[int, int]:
        """Of all below a run, how many there are, and in how many every point has confirmed what was taken."""
        ...

    async def ending_parents(self, limit: int) -> tuple[list[UUID], list[UUID]]:
        """Decided parents that wait for nothing more, and those of which children still run."""
        ...

    async def ending_joins(self, limit: int) -> list[UUID]:
        """Runs with a join that goes on without the rest, and of whose rest the outcome is open."""
        ...

    async def owners_above(self, run_ids: Sequence[UUID]) -> Mapping[UUID, tuple[str, ...]]:
        """Who published the versions of the runs above these, as far as they are kept; those that have none are not named."""
        ...

    async def slice_name(self, run_id: UUID) -> bytes:
        """What a child's slice of its parent's envelope is called."""
        ...


class HeldReads(Protocol):
    """Reads about spawns that wait for money, one statement each."""

    async def known(self, keys: Sequence[SpawnKey]) -> set[SpawnKey]:
        """Which of these commands wait."""
        ...

    async def counts(self, run_ids: Sequence[UUID]) -> Mapping[UUID, int]:
        """How many wait of each of these runs; those of which none waits are not named."""
        ...

    async def of_run(self, run_id: UUID, limit: int) -> list[HeldSpawn]:
        """What waits of a run, in the order in which it was asked."""
        ...

    async def due(self, now_ms: int, limit: int) -> list[HeldSpawn]:
        """Those to be judged again."""
        ...


class HeldRows(Protocol):
    """Spawns that wait for money, in a transaction. Behind their parents' locks."""

    async def held_known(self, keys: Sequence[SpawnKey]) -> set[SpawnKey]:
        """Which of these commands wait."""
        ...

    async def held_counts(self, run_ids: Sequence[UUID]) -> dict[UUID, int]:
        """How many wait of each run."""
        ...

    async def put_held(self, held: Sequence[tuple[SpawnAsk, str]], now_ms: int) -> None:
        """They wait from now on, with why."""
        ...

    async def put_off(self, held: Sequence[tuple[SpawnAsk, str]], now_ms: int) -> None:
        """They still cannot be."""
        ...

    async def drop_held(self, keys: Sequence[SpawnKey], now_ms: int) -> None:
        """They have been judged; the next of each run is."""
        ...

    async def wake_held(self, run_ids: Sequence[UUID], now_ms: int) -> None:
        """Something of these runs may be free again."""
        ...


class Envelopes(Protocol):
    """Runs' envelopes at the gateway. Refuses where it does not answer."""

    async def take(self, asks: Sequence[tuple[RunHead, Sequence[tuple[bytes, int, int]]]]) -> list[SliceTaken]:
        """Takes slices (name, micros in all, sequence) out of parents' envelopes; one answer per parent's ask."""
        ...

    async def read(self, run_ids: Sequence[UUID]) -> dict[UUID, Envelope]:
        """What the gates of runs that it knows hold."""
        ...
