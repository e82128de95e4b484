"""Protobuf ↔ checkpoint's domain, both ways."""

from collections.abc import Iterable, Sequence

from google.protobuf.timestamp_pb2 import Timestamp
from runway.checkpoint.v1 import checkpoint_service_pb2 as pb

from libs.fence.claims import VerifiedLease
from libs.kernel.refusal import invalid_field
from libs.rpc.identity import VerifiedLease as AnyLease
from services.checkpoint.domain.names import check_text
from services.checkpoint.domain.values import Artifact, Checkpoint, Commit, Header, Holder

DIGEST_BYTES = 32
VERSION_LIMIT = 1000


def holder_of(lease: AnyLease) -> Holder:
    """Who asks; CAPABILITY_DENIED where the step's contract commits no checkpoints."""
    assert isinstance(lease, VerifiedLease), "leases of this service are checked by libs.fence"
    lease.require_point("checkpoint")
    return Holder(
        lease.tenant,
        lease.project,
        lease.run_id,
        lease.step_key,
        lease.fence,
        lease.epoch,
        lease.expired,
        lease.handler,
        lease.workflow_digest,
    )


def digests_of(field: str, raw: Iterable[bytes]) -> tuple[bytes, ...]:
    """SHA-256 each."""
    found = tuple(raw)
    for place, name in enumerate(found):
        if len(name) != DIGEST_BYTES:
            raise invalid_field(f"{field}[{place}]", f"must be {DIGEST_BYTES} bytes, got {len(name)}", "send a SHA-256")
    return found


def commit_of(holder: Holder, request: pb.CommitCheckpointRequest) -> Commit:
    """A commit."""
    parent = digests_of("parent_digest", [request.parent_digest])[0] if request.parent_digest else b""
    check_text("boundary", request.boundary)
    for place, slot in enumerate(request.pending_slots):
        check_text(f"pending_slots[{place}]", slot)
    for name, version in request.versions.items():
        check_text("versions", name)
        check_text(f"versions[{name}]", version, VERSION_LIMIT)
    return Commit(
        holder=holder,
        parent=parent,
        sequence=request.boundary_sequence,
        boundary=request.boundary,
        chunks=digests_of("chunk_digests", request.chunk_digests),
        size_bytes=request.size_bytes,
        artifacts=digests_of("artifact_digests", request.artifact_digests),
        pending_slots=tuple(request.pending_slots),
        versions=dict(request.versions),
    )


def header_of(header: pb.ArtifactHeader) -> Header:
    """What an attempt says of an artifact."""
    return Header(header.name, header.media_type, header.digest, header.size_bytes)


def timestamp(ms: int) -> Timestamp:
    """Milliseconds as a Timestamp."""
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def checkpoint_message(row: Checkpoint) -> pb.Checkpoint:
    """A committed checkpoint."""
    return pb.Checkpoint(
        manifest_digest=row.digest.hex(),
        run_id=str(row.run_id),
        step_key=row.step_key,
        boundary_sequence=row.sequence,
        boundary=row.boundary,
        attempt_id=row.attempt_id.hex,
        size_bytes=row.size_bytes,
        committed_at=timestamp(row.committed_ms),
        manifest=row.manifest,
        signature=row.signature,
        key_id=row.key_id,
        lease_epoch=row.lease_epoch,
    )


def artifact_message(row: Artifact) -> pb.Artifact:
    """A committed artifact."""
    return pb.Artifact(
        digest=row.digest.hex(),
        name=row.name,
        media_type=row.media_type,
        size_bytes=row.size_bytes,
        run_id=str(row.run_id),
        step_key=row.step_key,
        attempt_id=row.attempt_id.hex,
        committed_at=timestamp(row.committed_ms),
    )


def digest_of_text(field: str, text: str) -> bytes:
    """A digest in hexadecimal."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != DIGEST_BYTES:
        raise invalid_field(field, "is not a SHA-256 in hexadecimal", "send the digest as it was returned")
    return found


def place_of(token: str) -> int:
    """Where a page begins."""
    if token and not (token.isascii() and token.isdecimal() and len(token) <= 18):
        raise invalid_field("page_token", "is not one of ours", "send next_page_token as it was returned")
    return int(token or "0")


def next_token(places: Sequence[int], size: int) -> str:
    """The token after a page that was read one longer than asked."""
    return str(places[size - 1]) if len(places) > size else ""


def pieces(data: bytes, most: int) -> Iterable[bytes]:
    """Bytes in messages that any client takes."""
    return (data[at : at + most] for at in range(0, len(data), most))
