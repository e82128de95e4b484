"""Certificates of approvals in rows. Authoritative for which of them may still be used: the admission statement reads them.

By the leaf pool, under the lock of the run's gate, so that an approval that is taken back and the call that would use it are in
order. Can go wrong: a lock that is not had in time. What was not merged says so, and is sent again.
"""

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from libs.fence.certificates import Certificate, Standing
from libs.fence.store import FenceStore
from libs.kernel.refusal import Reason, Refusal
from libs.pg import Database, Queries, Tx
from services.gateway.ports import Held

APPROVALS = Queries.load(Path(__file__).parent / "sql" / "approvals.sql")
_WITHIN_MS = 500


class CertificateStore:
    """Implements `app.hold_approvals.Certificates`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def merge(self, certificates: Sequence[Certificate]) -> list[Held | None]:
        """Each run in a transaction of its own, so that one that is busy holds back no other."""
        by_run: dict[UUID, list[Certificate]] = {}
        for certificate in certificates:
            by_run.setdefault(certificate.subject.run_id, []).append(certificate)
        held: dict[UUID, Held] = {}
        for run_id in sorted(by_run):
            held |= await self._merge_run(run_id, by_run[run_id])
        return [held.get(certificate.subject.approval_id) for certificate in certificates]

    async def _merge_run(self, run_id: UUID, certificates: Sequence[Certificate]) -> dict[UUID, Held]:
        greatest: dict[UUID, Certificate] = {}
        for certificate in certificates:
            known = greatest.get(certificate.subject.approval_id)
            if known is None or certificate.standing > known.standing:
                greatest[certificate.subject.approval_id] = certificate
        merged = list(greatest.values())

        async def work(tx: Tx) -> dict[UUID, Held]:
            store = FenceStore(tx)
            await store.limit_statements(_WITHIN_MS)
            await store.lock_gates_to_raise([run_id])
            await tx.fetch(APPROVALS.merge_certificates, *_columns(merged))
            rows = await tx.fetch(APPROVALS.read_certificates, *_columns(merged)[:4])
            return {row["approval_id"]: _held(row["standing"], row["consumed_ms"]) for row in rows}

        try:
            return await self._db.run(work)
        except Refusal as no:
            if no.reason is not Reason.AUTHORITY_UNREACHABLE:
                raise
            return {}


def _held(standing: int, consumed_ms: int) -> Held:
    return Held(Standing.CONSUMED if consumed_ms else Standing(standing), consumed_ms)


def _columns(certificates: Sequence[Certificate]) -> tuple[list[object], ...]:
    subjects = [certificate.subject for certificate in certificates]
    return (
        [s.run_id for s in subjects],
        [s.step_key for s in subjects],
        [s.slot for s in subjects],
        [s.approval_id for s in subjects],
        [s.tool for s in subjects],
        [s.digest for s in subjects],
        [s.policy for s in subjects],
        [s.proposal_version for s in subjects],
        [s.hold_micros for s in subjects],
        [s.expires_ms for s in subjects],
        [len(certificate.signatures) for certificate in certificates],
        [any(one.break_glass for one in certificate.signatures) for certificate in certificates],
        [int(certificate.standing) for certificate in certificates],
        [s.effect_class for s in subjects],
        [s.total_micros for s in subjects],
    )
