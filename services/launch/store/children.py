"""Child runs, groups, joins and waits for a budget inside launch's transactions, and their pages. Method name = query name.

Authoritative for nothing but the spelling: what is decided is in `domain`. Can go wrong: a statement without the parent's lock
before it. Every method that writes says whose it needs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from uuid import UUID

import asyncpg

from libs.kernel.epochs import make_epoch
from libs.pg import Database, Queries, Statement, Tx
from services.launch.domain.children import BudgetWait, ChildRow, DeniedSpawn, JoinedChild, SliceBack, TreeCounts
from services.launch.domain.joining import Counts, Join, JoinKey, JoinState, OnFailure, Rest
from services.launch.domain.run import FailureFacts, Run, RunHead
from services.launch.domain.spawning import Child, Spawned, SpawnKey
from services.launch.store import rows
from services.launch.store.held_spawns import HeldStatements, spawn_columns

_Q = Queries.load(Path(__file__).parent / "sql" / "children.sql")


class ChildStatements(HeldStatements, ABC):
    """What of a transaction is about children."""

    _tx: Tx

    async def lock_family(self, run_ids: Sequence[UUID]) -> dict[UUID, RunHead]:
        """Runs and their parents, locked in order."""
        if not run_ids:
            return {}
        return {row["run_id"]: rows.head(row) for row in await self._tx.fetch(_Q.lock_family, list(run_ids))}

    @abstractmethod
    async def lock_heads(self, run_ids: Sequence[UUID]) -> dict[UUID, RunHead]:
        """Runs, locked in order."""

    async def lock_trees(self, tops: Sequence[UUID], alone: Sequence[UUID] = ()) -> dict[UUID, RunHead]:
        """Runs with all that came of them, and others by themselves: in one statement, in order. What was spawned while it
        waited is locked behind, until nothing new is found."""
        if not tops and not alone:
            return {}
        rows_found = await self._tx.fetch(_Q.lock_trees, list(tops), list(alone))
        found = {row["run_id"]: rows.head(row) for row in rows_found}
        while above := [run_id for run_id in tops if run_id in found and found[run_id].open_children]:
            below = [row["run_id"] for row in await self._tx.fetch(_Q.below, above)]
            new = [run_id for run_id in below if run_id not in found]
            if not new:
                break
            found |= await self.lock_heads(new)
        return found

    async def spawns_known(self, keys: Sequence[SpawnKey]) -> set[SpawnKey]:
        """Commands that have been judged."""
        return {(r["run_id"], r["step_key"], r["slot"]) for r in await self._tx.fetch(_Q.spawns_known, *spawn_columns(keys))}

    async def admit_children(self, children: Sequence[Child], now_ms: int) -> None:
        """Runs, first events, slices; parents and tenants count them. Behind both locks."""
        if not children:
            return
        await self._tx.fetch(
            _Q.admit_children,
            [c.run_id for c in children],
            [c.ask.run_id for c in children],
            [c.version.digest for c in children],
            [c.version.name for c in children],
            [c.version.number for c in children],
            [c.version.spec.build for c in children],
            [c.version.spec.points for c in children],
            [" ".join(c.capabilities) for c in children],
            [c.priority for c in children],
            [c.deadline_ms for c in children],
            [c.asked.budget_micros for c in children],
            [c.asked.budget_tokens for c in children],
            [c.asked.input for c in children],
            [c.ask.step_key for c in children],
            [c.ask.slot for c in children],
            [c.ask.group for c in children],
            [c.name for c in children],
            [c.delegation for c in children],
            [c.version.spec.output_schema for c in children],
            [c.ask.independent for c in children],
            make_epoch(self._tx.incarnation, 1),
            now_ms,
            [c.deepest for c in children],
        )

    async def put_spawns(self, spawned: Sequence[Spawned], now_ms: int) -> None:
        """What became of commands. Behind their parents' locks."""
        none = FailureFacts("", "", "")
        refused = [item.refused or none for item in spawned]
        await self._tx.fetch(
            _Q.put_spawns,
            *spawn_columns([item.ask.key for item in spawned]),
            [item.ask.group for item in spawned],
            [len(item.ask.children) for item in spawned],
            [f.failure_class for f in refused],
            [f.message for f in refused],
            [f.type for f in refused],
            now_ms,
        )

    async def count_ended(self, run_ids: Sequence[UUID], back: Collection[UUID]) -> None:
        """Children that have just become terminal. Behind their parents' locks."""
        await self._tx.fetch(_Q.count_ended, list(run_ids), [run_id in back for run_id in run_ids])

    async def slices_of(self, run_ids: Sequence[UUID]) -> list[SliceBack]:
        """What children that have ended give back."""
        found = await self._tx.fetch(_Q.slices_of, list(run_ids))
        return [SliceBack(row["parent_id"], row["delegation"], row["spent"]) for row in found]

    async def put_joins(self, joins: Sequence[Join], now_ms: int) -> None:
        """The first of each slot stands."""
        if not joins:
            return
        await self._tx.fetch(
            _Q.put_joins,
            *spawn_columns([join.key for join in joins]),
            ["\n".join(join.groups) for join in joins],
            ["\n".join(join.slots) for join in joins],
            [join.need for join in joins],
            [int(join.on_failure) for join in joins],
            [int(join.rest) for join in joins],
            now_ms,
            [join.warns for join in joins],
        )

    async def open_joins(self, run_ids: Sequence[UUID]) -> list[tuple[Join, Join, int]]:
        """Joins as they are stored, with what of their spawns is still unknown, and children some point may not know closed."""
        found = []
        for row in await self._tx.fetch(_Q.open_joins, list(run_ids)):
            stored, missing = _join(row, row["slots"]), _join(row, row["missing"])
            found.append((stored, missing, row["unenforced"]))
        return found

    async def groups_of(self, run_ids: Sequence[UUID]) -> dict[UUID, list[tuple[str, str, Counts]]]:
        """How groups stand, by run."""
        found: dict[UUID, list[tuple[str, str, Counts]]] = {}
        for row in await self._tx.fetch(_Q.groups_of, list(run_ids)):
            counts = Counts(row["total"], row["succeeded"], row["failed"], row["cancelled"], row["denied"])
            found.setdefault(row["run_id"], []).append((row["step_key"], row["spawn_group"], counts))
        return found

    async def rest_of(self, run_ids: Sequence[UUID]) -> list[UUID]:
        """Children whose outcome is open, of joins of these runs that go on without the rest."""
        return [row["run_id"] for row in await self._tx.fetch(_Q.rest_of, list(run_ids))]

    async def save_joins(self, joins: Sequence[Join], now_ms: int) -> None:
        """How they stand."""
        if not joins:
            return
        await self._tx.fetch(
            _Q.save_joins,
            *spawn_columns([join.key for join in joins]),
            [int(join.state) for join in joins],
            [join.met for join in joins],
            ["\n".join(join.slots) for join in joins],
            now_ms,
        )

    async def joined(self, keys: Sequence[JoinKey], limit: int) -> dict[JoinKey, list[JoinedChild]]:
        """The first children of each join."""
        found: dict[JoinKey, list[JoinedChild]] = {key: [] for key in keys}
        for row in await self._tx.fetch(_Q.joined, *spawn_columns(keys), limit):
            found[(row["parent_id"], row["step_key"], row["slot"])].append(_joined(row))
        return found

    async def failed_of(self, keys: Sequence[JoinKey], limit: int) -> dict[JoinKey, list[JoinedChild]]:
        """The first children of each join that ended without success."""
        found: dict[JoinKey, list[JoinedChild]] = {key: [] for key in keys}
        for row in await self._tx.fetch(_Q.failed_of, *spawn_columns(keys), limit):
            found[(row["parent_id"], row["step_key"], row["slot"])].append(_joined(row))
        return found

    async def denied_of(self, keys: Sequence[JoinKey]) -> dict[JoinKey, list[DeniedSpawn]]:
        """Spawns of joins that were refused."""
        found: dict[JoinKey, list[DeniedSpawn]] = {key: [] for key in keys}
        for row in await self._tx.fetch(_Q.denied_of, *spawn_columns(keys)):
            failure = FailureFacts(row["failure_class"], row["failure_message"], row["failure_type"])
            denied = DeniedSpawn(row["spawn_slot"], row["children"], failure)
            found[(row["run_id"], row["step_key"], row["slot"])].append(denied)
        return found

    async def raise_budgets(self, run_id: UUID, micros: int, sequence: int, now_ms: int) -> None:
        """More money for a run. Behind its lock, its parent's and its tenant's."""
        await self._tx.fetch(_Q.raise_budgets, run_id, micros, sequence, now_ms)

    async def put_budget_waits(self, waits: Sequence[BudgetWait]) -> None:
        """The first of each slot stands."""
        if waits:
            keys = spawn_columns([(wait.run_id, wait.step_key, wait.slot) for wait in waits])
            await self._tx.fetch(_Q.put_budget_waits, *keys, [wait.sequence for wait in waits])

    async def end_budget_waits(self, run_ids: Sequence[UUID], now_ms: int) -> list[tuple[BudgetWait, int]]:
        """Waits whose run has another budget than their step knew, with that budget; once each."""
        found = await self._tx.fetch(_Q.end_budget_waits, list(run_ids), now_ms)
        return [(BudgetWait(r["run_id"], r["step_key"], r["slot"], r["budget_sequence"]), r["budget_micros"]) for r in found]


def _join(row: asyncpg.Record, slots: Sequence[str]) -> Join:
    return Join(
        row["run_id"],
        row["step_key"],
        row["slot"],
        tuple(row["groups"]),
        tuple(slots),
        row["need"],
        OnFailure(row["on_failure"]),
        Rest(row["rest"]),
        JoinState(row["state"]),
        row["met"],
        row["warns"],
    )


def _joined(row: asyncpg.Record) -> JoinedChild:
    failed = row["failure_class"]
    failure = FailureFacts(failed, row["failure_message"], row["failure_type"]) if failed else None
    return JoinedChild(row["run_id"], row["spawn_name"], row["state"], row["output"], failure)


class ChildReads:
    """Implements `ports.ChildReads`: one statement each."""

    def __init__(self, db: Database, check: Callable[[int], None]) -> None:
        """`check` refuses the incarnation in which launch may not answer yet."""
        self._db = db
        self._check = check

    async def _fetch(self, statement: Statement, *args: object) -> list[asyncpg.Record]:
        found = await self._db.fetch(statement, *args)
        self._check(self._db.incarnation)
        return found

    async def spawns_known(self, keys: Sequence[SpawnKey]) -> set[SpawnKey]:
        """Commands that have been judged."""
        return {(r["run_id"], r["step_key"], r["slot"]) for r in await self._fetch(_Q.spawns_known, *spawn_columns(keys))}

    async def children(self, run_id: UUID, after: UUID, step_key: str, group: str, limit: int) -> list[ChildRow]:
        """A page of children."""
        found = await self._fetch(_Q.children_page, run_id, after, step_key, group, limit)
        return [ChildRow(r["spawn_name"], r["spawn_step"], r["spawn_slot"], r["spawn_group"], rows.run(r)) for r in found]

    async def tree(self, run_id: UUID, after: UUID, limit: int) -> list[tuple[str, Run, int]]:
        """A page of a tree: names, runs, and what came back to each."""
        found = await self._fetch(_Q.tree_page, run_id, after, limit)
        return [(row["spawn_name"], rows.run(row), row["returned_micros"]) for row in found]

    async def tree_counts(self, run_ids: Sequence[UUID]) -> Mapping[UUID, TreeCounts]:
        """How far all below these runs has come."""
        found = await self._fetch(_Q.tree_counts, list(run_ids))
        return {r["top"]: TreeCounts(r["total"], r["accepted"], r["enforced"], r["quiesced"]) for r in found}

    async def revoked_below(self, run_id: UUID) -> tuple[int, int]:
        """Of all below a run, how many there are, and in how many every point has confirmed what was taken."""
        found = (await self._fetch(_Q.revoked_below, run_id))[0]
        return found["total"], found["enforced"]

    async def ending_parents(self, limit: int) -> tuple[list[UUID], list[UUID]]:
        """Decided parents that wait for nothing more, and those of which children still run."""
        found = await self._fetch(_Q.ending_parents, limit)
        return [r["run_id"] for r in found if r["settles"]], [r["run_id"] for r in found if not r["settles"]]

    async def ending_joins(self, limit: int) -> list[UUID]:
        """Runs with a join that goes on without the rest, and of whose rest the outcome is open."""
        return [row["run_id"] for row in await self._fetch(_Q.ending_joins, limit)]

    async def owners_above(self, run_ids: Sequence[UUID]) -> Mapping[UUID, tuple[str, ...]]:
        """Who published the versions of the runs above these."""
        found = await self._fetch(_Q.owners_above, list(run_ids))
        return {r["run_id"]: tuple(r["owners"]) for r in found}

    async def slice_name(self, run_id: UUID) -> bytes:
        """What a child's slice of its parent's envelope is called; empty where it has none."""
        found = await self._fetch(_Q.slice_name, run_id)
        return bytes(found[0]["delegation"]) if found else b""
