"""What checkpoint's verbs need from outside, as Protocols."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar
from uuid import UUID

from libs.kernel.clock import Clock
from libs.kernel.refusal import Refusal
from libs.kernel.values import value
from services.checkpoint.domain.values import Artifact, Checkpoint, Head, Holder

Step = tuple[UUID, str]
Content = tuple[str, bytes]
"""A tenant's chunk: (tenant, digest)."""


class Tx(Protocol):
    """A transaction whose items passed the fences; the gates of their runs are locked, so each run's rows stand still."""

    async def heads(self, steps: Sequence[Step]) -> dict[Step, Head]:
        """Heads of these steps; a step without one is left out."""
        ...

    async def checkpoints(self, names: Sequence[tuple[UUID, str, bytes]]) -> dict[tuple[UUID, str, bytes], Checkpoint]:
        """Committed checkpoints by (run, step, digest)."""
        ...

    async def artifact_digests(self, wanted: Sequence[tuple[UUID, bytes]]) -> set[tuple[UUID, bytes]]:
        """Those that are artifacts of their run."""
        ...

    async def name_chunks(self, wanted: Sequence[tuple[str, bytes, UUID]], now_ms: int) -> set[Content]:
        """Marks chunks as named by a manifest or artifact of a run; those that are stored. No sweep takes them meanwhile."""
        ...

    async def move_heads(self, moves: Sequence[tuple[Step, bytes, bytes, int]]) -> set[Step]:
        """Compare-and-set of heads, (step, expected digest, new digest, sequence); the steps whose head moved."""
        ...

    async def add_key(self, key_id: bytes, public_bytes: bytes, now_ms: int) -> None:
        """Keeps the public half beside what it signed."""
        ...

    async def add_checkpoints(self, rows: Sequence[Checkpoint]) -> None:
        """New manifests."""
        ...

    async def add_artifacts(self, rows: Sequence[Artifact]) -> None:
        """New artifacts; an equal one (run, digest, step, name) stays as it is."""
        ...

    async def artifacts(self, names: Sequence[tuple[UUID, bytes, str, str]]) -> dict[tuple[UUID, bytes, str, str], Artifact]:
        """Committed artifacts by (run, digest, step, name)."""
        ...


class Held(Protocol):
    """Something an attempt asks for."""

    @property
    def holder(self) -> Holder:
        """The attempt."""
        ...


A = TypeVar("A", bound=Held)
T = TypeVar("T")


class Commits(Protocol):
    """Commits under the fences: judged and written in one transaction."""

    async def commit(
        self, asks: Sequence[A], write: Callable[[Tx, Sequence[A]], Awaitable[Sequence[T | Refusal]]]
    ) -> list[T | Refusal]:
        """Judges each item and writes those that pass, in one transaction; what is cold is read and judged again.

        `write` gets the items that passed and may be called again with the same ones.
        """
        ...

    async def confirm(self, holder: Holder) -> None:
        """For what needs no fence: a lease whose token has died is confirmed by the scheduler, or refused."""
        ...


class Reads(Protocol):
    """Reads outside commits, and what they note."""

    async def head(self, step: Step) -> Head | None:
        """A step's head."""
        ...

    async def checkpoint(self, step: Step, digest: bytes) -> Checkpoint | None:
        """One checkpoint."""
        ...

    async def public_key(self, key_id: bytes) -> bytes | None:
        """The public half of a signing key."""
        ...

    async def note_resume(self, step: Step, head: bytes, resume: bytes, sequence: int) -> None:
        """The head was found damaged: commits may follow this one as well, while it stays the head."""
        ...

    async def artifact(self, run_id: UUID, digest: bytes) -> Artifact | None:
        """The oldest artifact of these bytes."""
        ...

    async def page_checkpoints(self, run_id: UUID, before: int, limit: int) -> list[tuple[int, Checkpoint]]:
        """Newest first, each with its place, below `before`; 0: from the newest."""
        ...

    async def page_artifacts(self, run_id: UUID, after: int, limit: int) -> list[tuple[int, Artifact]]:
        """Oldest first, each with its place, above `after`."""
        ...


class ChunkRows(Protocol):
    """What is known of chunks: the sweep's book-keeping."""

    async def announce(self, wanted: Sequence[Content], now_ms: int) -> dict[Content, bool]:
        """Before bytes are written: no sweep takes them for the grace period. Whether each was stored; doomed: left out."""
        ...

    async def mark_stored(self, wanted: Sequence[Content]) -> None:
        """The bytes are there."""
        ...

    async def unmark_stored(self, wanted: Sequence[Content]) -> None:
        """The bytes were found missing or damaged: they are asked for again."""
        ...

    async def touch_stored(self, wanted: Sequence[Content], now_ms: int) -> set[Content]:
        """Those stored; they stay for the grace period."""
        ...

    async def doom(self, unnamed_before_ms: int, abandoned_before_ms: int, now_ms: int, limit: int) -> list[Content]:
        """Takes chunks that nothing names, and those that another sweep gave up; nobody can store or name them now."""
        ...

    async def forget(self, doomed: Sequence[Content], doomed_ms: int) -> None:
        """Their bytes are gone."""
        ...


class Chunks(Protocol):
    """Bytes by digest, verified on write and on every read."""

    async def put(self, tenant: str, data: bytes) -> int:
        """Stores; how many bytes that took."""
        ...

    async def get(self, tenant: str, digest: bytes) -> bytes:
        """CONTENT_MISSING or CHECKPOINT_CORRUPT otherwise."""
        ...

    async def missing(self, tenant: str, digests: Sequence[bytes]) -> list[bytes]:
        """Those that are not there."""
        ...

    async def delete(self, tenant: str, digests: Sequence[bytes]) -> None:
        """Removes."""
        ...


class Signer(Protocol):
    """Signs manifests with a key of this process."""

    @property
    def key_id(self) -> bytes:
        """Its name."""
        ...

    @property
    def public_bytes(self) -> bytes:
        """Its public half."""
        ...

    def sign(self, manifest: bytes) -> bytes:
        """The signature."""
        ...

    def verifies(self, key_id: bytes, public_bytes: bytes, manifest: bytes, signature: bytes) -> bool:
        """Whether the key of this name and these bytes signed it."""
        ...


class Owners(Protocol):
    """Whose a run is."""

    async def owner(self, run_id: UUID) -> tuple[str, str] | None:
        """Tenant and project; None: no such run."""
        ...


@value(frozen=True, slots=True)
class Limits:
    """From the settings."""

    artifact_bytes: int
    checkpoint_bytes: int
    chunk_grace_ms: int


class Gauges(Protocol):
    """What is counted."""

    def checkpoint(self, answer: str) -> None:
        """One manifest, by what became of it."""
        ...

    def bytes(self, logical: int, stored: int) -> None:
        """Bytes that came, and what they took."""
        ...

    def fell_back(self, step: Step, damaged: Mapping[str, str]) -> None:
        """A restore passed over damaged checkpoints (digest → what is wrong)."""
        ...


@value(frozen=True, slots=True)
class Ports:
    """Everything a verb of checkpoint may use."""

    commits: Commits
    reads: Reads
    rows: ChunkRows
    chunks: Chunks
    signer: Signer
    owners: Owners
    gauges: Gauges
    clock: Clock
    limits: Limits
