"""Cases: row ↔ domain. Implements `ports.Cases`; each method is one statement of `sql/cases.sql`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

import asyncpg

from libs.pg import Database, Queries
from services.reconciler.domain.cases import Case, CaseState, Change, Name, Opening, Resolved, state_of

CASES = Queries.load(Path(__file__).parent / "sql" / "cases.sql")
_FIELDS = tuple(Case.__dataclass_fields__)


def _case(row: asyncpg.Record) -> Case:
    values = {name: row[name] for name in _FIELDS}
    return Case(**{**values, "state": CaseState(row["state"])})


SKEW_MS = 10_000
"""What clocks of replicas may differ by."""


class CaseStore:
    """The reconciler's one table."""

    def __init__(self, db: Database) -> None:
        self._db = db

    @property
    def incarnation(self) -> int:
        """Incarnation of the database."""
        return self._db.incarnation

    async def forget_runs(self, before: UUID, limit: int) -> int:
        """Drops decided cases of runs that are older than this id; how many."""
        return len(await self._db.fetch(CASES.forget_runs, before, limit))

    async def open(self, openings: Sequence[tuple[UUID, Opening]], now_ms: int) -> int:
        """New cases, due at once."""
        rows = await self._db.fetch(
            CASES.open,
            [case_id for case_id, _ in openings],
            [o.name.run_id for _, o in openings],
            [o.name.step_key for _, o in openings],
            [o.name.slot for _, o in openings],
            [o.dispatch for _, o in openings],
            [o.tenant for _, o in openings],
            [o.project for _, o in openings],
            [o.tool for _, o in openings],
            [o.replay_class for _, o in openings],
            [o.cause for _, o in openings],
            now_ms,
            [o.since_ms for _, o in openings],
        )
        return len(rows)

    async def resolve(self, facts: Sequence[Resolved], now_ms: int) -> None:
        """The gateway's events; what says that nothing is known yet is none."""
        told = [(fact, state_of(fact.state)) for fact in facts if state_of(fact.state) is not CaseState.OPEN]
        await self._db.fetch(
            CASES.resolve,
            [f.name.run_id for f, _ in told],
            [f.name.step_key for f, _ in told],
            [f.name.slot for f, _ in told],
            [f.dispatch for f, _ in told],
            [int(state) for _, state in told],
            [f.version for f, _ in told],
            [f"the gateway says: {f.state}" for f, _ in told],
            now_ms,
        )

    async def claim(self, lease: UUID, now_ms: int, until_ms: int, limit: int, put_off_most_ms: int) -> list[Case]:
        """Due cases."""
        put_off_ms, left_ms = now_ms + put_off_most_ms + SKEW_MS, until_ms + SKEW_MS
        return [_case(row) for row in await self._db.fetch(CASES.claim, lease, now_ms, until_ms, limit, put_off_ms, left_ms)]

    async def next_due(self) -> int | None:
        """Implements the port."""
        found = await self._db.fetch(CASES.next_due)
        return int(found[0]["next_ms"]) if found else None

    async def change(self, lease: UUID, changes: Sequence[tuple[UUID, Change]], now_ms: int) -> None:
        """What look-ups did."""
        await self._db.fetch(
            CASES.change,
            lease,
            [case_id for case_id, _ in changes],
            [int(c.state) for _, c in changes],
            [c.next_ms for _, c in changes],
            [c.failures for _, c in changes],
            [c.evidence for _, c in changes],
            [c.effect_version for _, c in changes],
            now_ms,
        )

    async def put_off(self, lease: UUID, cases: Sequence[UUID], next_ms: int, evidence: str) -> None:
        """Nothing was looked up."""
        await self._db.fetch(CASES.put_off, lease, list(cases), next_ms, evidence)

    async def decide(self, case_id: UUID, state: CaseState, actor: str, reason: str, version: int, now_ms: int) -> Case | None:
        """A person's decision."""
        rows = await self._db.fetch(CASES.decide, case_id, int(state), actor, reason, version, now_ms)
        return _case(rows[0]) if rows else None

    async def find(self, case_id: UUID, tenant: str) -> Case | None:
        """A case of this tenant."""
        rows = await self._db.fetch(CASES.find, case_id, tenant)
        return _case(rows[0]) if rows else None

    async def page(
        self, tenant: str, project: str, states: Sequence[int], run_id: UUID | None, after: int, limit: int
    ) -> list[tuple[int, Case]]:
        """Oldest first."""
        rows = await self._db.fetch(CASES.page, tenant, project, list(states), run_id, after, limit)
        return [(row["place"], _case(row)) for row in rows]

    async def undecided(self, names: Sequence[Name]) -> set[Name]:
        """Those that have an undecided case."""
        arrays = [n.run_id for n in names], [n.step_key for n in names], [n.slot for n in names]
        return {Name(row["run_id"], row["step_key"], row["slot"]) for row in await self._db.fetch(CASES.undecided, *arrays)}

    async def counts(self) -> Mapping[CaseState, int]:
        """Undecided cases by state."""
        found = {CaseState(row["state"]): row["n"] for row in await self._db.fetch(CASES.counts)}
        return {state: found.get(state, 0) for state in (CaseState.OPEN, CaseState.NEEDS_RECONCILIATION)}

    async def waiting(self, before_ms: int, limit: int) -> list[Case]:
        """Undecided cases, oldest first."""
        return [_case(row) for row in await self._db.fetch(CASES.waiting, before_ms, limit)]
