"""gRPC of checkpoint: parse → app → translate."""

from collections.abc import AsyncIterator
from typing import Any

from runway.checkpoint.v1 import checkpoint_service_pb2 as pb
from runway.checkpoint.v1 import checkpoint_service_pb2_grpc
from runway.internal.checkpoint.v1 import checkpoint_internal_pb2 as internal_pb
from runway.internal.checkpoint.v1 import checkpoint_internal_pb2_grpc

from libs.kernel.ids import uuid_from_bytes, uuid_from_text
from libs.kernel.refusal import invalid_field
from libs.rpc.batcher import Batcher
from libs.rpc.identity import current_call
from services.checkpoint import translate
from services.checkpoint.app.commit_checkpoints import commit_checkpoints, seal
from services.checkpoint.app.put_artifacts import put_artifacts, receive
from services.checkpoint.app.read_artifacts import check_owner, find_artifact, read_bytes, show_artifact
from services.checkpoint.app.restore_checkpoint import find_verified, read_state
from services.checkpoint.app.store_chunks import check_chunks, missing_chunks, put_chunks
from services.checkpoint.domain.values import Committed, Holder, Sealed, Stored, Upload
from services.checkpoint.ports import Ports

PIECE_BYTES = 1024 * 1024
"""Below the 4 MiB that clients take unless told otherwise."""
DEFAULT_PAGE = 100


def _holder() -> Holder:
    return translate.holder_of(current_call().require_lease())


class CheckpointServicer(checkpoint_service_pb2_grpc.CheckpointServiceServicer):
    """Commits that arrive together form one batch."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._commits: Batcher[Sealed, Committed] = Batcher(lambda asks: commit_checkpoints(ports, asks), name="checkpoint")
        self._artifacts: Batcher[Upload, Stored] = Batcher(lambda asks: put_artifacts(ports, asks), name="artifact")

    async def close(self) -> None:
        """Waits for batches under way."""
        await self._commits.close()
        await self._artifacts.close()

    async def PutChunks(self, request: pb.PutChunksRequest, context: Any) -> pb.PutChunksResponse:
        """See the contract."""
        holder = _holder()
        check_chunks([(chunk.digest, chunk.data) for chunk in request.chunks])
        stored = await put_chunks(self._ports, holder.tenant, [chunk.data for chunk in request.chunks])
        return pb.PutChunksResponse(stored=stored)

    async def FindMissingChunks(self, request: pb.FindMissingChunksRequest, context: Any) -> pb.FindMissingChunksResponse:
        """See the contract."""
        holder = _holder()
        digests = translate.digests_of("digests", request.digests)
        return pb.FindMissingChunksResponse(digests=await missing_chunks(self._ports, holder.tenant, digests))

    async def CommitCheckpoint(self, request: pb.CommitCheckpointRequest, context: Any) -> pb.CommitCheckpointResponse:
        """See the contract."""
        sealed = await seal(self._ports, translate.commit_of(_holder(), request))
        done = await self._commits.submit(sealed)
        return pb.CommitCheckpointResponse(checkpoint=translate.checkpoint_message(done.checkpoint), replayed=done.replayed)

    async def RestoreCheckpoint(
        self, request: pb.RestoreCheckpointRequest, context: Any
    ) -> AsyncIterator[pb.RestoreCheckpointResponse]:
        """See the contract."""
        holder = _holder()
        await self._ports.commits.confirm(holder)
        found = await find_verified(self._ports, holder)
        yield pb.RestoreCheckpointResponse(checkpoint=translate.checkpoint_message(found.checkpoint))
        async for data in read_state(self._ports, found):
            for piece in translate.pieces(data, PIECE_BYTES):
                yield pb.RestoreCheckpointResponse(data=piece)

    async def ListCheckpoints(self, request: pb.ListCheckpointsRequest, context: Any) -> pb.ListCheckpointsResponse:
        """See the contract."""
        caller = current_call().require_caller()
        run_id, before = uuid_from_text(request.run_id, "run_id"), translate.place_of(request.page_token)
        await check_owner(self._ports, caller.tenant, caller.project, run_id)
        size = request.page_size or DEFAULT_PAGE
        found = await self._ports.reads.page_checkpoints(run_id, before, size + 1)
        return pb.ListCheckpointsResponse(
            checkpoints=[translate.checkpoint_message(row) for _, row in found[:size]],
            next_page_token=translate.next_token([place for place, _ in found], size),
        )

    async def PutArtifact(self, requests: AsyncIterator[pb.PutArtifactRequest], context: Any) -> pb.PutArtifactResponse:
        """See the contract."""
        holder = _holder()
        first = await anext(requests, None)
        if first is None or first.WhichOneof("part") != "header":
            raise invalid_field("header", "must come first", "send the header, then the bytes")
        upload = await receive(self._ports, holder, translate.header_of(first.header), _data(requests))
        done = await self._artifacts.submit(upload)
        return pb.PutArtifactResponse(artifact=translate.artifact_message(done.artifact), replayed=done.replayed)

    async def GetArtifact(self, request: pb.GetArtifactRequest, context: Any) -> AsyncIterator[pb.GetArtifactResponse]:
        """See the contract."""
        caller = current_call().require_caller()
        run_id, digest = uuid_from_text(request.run_id, "run_id"), translate.digest_of_text("digest", request.digest)
        artifact = await show_artifact(self._ports, caller.tenant, caller.project, run_id, digest)
        yield pb.GetArtifactResponse(artifact=translate.artifact_message(artifact))
        async for data in read_bytes(self._ports, artifact):
            for piece in translate.pieces(data, PIECE_BYTES):
                yield pb.GetArtifactResponse(data=piece)

    async def ListArtifacts(self, request: pb.ListArtifactsRequest, context: Any) -> pb.ListArtifactsResponse:
        """See the contract."""
        caller = current_call().require_caller()
        run_id, after = uuid_from_text(request.run_id, "run_id"), translate.place_of(request.page_token)
        await check_owner(self._ports, caller.tenant, caller.project, run_id)
        size = request.page_size or DEFAULT_PAGE
        found = await self._ports.reads.page_artifacts(run_id, after, size + 1)
        return pb.ListArtifactsResponse(
            artifacts=[translate.artifact_message(row) for _, row in found[:size]],
            next_page_token=translate.next_token([place for place, _ in found], size),
        )


async def _data(requests: AsyncIterator[pb.PutArtifactRequest]) -> AsyncIterator[bytes]:
    async for request in requests:
        if request.WhichOneof("part") != "data":
            raise invalid_field("data", "must follow the header", "send one header, then only bytes")
        yield request.data


class InternalServicer(checkpoint_internal_pb2_grpc.CheckpointInternalServiceServicer):
    """For services."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def ReadArtifact(
        self, request: internal_pb.ReadArtifactRequest, context: Any
    ) -> AsyncIterator[internal_pb.ReadArtifactResponse]:
        """See the contract."""
        artifact = await find_artifact(self._ports, uuid_from_bytes(request.run_id, "run_id"), request.digest)
        async for data in read_bytes(self._ports, artifact):
            for piece in translate.pieces(data, PIECE_BYTES):
                yield internal_pb.ReadArtifactResponse(data=piece)
