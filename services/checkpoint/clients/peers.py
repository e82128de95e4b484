"""What checkpoint asks of other services: the scheduler for signing keys, launch for owners of runs."""

from collections import OrderedDict
from typing import Protocol
from uuid import UUID

from runway.internal.launch.v1 import launch_internal_pb2, launch_internal_pb2_grpc
from runway.internal.scheduler.v1 import scheduler_internal_pb2, scheduler_internal_pb2_grpc

from libs.runtime.peers import Peers

_KEPT_OWNERS = 10_000


class SchedulerKeys:
    """Public halves of the keys that sign leases; put a cache (the verifier) before it."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def fetch(self, key_id: bytes) -> bytes | None:
        """The key's bytes, or None where the scheduler knows none of this name."""
        stub = self._peers.stub("scheduler", scheduler_internal_pb2_grpc.SchedulerInternalServiceStub, "leaf")
        request = scheduler_internal_pb2.GetSigningKeysRequest(key_ids=[key_id])
        answer = await self._peers.ask(stub.GetSigningKeys, request, deadline_ms=2_000)
        return next((key.public_key for key in answer.keys if key.key_id == key_id), None)


class Gates(Protocol):
    """Owners that gates have brought here."""

    async def owner(self, run_id: UUID) -> tuple[str, str] | None:
        """Tenant and project."""
        ...


class RunOwners:
    """Owners of runs: from memory, from gates, else asked of launch. They never change. Implements `ports.Owners`."""

    def __init__(self, gates: Gates, peers: Peers) -> None:
        self._gates = gates
        self._peers = peers
        self._known: OrderedDict[UUID, tuple[str, str]] = OrderedDict()

    async def owner(self, run_id: UUID) -> tuple[str, str] | None:
        """Tenant and project; None: no such run."""
        owner = self._known.get(run_id) or await self._gates.owner(run_id) or await self._ask(run_id)
        if owner is not None:
            self._known[run_id] = owner
            self._known.move_to_end(run_id)
            if len(self._known) > _KEPT_OWNERS:
                self._known.popitem(last=False)
        return owner

    async def _ask(self, run_id: UUID) -> tuple[str, str] | None:
        stub = self._peers.stub("launch", launch_internal_pb2_grpc.LaunchInternalServiceStub)
        request = launch_internal_pb2.GetOwnersRequest(run_ids=[run_id.bytes])
        record = (await self._peers.ask(stub.GetOwners, request, deadline_ms=5_000)).owners[0]
        return (record.tenant, record.project) if record.known else None
