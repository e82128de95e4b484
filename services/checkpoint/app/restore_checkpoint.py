"""Find the newest checkpoint of a step that verifies: its name, its signature, every chunk. Damaged ones are passed over,
towards the parents, and told.

Can go wrong: a store that is away looks like a lost chunk. It does not: only a chunk that is missing or damaged makes a
checkpoint damaged; a store that does not answer is a refusal, and nothing is passed over.
"""

from collections.abc import AsyncIterator

from libs.kernel.ids import digest
from libs.kernel.refusal import Reason, Refusal, not_found
from libs.kernel.values import value
from services.checkpoint.app.commit_checkpoints import verify_chunks
from services.checkpoint.domain.manifests import Content, content_of
from services.checkpoint.domain.values import Checkpoint, Holder, corrupt
from services.checkpoint.ports import Ports

_DAMAGE = (Reason.CONTENT_MISSING, Reason.CHECKPOINT_CORRUPT)


@value(frozen=True, slots=True)
class Found:
    """A checkpoint whose every byte verified."""

    checkpoint: Checkpoint
    content: Content


async def find_verified(ports: Ports, holder: Holder) -> Found:
    """The newest that verifies; NOT_FOUND where there is none, CHECKPOINT_CORRUPT where none verifies."""
    head = await ports.reads.head(holder.step)
    if head is None:
        raise not_found("checkpoint of this step")
    name, damaged = head.digest, dict[str, str]()
    last: Refusal | None = None
    while name and name.hex() not in damaged:
        try:
            checkpoint, content = await _verify(ports, holder, name)
        except _Damaged as problem:
            damaged[name.hex()] = problem.refusal.message
            last = problem.refusal
            name = problem.parent
            continue
        if damaged:
            ports.gauges.fell_back(holder.step, damaged)
            await ports.reads.note_resume(holder.step, head.digest, name, checkpoint.sequence)
        ports.gauges.checkpoint("restored_parent" if damaged else "restored")
        return Found(checkpoint, content)
    ports.gauges.checkpoint("corrupt")
    ports.gauges.fell_back(holder.step, damaged)
    raise Refusal(
        Reason.CHECKPOINT_CORRUPT,
        f"none of the {len(damaged)} checkpoints of step {holder.step_key} verifies",
        remedy="bring the store's content back from its replica or backup; the step cannot be resumed from here",
        detail=last.detail if last else {},
    )


async def read_state(ports: Ports, found: Found) -> AsyncIterator[bytes]:
    """The state's bytes, verified again as they are read."""
    for name in found.content.chunks:
        try:
            yield await ports.chunks.get(found.checkpoint.tenant, name)
        except Refusal as no:
            raise (corrupt("chunk", "it was lost", name) if no.reason is Reason.CONTENT_MISSING else no) from None


class _Damaged(Exception):
    """This checkpoint does not verify; `parent` is where to go on."""

    def __init__(self, refusal: Refusal, parent: bytes) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.parent = parent


async def _verify(ports: Ports, holder: Holder, name: bytes) -> tuple[Checkpoint, Content]:
    checkpoint = await ports.reads.checkpoint(holder.step, name)
    if checkpoint is None:
        raise _Damaged(corrupt("manifest", "its row is gone", name), b"")
    try:
        if digest(checkpoint.manifest) != name:
            raise corrupt("manifest", "its bytes have another digest", name)
        public = await ports.reads.public_key(checkpoint.key_id)
        if public is None or not ports.signer.verifies(checkpoint.key_id, public, checkpoint.manifest, checkpoint.signature):
            raise corrupt("manifest", "its signature does not verify", name)
        content = content_of(checkpoint)
        size = await verify_chunks(ports, holder.tenant, content.chunks)
        if size != content.size_bytes:
            raise corrupt("manifest", f"its chunks have {size} bytes, not {content.size_bytes}", name)
    except Refusal as no:
        if no.reason not in _DAMAGE:
            raise
        raise _Damaged(no, checkpoint.parent) from no
    return checkpoint, content
