"""gRPC of launch for operators and other services, and its leaf port: parse → app or read → translate."""

from typing import Any

from runway.internal.fence.v1 import fence_pb2
from runway.internal.launch.v1 import launch_internal_pb2 as internal_pb
from runway.internal.launch.v1 import launch_internal_pb2_grpc
from runway.launch.v1 import admin_service_pb2 as admin_pb
from runway.launch.v1 import admin_service_pb2_grpc

from libs.kernel.ids import uuid_from_text
from libs.kernel.refusal import Reason, Refusal, unreachable
from libs.rpc.identity import Caller
from services.launch import translate
from services.launch.app.create_keys import KeyAsk, create_keys
from services.launch.app.manage_tenants import get_tenant, put_tenant, revoke_key
from services.launch.domain.facts import KeyRecord
from services.launch.ports import LeafReads, Ports
from services.launch.translate_keys import one_of, secret_of

OPERATORS = "operators"
"""Who acts with the installation's secret."""
EXACT = frozenset({"admin", "automation", "reviewer", "auditor"})
"""Roles beside which a key is granted nothing that it does not name."""


class AdminServicer(admin_service_pb2_grpc.AdminServiceServicer):
    """Tenants and keys."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def PutTenant(self, request: admin_pb.PutTenantRequest, context: Any) -> admin_pb.PutTenantResponse:
        """See the contract."""
        expected = request.expected_version if request.HasField("expected_version") else None
        most = request.max_active_descendants if request.HasField("max_active_descendants") else None
        account = await put_tenant(self._ports, request.tenant, request.limit_micros, request.max_active_runs, expected, most)
        return admin_pb.PutTenantResponse(tenant=translate.tenant_message(account))

    async def GetTenant(self, request: admin_pb.GetTenantRequest, context: Any) -> admin_pb.GetTenantResponse:
        """See the contract."""
        return admin_pb.GetTenantResponse(tenant=translate.tenant_message(await get_tenant(self._ports, request.tenant)))

    async def CreateApiKey(self, request: admin_pb.CreateApiKeyRequest, context: Any) -> admin_pb.CreateApiKeyResponse:
        """See the contract."""
        scopes = set(request.scopes)
        if not scopes & EXACT:
            scopes.add("caller")
        request_id = translate.check_text(request.request_id, "request_id")
        ask = KeyAsk(request.tenant, request.project, tuple(scopes), request.name, OPERATORS, request_id=request_id)
        key = one_of(await create_keys(self._ports, [ask]))
        secret, remedy = secret_of(key, self._ports.clock.now_ms())
        return admin_pb.CreateApiKeyResponse(
            key_id=str(key.record.key_id),
            api_key=key.text,
            created_at=translate.timestamp(key.record.created_ms),
            secret=secret,
            remedy=remedy,
        )

    async def RevokeApiKey(self, request: admin_pb.RevokeApiKeyRequest, context: Any) -> admin_pb.RevokeApiKeyResponse:
        """See the contract."""
        revoked = await revoke_key(self._ports, uuid_from_text(request.key_id, "key_id"), OPERATORS)
        return admin_pb.RevokeApiKeyResponse(revoked_at=translate.timestamp(revoked.revoked_ms))


class InternalServicer(launch_internal_pb2_grpc.LaunchInternalServiceServicer):
    """Facts that other services may keep."""

    def __init__(self, ports: Ports, leaf: LeafReads) -> None:
        self._ports = ports
        self._leaf = leaf

    async def ResolveCallers(
        self, request: internal_pb.ResolveCallersRequest, context: Any
    ) -> internal_pb.ResolveCallersResponse:
        """See the contract."""
        found = await self._ports.tenancy.keys(list(request.key_digests), self._ports.clock.now_ms())
        return internal_pb.ResolveCallersResponse(callers=[_record(found.get(key)) for key in request.key_digests])

    async def GetVersions(self, request: internal_pb.GetVersionsRequest, context: Any) -> internal_pb.GetVersionsResponse:
        """See the contract."""
        found = await self._ports.catalogue.by_digest(list(request.digests))
        records = [internal_pb.VersionRecord(digest=digest, spec=spec) for digest, spec in found.items()]
        return internal_pb.GetVersionsResponse(versions=records)

    async def GetOwners(self, request: internal_pb.GetOwnersRequest, context: Any) -> internal_pb.GetOwnersResponse:
        """See the contract."""
        run_ids = translate.ids_of(request.run_ids, "run_ids")
        found = await self._leaf.owners(run_ids)
        records = []
        for run_id in run_ids:
            tenant, project = found.get(run_id, ("", ""))
            records.append(internal_pb.OwnerRecord(known=run_id in found, tenant=tenant, project=project))
        return internal_pb.GetOwnersResponse(owners=records)


def _record(key: KeyRecord | None) -> internal_pb.CallerRecord:
    if key is None:
        return internal_pb.CallerRecord(known=False)
    return internal_pb.CallerRecord(
        known=True,
        tenant=key.tenant,
        project=key.project,
        scopes=key.scopes,
        key_id=key.key_id.bytes,
        name=key.name,
        expires_ms=key.expires_ms,
    )


class LaunchCallers:
    """API keys from launch's own database; implements `CallerDirectory`."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def resolve(self, key_digest: bytes) -> Caller | None:
        """Whose key it is."""
        key = (await self._ports.tenancy.keys([key_digest], self._ports.clock.now_ms())).get(key_digest)
        if key is None:
            return None
        return Caller(key.tenant, key.project, str(key.key_id), frozenset(key.scopes), key.name, key.expires_ms)


class LaunchFences:
    """Launch is the authority for gates and scopes: it answers cold reads and takes no raise."""

    def __init__(self, leaf: LeafReads) -> None:
        self._leaf = leaf

    async def raise_fences(self, request: fence_pb2.RaiseFencesRequest) -> fence_pb2.RaiseFencesResponse:
        """Refuses: launch issues gates, points enforce them."""
        raise Refusal(Reason.METHOD_DENIED, "launch takes no raises", remedy="raise at scheduler, gateway or checkpoint")

    async def get_fences(self, request: fence_pb2.GetFencesRequest) -> fence_pb2.GetFencesResponse:
        """Gates as they are in one statement, stamped with the incarnation in which it began."""
        if request.steps:
            raise Refusal(Reason.METHOD_DENIED, "launch knows no step fences", remedy="ask the scheduler")
        incarnation, gates, scopes = await self._leaf.gates(translate.ids_of(request.run_ids, "run_ids"))
        if incarnation <= 0:
            raise unreachable("launch's database")
        return fence_pb2.GetFencesResponse(
            gates=[translate.gate_message(gate) for gate in gates],
            scopes=[translate.scope_message(scope) for scope in scopes],
            incarnation=incarnation,
        )
