"""Reads outside commits, and the book-keeping of chunks. Implements `ports.Reads` and `ports.ChunkRows`: one statement each.

Can go wrong: a run forgotten while another one names the same chunk. Both lock the chunk, and who names it is judged behind
that lock, in a later statement.
"""

from collections.abc import Sequence
from functools import partial
from uuid import UUID

from libs.kernel.clock import Clock
from libs.pg import Database, Tx
from services.checkpoint.domain.values import Artifact, Checkpoint, Head
from services.checkpoint.ports import Content, Step
from services.checkpoint.store.rows import artifact_of, checkpoint_of, head_of
from services.checkpoint.store.transaction import ARTIFACTS, CHECKPOINTS, CHUNKS

_NEWEST = 2**62
_RUNS_AT_ONCE = 20


class CheckpointReads:
    """What was committed."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def head(self, step: Step) -> Head | None:
        """A step's head."""
        rows = await self._db.fetch(CHECKPOINTS.read_heads, [step[0]], [step[1]])
        return head_of(rows[0]) if rows else None

    async def checkpoint(self, step: Step, digest: bytes) -> Checkpoint | None:
        """One checkpoint."""
        rows = await self._db.fetch(CHECKPOINTS.read_checkpoints, [step[0]], [step[1]], [digest])
        return checkpoint_of(rows[0]) if rows else None

    async def public_key(self, key_id: bytes) -> bytes | None:
        """The public half of a signing key."""
        rows = await self._db.fetch(CHECKPOINTS.read_key, key_id)
        return rows[0]["public_bytes"] if rows else None

    async def note_resume(self, step: Step, head: bytes, resume: bytes, sequence: int) -> None:
        """The head was found damaged."""
        await self._db.fetch(CHECKPOINTS.note_resume, *step, head, resume, sequence, self._clock.now_ms())

    async def artifact(self, run_id: UUID, digest: bytes) -> Artifact | None:
        """The oldest artifact of these bytes."""
        rows = await self._db.fetch(ARTIFACTS.read_artifact, run_id, digest)
        return artifact_of(rows[0]) if rows else None

    async def page_checkpoints(self, run_id: UUID, before: int, limit: int) -> list[tuple[int, Checkpoint]]:
        """Newest first."""
        rows = await self._db.fetch(CHECKPOINTS.page_checkpoints, run_id, before or _NEWEST, limit)
        return [(row["place"], checkpoint_of(row)) for row in rows]

    async def page_artifacts(self, run_id: UUID, after: int, limit: int) -> list[tuple[int, Artifact]]:
        """Oldest first."""
        rows = await self._db.fetch(ARTIFACTS.page_artifacts, run_id, after, limit)
        return [(row["place"], artifact_of(row)) for row in rows]

    async def owner(self, run_id: UUID) -> tuple[str, str] | None:
        """Owner of a run, where its gate has come here."""
        rows = await self._db.fetch(CHECKPOINTS.read_owner, run_id)
        return (rows[0]["tenant"], rows[0]["project"]) if rows else None

    async def damaged(self, before_ms: int, limit: int) -> list[tuple[UUID, str, int]]:
        """Steps whose head was found damaged and not followed since."""
        rows = await self._db.fetch(CHECKPOINTS.list_damaged, before_ms, limit)
        return [(row["run_id"], row["step_key"], row["damaged_ms"]) for row in rows]


class ChunkRows:
    """The sweep's book-keeping."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def forget_runs(self, before: UUID, limit: int) -> int:
        """Drops what is left of closed runs that are older than this id, how many; chunks that no other run names are left to
        the sweep. Few at a time: each may name many chunks, and who names one of those waits meanwhile."""
        count = 0
        while count < limit:
            found = await self._db.run(partial(self._forget, before, min(_RUNS_AT_ONCE, limit - count)))
            count += found
            if not found:
                break
        return count

    async def _forget(self, before: UUID, limit: int, tx: Tx) -> int:
        runs = [row["run_id"] for row in await tx.fetch(CHECKPOINTS.lock_old_runs, before, limit)]
        if runs:
            await tx.fetch(CHUNKS.lock_chunks_of, runs)
            await tx.fetch(CHUNKS.unname_chunks, runs, self._clock.now_ms())
            await tx.fetch(CHECKPOINTS.forget_runs, runs)
        return len(runs)

    async def announce(self, wanted: Sequence[Content], now_ms: int) -> dict[Content, bool]:
        """Before bytes are written."""
        rows = await self._db.fetch(CHUNKS.announce, *_arrays(wanted), now_ms)
        return {(row["tenant"], row["digest"]): row["stored"] for row in rows}

    async def mark_stored(self, wanted: Sequence[Content]) -> None:
        """The bytes are there."""
        await self._db.fetch(CHUNKS.mark_stored, *_arrays(wanted), True)

    async def unmark_stored(self, wanted: Sequence[Content]) -> None:
        """The bytes were found missing or damaged."""
        await self._db.fetch(CHUNKS.mark_stored, *_arrays(wanted), False)

    async def touch_stored(self, wanted: Sequence[Content], now_ms: int) -> set[Content]:
        """Those stored."""
        rows = await self._db.fetch(CHUNKS.touch_stored, *_arrays(wanted), now_ms)
        return {(row["tenant"], row["digest"]) for row in rows}

    async def doom(self, unnamed_before_ms: int, abandoned_before_ms: int, now_ms: int, limit: int) -> list[Content]:
        """Takes chunks that nothing names."""
        rows = await self._db.fetch(CHUNKS.doom, unnamed_before_ms, abandoned_before_ms, now_ms, limit)
        return [(row["tenant"], row["digest"]) for row in rows]

    async def forget(self, doomed: Sequence[Content], doomed_ms: int) -> None:
        """Their bytes are gone."""
        await self._db.fetch(CHUNKS.forget, *_arrays(doomed), doomed_ms)

    async def unfinished(self, before_ms: int) -> tuple[int, int]:
        """How many chunks a sweep took and did not finish with, and since when."""
        row = (await self._db.fetch(CHUNKS.list_doomed, before_ms))[0]
        return row["n"], row["since_ms"] or 0


def _arrays(wanted: Sequence[Content]) -> tuple[list[str], list[bytes]]:
    return [tenant for tenant, _ in wanted], [digest for _, digest in wanted]
