"""Authoritative for how a process without launch learns who holds an API key: it asks launch, by the key's digest."""

from uuid import UUID

from runway.internal.launch.v1 import launch_internal_pb2, launch_internal_pb2_grpc

from libs.rpc.identity import Caller
from libs.runtime.peers import Peers


class RemoteCallers:
    """A CallerDirectory over the wire; put a cache before it."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def resolve(self, key_digest: bytes) -> Caller | None:
        """The caller behind a key, as launch knows it now."""
        stub = self._peers.stub("launch", launch_internal_pb2_grpc.LaunchInternalServiceStub, "control")
        request = launch_internal_pb2.ResolveCallersRequest(key_digests=[key_digest])
        answer = await self._peers.ask(stub.ResolveCallers, request, deadline_ms=2_000)
        record = answer.callers[0]
        if not record.known:
            return None
        key_id = str(UUID(bytes=record.key_id))
        return Caller(record.tenant, record.project, key_id, frozenset(record.scopes), record.name, record.expires_ms)
