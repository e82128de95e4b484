"""Read what was committed: an artifact's bytes, and the lists of a run. Another tenant's is NOT_FOUND."""

import hashlib
from collections.abc import AsyncIterator
from uuid import UUID

from libs.kernel.refusal import Reason, Refusal, not_found
from services.checkpoint.domain.values import Artifact, corrupt
from services.checkpoint.ports import Ports


async def find_artifact(ports: Ports, run_id: UUID, digest: bytes) -> Artifact:
    """For services, which speak for the run they name."""
    found = await ports.reads.artifact(run_id, digest)
    if found is None:
        raise not_found("artifact")
    return found


async def show_artifact(ports: Ports, tenant: str, project: str, run_id: UUID, digest: bytes) -> Artifact:
    """For callers."""
    found = await ports.reads.artifact(run_id, digest)
    if found is None or found.tenant != tenant or project not in ("", found.project):
        raise not_found("artifact")
    return found


async def check_owner(ports: Ports, tenant: str, project: str, run_id: UUID) -> None:
    """Refuses a run that the caller may not see."""
    owner = await ports.owners.owner(run_id)
    if owner is None or owner[0] != tenant or project not in ("", owner[1]):
        raise not_found("run")


async def read_bytes(ports: Ports, artifact: Artifact) -> AsyncIterator[bytes]:
    """An artifact's bytes; each chunk is verified, and at the end the whole."""
    whole = hashlib.sha256()
    for name in artifact.chunks:
        try:
            data = await ports.chunks.get(artifact.tenant, name)
        except Refusal as no:
            raise (corrupt("chunk", "it was lost", name) if no.reason is Reason.CONTENT_MISSING else no) from None
        whole.update(data)
        yield data
    if whole.digest() != artifact.digest:
        raise corrupt("artifact", "its bytes have another digest", artifact.digest)
