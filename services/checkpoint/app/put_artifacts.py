"""Store an artifact: its bytes as chunks while they arrive, its row under the fences once all of them are verified.

Can go wrong: an upload that ends half way. Its chunks are named by nothing, and swept.
"""

import hashlib
from collections.abc import AsyncIterator, Sequence

from libs.kernel.refusal import Refusal, invalid_field
from services.checkpoint.app.store_chunks import put_chunks
from services.checkpoint.domain.names import check_header
from services.checkpoint.domain.values import Artifact, Header, Holder, Stored, Upload, content_missing, too_large
from services.checkpoint.ports import Ports, Tx

CHUNK_BYTES = 4 * 1024 * 1024


async def receive(ports: Ports, holder: Holder, header: Header, pieces: AsyncIterator[bytes]) -> Upload:
    """Takes the bytes; refuses what is not as long or not what the header says."""
    check_header(header)
    if header.size_bytes > ports.limits.artifact_bytes:
        raise too_large("an artifact", header.size_bytes, ports.limits.artifact_bytes)
    whole, waiting, size = hashlib.sha256(), bytearray(), 0
    chunks: list[bytes] = []

    async def store(data: bytes) -> None:
        await put_chunks(ports, holder.tenant, [data])
        chunks.append(hashlib.sha256(data).digest())

    async for piece in pieces:
        size += len(piece)
        if size > header.size_bytes:
            break
        whole.update(piece)
        waiting += piece
        while len(waiting) >= CHUNK_BYTES:
            await store(bytes(waiting[:CHUNK_BYTES]))
            del waiting[:CHUNK_BYTES]
    if size != header.size_bytes:
        more = "more" if size > header.size_bytes else f"only {size}"
        raise invalid_field("header.size_bytes", f"is {header.size_bytes}, {more} came", "send the size of the bytes you send")
    if whole.digest() != header.digest:
        raise invalid_field("header.digest", "is not the SHA-256 of the bytes", "send the digest of what you send")
    if waiting:
        await store(bytes(waiting))
    return Upload(holder, header, tuple(chunks))


async def put_artifacts(ports: Ports, asked: Sequence[Upload]) -> list[Stored | Refusal]:
    """Commits a batch; an outcome per item."""
    return await ports.commits.commit(asked, lambda tx, items: _write(ports, tx, items))


async def _write(ports: Ports, tx: Tx, items: Sequence[Upload]) -> list[Stored | Refusal]:
    now = ports.clock.now_ms()
    names = [(item.holder.run_id, item.header.digest, item.holder.step_key, item.header.name) for item in items]
    before = await tx.artifacts(names)
    wanted = {(item.holder.tenant, name, item.holder.run_id) for item in items for name in item.chunks}
    stored = await tx.name_chunks(sorted(wanted), now)
    lost = [next((name for name in item.chunks if (item.holder.tenant, name) not in stored), None) for item in items]
    new = {
        name: _row(item, now)
        for name, item, gone in zip(names, items, lost, strict=True)
        if gone is None and name not in before
    }
    await tx.add_artifacts(list(new.values()))
    outcomes: list[Stored | Refusal] = []
    told: set[object] = set()
    for name, gone in zip(names, lost, strict=True):
        if name in before:
            outcomes.append(Stored(before[name], replayed=True))
        elif gone is not None:
            outcomes.append(content_missing("chunk", gone))
        else:
            outcomes.append(Stored(new[name], replayed=name in told))
            told.add(name)
    return outcomes


def _row(item: Upload, now: int) -> Artifact:
    holder, header = item.holder, item.header
    return Artifact(
        tenant=holder.tenant,
        project=holder.project,
        run_id=holder.run_id,
        step_key=holder.step_key,
        digest=header.digest,
        name=header.name,
        media_type=header.media_type,
        size_bytes=header.size_bytes,
        chunks=item.chunks,
        attempt_id=holder.fence.attempt_id,
        lease_epoch=holder.fence.lease_epoch,
        committed_ms=now,
    )
