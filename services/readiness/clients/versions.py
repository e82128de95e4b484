"""Graphs of workflow versions: in memory, else from our own copy, else asked of launch and kept. Implements `ports.Versions`.

They never change, so nothing here goes stale. Can go wrong: launch is away when a version is met for the first time; then
the delivery is refused UNAVAILABLE and comes again.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from runway.internal.launch.v1 import launch_internal_pb2, launch_internal_pb2_grpc

from libs.runtime.peers import Peers
from services.readiness.domain.graph import Graph
from services.readiness.ports import UnknownVersions
from services.readiness.translate_graph import parse_graph


class Kept(Protocol):
    """Readiness' own copy."""

    async def versions(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Specs that were kept."""
        ...

    async def add_versions(self, specs: Mapping[bytes, bytes]) -> None:
        """Keeps specs."""
        ...


class VersionClient:
    """Asks for each version once in its life."""

    def __init__(self, kept: Kept, peers: Peers) -> None:
        self._kept = kept
        self._peers = peers
        self._graphs: dict[bytes, Graph] = {}

    async def graphs(self, digests: Sequence[bytes]) -> dict[bytes, Graph]:
        """Those that launch knows."""
        missing = [digest for digest in digests if digest not in self._graphs]
        if missing:
            specs = await self._kept.versions(missing)
            unknown = [digest for digest in missing if digest not in specs]
            if unknown:
                asked = await self._ask(unknown)
                if asked:
                    await self._kept.add_versions(asked)
                specs |= asked
            self._graphs |= {digest: parse_graph(spec) for digest, spec in specs.items()}
        return {digest: self._graphs[digest] for digest in digests if digest in self._graphs}

    def known(self, digests: Sequence[bytes]) -> dict[bytes, Graph]:
        """Those in memory."""
        missing = [digest for digest in digests if digest not in self._graphs]
        if missing:
            raise UnknownVersions(missing)
        return {digest: self._graphs[digest] for digest in digests}

    async def _ask(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        stub = self._peers.stub("launch", launch_internal_pb2_grpc.LaunchInternalServiceStub)
        request = launch_internal_pb2.GetVersionsRequest(digests=digests)
        response = await self._peers.ask(stub.GetVersions, request)
        return {version.digest: version.spec for version in response.versions}
