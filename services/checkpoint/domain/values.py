"""What checkpoint's verbs speak of: who asks, what is committed, what is stored."""

from collections.abc import Mapping
from uuid import UUID

from libs.kernel.epochs import StepFence
from libs.kernel.refusal import Reason, Refusal
from libs.kernel.values import value

DATA_CLASS = "internal"
"""Part of every chunk's key; one class until runs carry theirs."""
NAME_LIMIT = 200


@value(frozen=True, slots=True)
class Holder:
    """Who asks, as its lease says. What it may still commit is decided by the fences, in the commit."""

    tenant: str
    project: str
    run_id: UUID
    step_key: str
    fence: StepFence
    epoch: int
    expired: bool
    handler: str
    workflow_digest: bytes

    @property
    def step(self) -> tuple[UUID, str]:
        """The step it holds."""
        return self.run_id, self.step_key


@value(frozen=True, slots=True)
class Commit:
    """A checkpoint as an attempt asks for it. `parent`: the head that it follows; empty: the step has none."""

    holder: Holder
    parent: bytes
    sequence: int
    boundary: str
    chunks: tuple[bytes, ...]
    size_bytes: int
    artifacts: tuple[bytes, ...]
    pending_slots: tuple[str, ...]
    versions: Mapping[str, str]


@value(frozen=True, slots=True)
class Sealed:
    """A commit with its manifest, named and signed."""

    commit: Commit
    manifest: bytes
    digest: bytes
    signature: bytes
    key_id: bytes

    @property
    def holder(self) -> Holder:
        """Who asks."""
        return self.commit.holder


@value(frozen=True, slots=True)
class Head:
    """The newest checkpoint of a step. `resume`: the newest that verifies, where a restore found the head damaged."""

    digest: bytes
    sequence: int
    resume: bytes | None = None
    resume_sequence: int = 0


@value(frozen=True, slots=True)
class Checkpoint:
    """A committed manifest."""

    tenant: str
    project: str
    run_id: UUID
    step_key: str
    digest: bytes
    parent: bytes
    sequence: int
    boundary: str
    attempt_id: UUID
    lease_epoch: int
    size_bytes: int
    manifest: bytes
    signature: bytes
    key_id: bytes
    committed_ms: int


@value(frozen=True, slots=True)
class Committed:
    """The answer to a commit; `replayed`: the same attempt had committed an equal one."""

    checkpoint: Checkpoint
    replayed: bool


@value(frozen=True, slots=True)
class Header:
    """What an attempt says of an artifact before its bytes."""

    name: str
    media_type: str
    digest: bytes
    size_bytes: int


@value(frozen=True, slots=True)
class Upload:
    """An artifact whose bytes are stored and verified, not committed yet."""

    holder: Holder
    header: Header
    chunks: tuple[bytes, ...]


@value(frozen=True, slots=True)
class Artifact:
    """A committed artifact."""

    tenant: str
    project: str
    run_id: UUID
    step_key: str
    digest: bytes
    name: str
    media_type: str
    size_bytes: int
    chunks: tuple[bytes, ...]
    attempt_id: UUID
    lease_epoch: int
    committed_ms: int


@value(frozen=True, slots=True)
class Stored:
    """The answer to an upload; `replayed`: an equal one had been committed."""

    artifact: Artifact
    replayed: bool


def corrupt(what: str, why: str, digest: bytes) -> Refusal:
    """CHECKPOINT_CORRUPT: what was stored is not what was promised."""
    return Refusal(
        Reason.CHECKPOINT_CORRUPT,
        f"{what} {digest.hex()} is damaged: {why}",
        remedy="go back to the last verified parent; upload it again where its source still exists",
        detail={"digest": digest.hex()},
    )


def content_missing(what: str, digest: bytes) -> Refusal:
    """CONTENT_MISSING: a manifest names what is not stored."""
    return Refusal(
        Reason.CONTENT_MISSING,
        f"no {what} {digest.hex()} is stored",
        remedy="upload it, then repeat the call",
        detail={"digest": digest.hex()},
    )


def too_large(what: str, size: int, limit: int) -> Refusal:
    """TOO_LARGE, with both numbers."""
    return Refusal(
        Reason.TOO_LARGE,
        f"{what} of {size} bytes is over the limit of {limit}",
        remedy="store less, or split it",
        detail={"bytes": str(size), "limit_bytes": str(limit)},
    )
