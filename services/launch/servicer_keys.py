"""gRPC of a tenant's own keys and projects: parse → app → translate. The tenant is the key's, never the request's."""

from typing import Any
from uuid import UUID

from runway.launch.v1 import key_service_pb2 as keys
from runway.launch.v1 import key_service_pb2_grpc, project_service_pb2_grpc
from runway.launch.v1 import project_service_pb2 as projects

from libs.kernel.ids import uuid_from_text
from libs.kernel.refusal import invalid_field, not_found
from libs.rpc.identity import Caller, current_call
from services.launch import translate
from services.launch.app.create_keys import KeyAsk, create_keys
from services.launch.app.manage_projects import ACTIVE, SUSPENDED, create_project, turn_project
from services.launch.app.manage_tenants import revoke_key
from services.launch.ports import Ports
from services.launch.translate_keys import key_message, one_of, project_message, secret_of

PAGE = 100
NEWEST = UUID(int=2**128 - 1)
SHORTEST_MS = 1_000
LONGEST_MS = 10 * 365 * 86_400_000


def _own(caller: Caller, project: str) -> str:
    """The project, where the key may name it."""
    if caller.project and project and project != caller.project:
        raise not_found("project")
    return translate.check_text(caller.project or project, "project")


class KeyServicer(key_service_pb2_grpc.KeyServiceServicer):
    """Keys of the caller's tenant."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def CreateKey(self, request: keys.CreateKeyRequest, context: Any) -> keys.CreateKeyResponse:
        """See the contract."""
        caller = current_call().require_caller()
        lasts_ms = translate.to_ms(request.lasts)
        if request.HasField("lasts") and not SHORTEST_MS <= lasts_ms <= LONGEST_MS:
            raise invalid_field("lasts", "must be between a second and ten years", "leave it out for a key without an end")
        ask = KeyAsk(
            tenant=caller.tenant,
            project=_own(caller, request.project),
            scopes=tuple(request.roles),
            name=request.name,
            by=translate.actor(caller),
            lasts_ms=lasts_ms,
            request_id=translate.check_text(request.request_id, "request_id"),
        )
        made = one_of(await create_keys(self._ports, [ask]))
        secret, remedy = secret_of(made, self._ports.clock.now_ms())
        return keys.CreateKeyResponse(key=key_message(made.record), api_key=made.text, secret=secret, remedy=remedy)

    async def ListKeys(self, request: keys.ListKeysRequest, context: Any) -> keys.ListKeysResponse:
        """See the contract."""
        caller = current_call().require_caller()
        size = request.page_size or PAGE
        before = uuid_from_text(request.page_token, "page_token") if request.page_token else NEWEST
        now_ms = self._ports.clock.now_ms()
        found = await self._ports.tenancy.keys_of(
            caller.tenant, caller.project, before, now_ms, ended=request.ended, limit=size + 1
        )
        token = str(found[size - 1].key_id) if len(found) > size else ""
        return keys.ListKeysResponse(keys=[key_message(key) for key in found[:size]], next_page_token=token)

    async def RevokeKey(self, request: keys.RevokeKeyRequest, context: Any) -> keys.RevokeKeyResponse:
        """See the contract."""
        caller = current_call().require_caller()
        key_id = uuid_from_text(request.key_id, "key_id")
        revoked = await revoke_key(self._ports, key_id, translate.actor(caller), caller.tenant, caller.project)
        return keys.RevokeKeyResponse(key=key_message(revoked))


class ProjectServicer(project_service_pb2_grpc.ProjectServiceServicer):
    """Projects of the caller's tenant."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def CreateProject(self, request: projects.CreateProjectRequest, context: Any) -> projects.CreateProjectResponse:
        """See the contract."""
        caller = current_call().require_caller()
        made, created = await create_project(self._ports, caller.tenant, _own(caller, request.project), translate.actor(caller))
        return projects.CreateProjectResponse(project=project_message(made), created=created)

    async def ListProjects(self, request: projects.ListProjectsRequest, context: Any) -> projects.ListProjectsResponse:
        """See the contract."""
        caller = current_call().require_caller()
        size = request.page_size or PAGE
        after = translate.check_text(request.page_token, "page_token")
        found = await self._ports.projects.projects(caller.tenant, after, size + 1, caller.project)
        token = found[size - 1].project if len(found) > size else ""
        return projects.ListProjectsResponse(projects=[project_message(one) for one in found[:size]], next_page_token=token)

    async def SuspendProject(self, request: projects.SuspendProjectRequest, context: Any) -> projects.SuspendProjectResponse:
        """See the contract."""
        expected = request.expected_version if request.HasField("expected_version") else None
        reason = translate.check_text(request.reason, "reason")
        turned = await self._turn(request.project, SUSPENDED, reason, expected)
        return projects.SuspendProjectResponse(project=turned)

    async def ResumeProject(self, request: projects.ResumeProjectRequest, context: Any) -> projects.ResumeProjectResponse:
        """See the contract."""
        expected = request.expected_version if request.HasField("expected_version") else None
        return projects.ResumeProjectResponse(project=await self._turn(request.project, ACTIVE, "", expected))

    async def _turn(self, project: str, state: int, reason: str, expected: int | None) -> projects.Project:
        caller = current_call().require_caller()
        by = translate.actor(caller)
        turned = await turn_project(self._ports, caller.tenant, _own(caller, project), state, reason, by, expected)
        return project_message(turned)
