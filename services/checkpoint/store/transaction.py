"""Authoritative for how a fenced commit goes: locks, judgement and writes in one transaction.

Implements `ports.Commits` and `ports.Tx`. Can go wrong: writing in another transaction than the one that judged; a raise that
was answered in between would not count. So the write is handed in, and runs behind the judgement's locks.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar
from uuid import UUID

from libs.fence.cold import ColdReader, admit_with_cold_reads
from libs.fence.refusals import refusal_for
from libs.fence.store import FenceStore
from libs.fence.values import Admission, Asked, Judgement, Operation, Verdict
from libs.kernel.refusal import Refusal
from libs.kernel.values import value
from libs.pg import Database, Queries, Tx
from libs.telemetry.catalogue import FENCE_VERDICTS, ZOMBIES_REFUSED
from services.checkpoint.domain.values import Artifact, Checkpoint, Head, Holder
from services.checkpoint.ports import A, Content, Step, T
from services.checkpoint.store.rows import artifact_of, checkpoint_of, columns, head_of

_SQL = Path(__file__).parent / "sql"
CHECKPOINTS = Queries.load(_SQL / "checkpoints.sql")
ARTIFACTS = Queries.load(_SQL / "artifacts.sql")
CHUNKS = Queries.load(_SQL / "chunks.sql")
W = TypeVar("W")


@value(frozen=True, slots=True)
class _Judged(Generic[W]):
    """A verdict and what was written under it, or the refusal."""

    verdict: Verdict
    outcome: W | Refusal


def asked_of(holder: Holder) -> Asked:
    """What the fences are asked about a lease."""
    return Asked(holder.run_id, holder.step_key, holder.fence, holder.epoch, holder.expired)


class FencedCommits:
    """Commits under the fences of this point."""

    def __init__(self, db: Database, reader: ColdReader) -> None:
        self._db = db
        self._reader = reader

    async def commit(
        self, asks: Sequence[A], write: Callable[["CheckpointTx", Sequence[A]], Awaitable[Sequence[T | Refusal]]]
    ) -> list[T | Refusal]:
        """See ports.Commits."""

        async def judge(items: Sequence[A]) -> list[_Judged[T]]:
            return await self._db.run(lambda tx: self._judge(tx, items, write))

        found = await admit_with_cold_reads(asks, judge, self._reader, lambda ask: asked_of(ask.holder))
        return [one if isinstance(one, Refusal) else one.outcome for one in found]

    async def confirm(self, holder: Holder) -> None:
        """See ports.Commits."""

        async def judge(items: Sequence[Holder]) -> list[_Judged[None]]:
            return [_Judged(Verdict.OK, None) for _ in items]

        for found in await admit_with_cold_reads([holder], judge, self._reader, asked_of):
            if isinstance(found, Refusal):
                raise found

    async def _judge(
        self, tx: Tx, items: Sequence[A], write: Callable[["CheckpointTx", Sequence[A]], Awaitable[Sequence[T | Refusal]]]
    ) -> list[_Judged[T]]:
        admissions = [
            Admission(asked_of(item.holder), Operation.PROGRESS, item.holder.tenant, item.holder.project) for item in items
        ]
        fences = FenceStore(tx)
        await fences.lock(admissions)
        judgements = await fences.judge(admissions)
        passed = [place for place, judgement in enumerate(judgements) if judgement.verdict is Verdict.OK]
        written: Mapping[int, T | Refusal] = {}
        if passed:
            outcomes = await write(CheckpointTx(tx), [items[place] for place in passed])
            written = dict(zip(passed, outcomes, strict=True))
        return [
            _Judged(judgement.verdict, written[place] if place in written else _refused(judgement, admissions[place].asked))
            for place, judgement in enumerate(judgements)
        ]


def _refused(judgement: Judgement, asked: Asked) -> Refusal:
    FENCE_VERDICTS.labels("checkpoint", judgement.verdict.value).inc()
    if judgement.verdict is Verdict.FENCED:
        ZOMBIES_REFUSED.labels("checkpoint").inc()
    return refusal_for(judgement, asked)


class CheckpointTx:
    """Rows of runs whose gates are locked."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def heads(self, steps: Sequence[Step]) -> dict[Step, Head]:
        """Heads of these steps."""
        rows = await self._tx.fetch(CHECKPOINTS.read_heads, *columns(steps))
        return {(row["run_id"], row["step_key"]): head_of(row) for row in rows}

    async def checkpoints(self, names: Sequence[tuple[UUID, str, bytes]]) -> dict[tuple[UUID, str, bytes], Checkpoint]:
        """Committed checkpoints by name."""
        rows = await self._tx.fetch(CHECKPOINTS.read_checkpoints, *_transposed(names, 3))
        return {(row["run_id"], row["step_key"], row["digest"]): checkpoint_of(row) for row in rows}

    async def artifact_digests(self, wanted: Sequence[tuple[UUID, bytes]]) -> set[tuple[UUID, bytes]]:
        """Those that are artifacts of their run."""
        rows = await self._tx.fetch(ARTIFACTS.artifact_digests, *_transposed(wanted, 2))
        return {(row["run_id"], row["digest"]) for row in rows}

    async def name_chunks(self, wanted: Sequence[tuple[str, bytes, UUID]], now_ms: int) -> set[Content]:
        """Marks chunks as named by runs; those that are stored."""
        rows = await self._tx.fetch(CHUNKS.name_chunks, *_transposed(wanted, 3), now_ms)
        return {(row["tenant"], row["digest"]) for row in rows}

    async def move_heads(self, moves: Sequence[tuple[Step, bytes, bytes, int]]) -> set[Step]:
        """Compare-and-set of heads."""
        flat = [(*step, expected, digest, sequence) for step, expected, digest, sequence in moves]
        rows = await self._tx.fetch(CHECKPOINTS.move_heads, *_transposed(flat, 5))
        return {(row["run_id"], row["step_key"]) for row in rows}

    async def add_key(self, key_id: bytes, public_bytes: bytes, now_ms: int) -> None:
        """Keeps the public half."""
        await self._tx.fetch(CHECKPOINTS.add_key, key_id, public_bytes, now_ms)

    async def add_checkpoints(self, rows: Sequence[Checkpoint]) -> None:
        """New manifests."""
        flat = [
            (
                row.run_id,
                row.step_key,
                row.digest,
                row.tenant,
                row.project,
                row.parent,
                row.sequence,
                row.boundary,
                row.attempt_id,
                row.lease_epoch,
                row.size_bytes,
                row.manifest,
                row.signature,
                row.key_id,
                row.committed_ms,
            )
            for row in rows
        ]
        await self._tx.fetch(CHECKPOINTS.add_checkpoints, *_transposed(flat, 15))

    async def add_artifacts(self, rows: Sequence[Artifact]) -> None:
        """New artifacts."""
        flat = [
            (
                row.run_id,
                row.digest,
                row.step_key,
                row.name,
                row.tenant,
                row.project,
                row.media_type,
                row.size_bytes,
                " ".join(chunk.hex() for chunk in row.chunks),
                row.attempt_id,
                row.lease_epoch,
                row.committed_ms,
            )
            for row in rows
        ]
        await self._tx.fetch(ARTIFACTS.add_artifacts, *_transposed(flat, 12))

    async def artifacts(self, names: Sequence[tuple[UUID, bytes, str, str]]) -> dict[tuple[UUID, bytes, str, str], Artifact]:
        """Committed artifacts by name."""
        rows = await self._tx.fetch(ARTIFACTS.read_artifacts, *_transposed(names, 4))
        return {(row["run_id"], row["digest"], row["step_key"], row["name"]): artifact_of(row) for row in rows}


def _transposed(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    """Rows as the arrays that `unnest` takes."""
    return [[row[place] for row in rows] for place in range(width)]
