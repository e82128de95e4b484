"""Commit manifests: every chunk is read and verified first, then fences, head and rows are one transaction.

Can go wrong: two checkpoints on the same head. The gate of the run is locked while heads are compared, and of one step
only one commit of a batch is decided at a time.
"""

import asyncio
from collections.abc import Iterator, Sequence

from libs.kernel.ids import digest
from libs.kernel.refusal import Reason, Refusal, invalid_field
from services.checkpoint.domain.heads import NO_HEAD, Decision, Follow, Known, conflict, decide
from services.checkpoint.domain.manifests import manifest_of
from services.checkpoint.domain.values import Checkpoint, Commit, Committed, Sealed, content_missing, too_large
from services.checkpoint.ports import Ports, Tx

AT_ONCE = 16
"""Chunks of one checkpoint in memory while they are verified."""


async def seal(ports: Ports, commit: Commit) -> Sealed:
    """Verifies every chunk as it lies in the store, then names and signs the manifest."""
    if commit.size_bytes > ports.limits.checkpoint_bytes:
        raise too_large("a checkpoint", commit.size_bytes, ports.limits.checkpoint_bytes)
    size = await verify_chunks(ports, commit.holder.tenant, commit.chunks)
    if size != commit.size_bytes:
        raise invalid_field("size_bytes", f"is {commit.size_bytes}, the chunks have {size}", "send the bytes of all chunks")
    manifest = manifest_of(commit)
    return Sealed(commit, manifest, digest(manifest), ports.signer.sign(manifest), ports.signer.key_id)


async def verify_chunks(ports: Ports, tenant: str, chunks: Sequence[bytes]) -> int:
    """Bytes of all chunks, each read back; a missing or damaged one is asked for again by later uploads."""
    sizes: dict[bytes, int] = {}

    async def read(name: bytes) -> None:
        try:
            sizes[name] = len(await ports.chunks.get(tenant, name))
        except Refusal as no:
            if no.reason in (Reason.CONTENT_MISSING, Reason.CHECKPOINT_CORRUPT):
                await ports.rows.unmark_stored([(tenant, name)])
            raise

    names = list(dict.fromkeys(chunks))
    for first in range(0, len(names), AT_ONCE):
        await asyncio.gather(*[read(name) for name in names[first : first + AT_ONCE]])
    return sum(sizes[name] for name in chunks)


async def commit_checkpoints(ports: Ports, asked: Sequence[Sealed]) -> list[Committed | Refusal]:
    """Commits a batch; an outcome per item. Several of one step are decided one after the other."""
    answers: dict[int, Committed | Refusal] = {}
    for places in _rounds(asked):
        found = await ports.commits.commit([asked[place] for place in places], lambda tx, items: _write(ports, tx, items))
        answers |= zip(places, found, strict=True)
    for answer in answers.values():
        refused = answer.reason.value.lower() if isinstance(answer, Refusal) else ""
        ports.gauges.checkpoint(refused or ("replayed" if isinstance(answer, Committed) and answer.replayed else "committed"))
    return [answers[place] for place in range(len(asked))]


def _rounds(asked: Sequence[Sealed]) -> Iterator[list[int]]:
    left = list(range(len(asked)))
    while left:
        first = {asked[place].holder.step: place for place in reversed(left)}
        chosen = sorted(first.values())
        yield chosen
        left = [place for place in left if place not in chosen]


async def _write(ports: Ports, tx: Tx, items: Sequence[Sealed]) -> list[Committed | Refusal]:
    """Decides and writes items that passed the fences; at most one of each step."""
    now = ports.clock.now_ms()
    heads = await tx.heads([item.holder.step for item in items])
    decided: list[Decision] = [decide(heads.get(item.holder.step), item) for item in items]
    decided = await _refuse_dangling(tx, items, decided, now)
    following = [(item, one) for item, one in zip(items, decided, strict=True) if isinstance(one, Follow)]
    moves = [(item.holder.step, one.expected, item.digest, item.commit.sequence) for item, one in following]
    moved = await tx.move_heads(moves) if moves else set()
    rows = {item.holder.step: _row(item, now) for item, _ in following if item.holder.step in moved}
    if rows:
        await tx.add_key(ports.signer.key_id, ports.signer.public_bytes, now)
        await tx.add_checkpoints(list(rows.values()))
    replays = [(*item.holder.step, item.digest) for item, one in zip(items, decided, strict=True) if one is Known.REPLAYED]
    known = await tx.checkpoints(replays) if replays else {}
    outcomes: list[Committed | Refusal] = []
    for item, one in zip(items, decided, strict=True):
        if isinstance(one, Refusal):
            outcomes.append(one)
        elif one is Known.REPLAYED:
            outcomes.append(Committed(known[(*item.holder.step, item.digest)], replayed=True))
        elif item.holder.step in rows:
            outcomes.append(Committed(rows[item.holder.step], replayed=False))
        else:
            outcomes.append(conflict(heads.get(item.holder.step, NO_HEAD)))
    return outcomes


async def _refuse_dangling(tx: Tx, items: Sequence[Sealed], decided: list[Decision], now: int) -> list[Decision]:
    """A manifest names only what is stored: chunks, which no sweep can take from here on, and artifacts of its run."""
    following = [item for item, one in zip(items, decided, strict=True) if isinstance(one, Follow)]
    wanted = {(item.holder.tenant, name, item.holder.run_id) for item in following for name in item.commit.chunks}
    stored = await tx.name_chunks(sorted(wanted), now) if wanted else set()
    named = {(item.holder.run_id, name) for item in following for name in item.commit.artifacts}
    artifacts = await tx.artifact_digests(sorted(named)) if named else set()
    checked: list[Decision] = []
    for item, one in zip(items, decided, strict=True):
        if isinstance(one, Follow):
            chunk = next((name for name in item.commit.chunks if (item.holder.tenant, name) not in stored), None)
            artifact = next((name for name in item.commit.artifacts if (item.holder.run_id, name) not in artifacts), None)
            if chunk is not None:
                one = content_missing("chunk", chunk)
            elif artifact is not None:
                one = content_missing("artifact of this run", artifact)
        checked.append(one)
    return checked


def _row(item: Sealed, now: int) -> Checkpoint:
    commit, holder = item.commit, item.holder
    return Checkpoint(
        tenant=holder.tenant,
        project=holder.project,
        run_id=holder.run_id,
        step_key=holder.step_key,
        digest=item.digest,
        parent=commit.parent,
        sequence=commit.sequence,
        boundary=commit.boundary,
        attempt_id=holder.fence.attempt_id,
        lease_epoch=holder.fence.lease_epoch,
        size_bytes=commit.size_bytes,
        manifest=item.manifest,
        signature=item.signature,
        key_id=item.key_id,
        committed_ms=now,
    )
