"""Checkpoint's verbs on a real PostgreSQL and a folder, without the wire."""

import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from libs.blobs import BlobStore
from libs.fence.cold import ColdReader
from libs.fence.raising import FencePoint, NothingPending
from libs.kernel.epochs import StepFence
from libs.pg import Database
from libs.testkit import ManualClock
from services.checkpoint.clients.chunks import StoredChunks
from services.checkpoint.clients.gauges import CheckpointGauges
from services.checkpoint.clients.signing import ManifestSigner
from services.checkpoint.domain.values import Commit, Holder
from services.checkpoint.ports import Limits, Ports
from services.checkpoint.store.reads import CheckpointReads, ChunkRows
from services.checkpoint.store.transaction import FencedCommits

RUN = UUID(int=7)
GRACE_MS = 3_600_000


class NoAuthority:
    """Asking is a mistake in these tests: gates are stamped by hand."""

    async def get_fences(self, service: str, request: object) -> Any:
        raise AssertionError(f"{service} was asked")

    async def owner(self, run_id: UUID) -> tuple[str, str] | None:
        raise AssertionError("owners were asked")


class Holding:
    """Chunks whose deletion a test can hold up."""

    def __init__(self, inner: StoredChunks) -> None:
        self._inner = inner
        self.before_delete: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def delete(self, tenant: str, digests: Sequence[bytes]) -> None:
        if self.before_delete is not None:
            await self.before_delete()
        await self._inner.delete(tenant, digests)


@dataclass
class Room:
    """Ports and what stands behind them."""

    ports: Ports
    chunks: Holding
    point: FencePoint
    db: Database
    hand: asyncpg.Connection
    clock: ManualClock
    url: str
    made: list[bytes] = field(default_factory=list)

    async def gate(self, *, run: UUID = RUN, epoch: int = 1) -> None:
        values = (run, epoch, self.db.incarnation)
        await self.hand.execute("INSERT INTO run_gate (run_id, epoch, mode, stamp) VALUES ($1, $2, 0, $3)", *values)

    def holder(self, step: str = "build", *, run: UUID = RUN, lease: int = 1, holder: int = 1) -> Holder:
        return Holder("acme", "web", run, step, StepFence(1, lease, UUID(int=holder)), 1, False, "demo.build@1", b"w" * 32)

    def ask(self, data: bytes, *, parent: bytes = b"", sequence: int = 1, holder: Holder | None = None) -> Commit:
        name = hashlib.sha256(data).digest()
        return Commit(holder or self.holder(), parent, sequence, "b", (name,), len(data), (), (), {})

    async def count(self, table: str) -> int:
        return int(await self.hand.fetchval(f"SELECT count(*) FROM {table}"))


@pytest.fixture
async def room(database: Any, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Room]:
    url = await database("checkpoint")
    db = Database(url, name="checkpoint", size=6)
    await db.open()
    hand = await asyncpg.connect(url)
    nobody = NoAuthority()
    chunks = Holding(StoredChunks(BlobStore.at(f"file://{tmp_path}/store")))
    ports = Ports(
        commits=FencedCommits(db, ColdReader(db, nobody)),
        reads=CheckpointReads(db, clock),
        rows=ChunkRows(db, clock),
        chunks=chunks,  # type: ignore[arg-type]
        signer=ManifestSigner(),
        owners=nobody,
        gauges=CheckpointGauges(),
        clock=clock,
        limits=Limits(1_000_000, 1_000_000, GRACE_MS),
    )
    yield Room(ports, chunks, FencePoint(db, NothingPending()), db, hand, clock, url)
    await hand.close()
    await db.close()
