"""Authoritative for what a manifest says and how it is written: canonical JSON (RFC 8785), so that equal checkpoints have
equal names.

It holds nothing that differs between repeats of one commit (no time), and the attempt that made it, so an equal digest is an
equal commit by the same attempt. Can go wrong: an integer above 2^53, which canonical JSON does not have; epochs are text.
"""

import json
from uuid import UUID

import rfc8785

from libs.kernel.values import value
from services.checkpoint.domain.values import Checkpoint, Commit, corrupt

FORMAT = "runway.checkpoint/1"


def manifest_of(commit: Commit) -> bytes:
    """The bytes that are named and signed."""
    holder = commit.holder
    return rfc8785.dumps(
        {
            "format": FORMAT,
            "tenant": holder.tenant,
            "project": holder.project,
            "run_id": str(holder.run_id),
            "step_key": holder.step_key,
            "attempt_id": holder.fence.attempt_id.hex,
            "authority_epoch": str(holder.fence.authority_epoch),
            "lease_epoch": str(holder.fence.lease_epoch),
            "workflow_digest": holder.workflow_digest.hex(),
            "handler": holder.handler,
            "boundary": {"sequence": str(commit.sequence), "name": commit.boundary},
            "parent": commit.parent.hex(),
            "chunks": [digest.hex() for digest in commit.chunks],
            "size_bytes": str(commit.size_bytes),
            "artifacts": [digest.hex() for digest in commit.artifacts],
            "pending_slots": list(commit.pending_slots),
            "versions": dict(commit.versions),
        }
    )


@value(frozen=True, slots=True)
class Content:
    """What a restore needs of a manifest."""

    chunks: tuple[bytes, ...]
    size_bytes: int


def content_of(checkpoint: Checkpoint) -> Content:
    """Reads a manifest whose digest and signature were checked; CHECKPOINT_CORRUPT where it is not this row's."""
    try:
        said = json.loads(checkpoint.manifest)
        same = (
            said["format"] == FORMAT
            and said["tenant"] == checkpoint.tenant
            and UUID(said["run_id"]) == checkpoint.run_id
            and said["step_key"] == checkpoint.step_key
            and said["boundary"]["sequence"] == str(checkpoint.sequence)
            and bytes.fromhex(said["parent"]) == checkpoint.parent
        )
        content = Content(tuple(bytes.fromhex(text) for text in said["chunks"]), int(said["size_bytes"]))
    except (ValueError, KeyError, TypeError) as problem:
        raise corrupt("manifest", "it cannot be read", checkpoint.digest) from problem
    if not same:
        raise corrupt("manifest", "it is of another checkpoint", checkpoint.digest)
    return content
