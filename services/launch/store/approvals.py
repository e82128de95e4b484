"""Approvals, decisions and keys in rows. Authoritative for the spelling alone; triggers guard what was decided.

Can go wrong: a decision whose approval was decided meanwhile. Whoever writes holds the lock of the run.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import asyncpg

from libs.fence.certificates import Subject
from libs.pg import Database, Queries, Statement
from services.launch.domain.approvals import Approval, ApprovalState, ApproverKey, DecisionFacts

APPROVALS = Queries.load(Path(__file__).parent / "sql" / "approvals.sql")


class Fetching(Protocol):
    """A transaction, or reads that are checked."""

    async def fetch(self, statement: Statement, *args: Any) -> Sequence[asyncpg.Record]:
        """Runs one statement."""
        ...


class _Shared:
    def __init__(self, rows: Fetching) -> None:
        self._rows = rows

    async def load(self, approval_ids: Collection[UUID]) -> dict[UUID, Approval]:
        """Approvals that exist."""
        if not approval_ids:
            return {}
        return {row["approval_id"]: _approval(row) for row in await self._rows.fetch(APPROVALS.by_id, sorted(approval_ids))}

    async def decisions(self, approval_ids: Collection[UUID]) -> dict[UUID, list[DecisionFacts]]:
        """What was decided about each, in order."""
        found: dict[UUID, list[DecisionFacts]] = {approval_id: [] for approval_id in approval_ids}
        if found:
            for row in await self._rows.fetch(APPROVALS.decisions, sorted(found)):
                found[row["approval_id"]].append(_decision(row))
        return found


class ApprovalRows(_Shared):
    """In a transaction; implements `ports_approvals.ApprovalRows`."""

    async def of_runs(self, run_ids: Sequence[UUID]) -> list[Approval]:
        """Every approval of these runs."""
        return [_approval(row) for row in await self._rows.fetch(APPROVALS.of_runs, list(run_ids))]

    async def add(self, approvals: Sequence[Approval]) -> set[UUID]:
        """Those that are new."""
        subjects = [a.subject for a in approvals]
        columns = (
            [s.approval_id for s in subjects],
            [s.run_id for s in subjects],
            [s.step_key for s in subjects],
            [a.command_slot for a in approvals],
            [s.slot for s in subjects],
            [a.tenant for a in approvals],
            [a.project for a in approvals],
            [a.workflow for a in approvals],
            [s.tool for s in subjects],
            [a.title for a in approvals],
            [a.content for a in approvals],
            [s.digest for s in subjects],
            [s.policy for s in subjects],
            [s.proposal_version for s in subjects],
            [s.hold_micros for s in subjects],
            [a.need for a in approvals],
            ["\n".join(a.eligible) for a in approvals],
            [a.requester for a in approvals],
            [a.owner for a in approvals],
            [int(a.state) for a in approvals],
            [a.requested_ms for a in approvals],
            [s.expires_ms for s in subjects],
            [a.decided_ms for a in approvals],
            [a.reason for a in approvals],
            [a.root_run_id for a in approvals],
            ["\n".join(a.owners_above) for a in approvals],
            [s.effect_class for s in subjects],
            [s.total_micros for s in subjects],
        )
        return {row["approval_id"] for row in await self._rows.fetch(APPROVALS.add, *columns)}

    async def save(self, approvals: Sequence[Approval]) -> None:
        """New states and times."""
        if approvals:
            await self._rows.fetch(
                APPROVALS.save,
                [a.approval_id for a in approvals],
                [int(a.state) for a in approvals],
                [a.decided_ms for a in approvals],
                [a.effective_ms for a in approvals],
                [a.consumed_ms for a in approvals],
                [a.withdraw_ms for a in approvals],
                [a.withdraw_by for a in approvals],
                [a.reason for a in approvals],
            )

    async def add_decisions(self, decisions: Sequence[DecisionFacts]) -> None:
        """Once per approver."""
        if decisions:
            await self._rows.fetch(
                APPROVALS.add_decisions,
                [d.approval_id for d in decisions],
                [d.run_id for d in decisions],
                [d.approver for d in decisions],
                [d.approve for d in decisions],
                [d.key_id for d in decisions],
                [d.public_key for d in decisions],
                [d.signature for d in decisions],
                [d.reason for d in decisions],
                [d.break_glass for d in decisions],
                [d.decided_ms for d in decisions],
            )

    async def keys(self, names: Collection[tuple[str, str]]) -> dict[tuple[str, str], ApproverKey]:
        """Keys by tenant and id."""
        asked = sorted(names)
        found = await self._rows.fetch(APPROVALS.keys, [tenant for tenant, _ in asked], [key_id for _, key_id in asked])
        return {(row["tenant"], row["key_id"]): _key(row) for row in found}

    async def shift(self, by_ms: Mapping[UUID, int]) -> None:
        """Later ends for what nobody has signed yet."""
        if by_ms:
            await self._rows.fetch(APPROVALS.shift, list(by_ms), list(by_ms.values()))


class ApprovalReads(_Shared):
    """Outside of transactions; implements `ports_approvals.ApprovalReads`. `check` refuses the incarnation in which launch
    may not answer yet."""

    def __init__(self, db: Database, check: Callable[[int], None]) -> None:
        self._db = db
        self._check = check
        super().__init__(self)

    async def fetch(self, statement: Statement, *args: Any) -> list[asyncpg.Record]:
        """One statement, answered in an incarnation that was adopted."""
        rows = await self._db.fetch(statement, *args)
        self._check(self._db.incarnation)
        return rows

    async def page(
        self, tenant: str, project: str, run_id: UUID | None, states: Sequence[int], before: UUID | None, limit: int
    ) -> list[Approval]:
        """A page, newest first."""
        found = await self.fetch(APPROVALS.page, tenant, project, run_id, list(states), before, limit)
        return [_approval(row) for row in found]

    async def pending_of(self, run_id: UUID, limit: int, *, below: bool) -> list[Approval]:
        """What a run waits for, or what those below it do."""
        return [_approval(row) for row in await self.fetch(APPROVALS.pending_of, run_id, below, limit)]

    async def over(self, now_ms: int, limit: int) -> list[tuple[UUID, UUID, bool]]:
        """Pending ones that nobody can decide any more."""
        found = await self.fetch(APPROVALS.over, now_ms, limit)
        return [(row["run_id"], row["approval_id"], row["ended"]) for row in found]

    async def put_key(self, key: ApproverKey) -> ApproverKey:
        """The key as it stands."""
        columns = key.tenant, key.key_id, key.approver, key.public_key, key.created_ms
        return _key((await self.fetch(APPROVALS.put_key, *columns))[0])

    async def list_keys(self, tenant: str, after: str, limit: int) -> list[ApproverKey]:
        """A tenant's keys, by id."""
        return [_key(row) for row in await self.fetch(APPROVALS.list_keys, tenant, after, limit)]

    async def revoke_key(self, tenant: str, key_id: str, approver: str, now_ms: int) -> ApproverKey | None:
        """The revoked key."""
        found = await self.fetch(APPROVALS.revoke_key, tenant, key_id, approver, now_ms)
        return _key(found[0]) if found else None


def _key(row: asyncpg.Record) -> ApproverKey:
    return ApproverKey(row["tenant"], row["key_id"], row["approver"], row["public_key"], row["created_ms"], row["revoked_ms"])


def _decision(row: asyncpg.Record) -> DecisionFacts:
    return DecisionFacts(
        row["approval_id"],
        row["run_id"],
        row["approver"],
        row["approve"],
        row["key_id"],
        row["public_key"],
        row["signature"],
        row["reason"],
        row["break_glass"],
        row["decided_ms"],
    )


def _approval(row: asyncpg.Record) -> Approval:
    subject = Subject(
        approval_id=row["approval_id"],
        run_id=row["run_id"],
        step_key=row["step_key"],
        slot=row["slot"],
        tool=row["tool"],
        digest=row["digest"],
        policy=row["policy"],
        proposal_version=row["proposal_version"],
        hold_micros=row["hold_micros"],
        expires_ms=row["expires_ms"],
        effect_class=row["effect_class"],
        total_micros=row["total_micros"],
    )
    return Approval(
        subject=subject,
        command_slot=row["command_slot"],
        tenant=row["tenant"],
        project=row["project"],
        workflow=row["workflow"],
        title=row["title"],
        content=row["content"],
        need=row["need"],
        eligible=tuple(row["eligible"]),
        requester=row["requester"],
        owner=row["owner"],
        state=ApprovalState(row["state"]),
        requested_ms=row["requested_ms"],
        decided_ms=row["decided_ms"],
        effective_ms=row["effective_ms"],
        consumed_ms=row["consumed_ms"],
        withdraw_ms=row["withdraw_ms"],
        withdraw_by=row["withdraw_by"],
        reason=row["reason"],
        root_run_id=row["root_run_id"],
        owners_above=tuple(row["owners_above"]),
    )
