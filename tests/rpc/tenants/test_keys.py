"""Keys and projects through the public API: made once, listed without their text, expired, revoked within a second."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from runway.launch.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    key_service_pb2_grpc,
    project_service_pb2_grpc,
    scope_service_pb2_grpc,
)
from runway.launch.v1 import key_service_pb2 as ke
from runway.launch.v1 import launch_service_pb2 as pb
from runway.launch.v1 import project_service_pb2 as pr
from runway.launch.v1 import scope_service_pb2 as so
from runway_sdk import Client, Target, Unauthenticated, step, workflow
from runway_sdk.errors import NotFound, RunwayError, error_of

from libs.testkit.hosts import make_key, service_channel
from tests.rpc.waits.conftest import Bench

ADMIN = ("admin",)


@step
def one() -> int:
    return 1


flow = workflow("keyed", steps=[one])


class Room:
    """Calls of one key."""

    def __init__(self, bench: Bench, channel: grpc.aio.Channel, control: grpc.aio.Channel, key: str) -> None:
        self.keys = key_service_pb2_grpc.KeyServiceStub(channel)
        self.projects = project_service_pb2_grpc.ProjectServiceStub(channel)
        self.scopes = scope_service_pb2_grpc.ScopeServiceStub(control)
        self._metadata = (("authorization", f"Bearer {key}"),)

    async def ask(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, metadata=self._metadata, timeout=10)
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None


@asynccontextmanager
async def room(bench: Bench, key: str) -> AsyncIterator[Room]:
    async with AsyncExitStack() as stack:
        public = await stack.enter_async_context(grpc.aio.insecure_channel(bench.host.addresses.public))
        control = await stack.enter_async_context(grpc.aio.insecure_channel(bench.host.addresses.control))
        yield Room(bench, public, control, key)


def client_of(bench: Bench, key: str) -> Client:
    return Client(Target(bench.host.addresses.public, key, bench.host.addresses.control))


@pytest.mark.requirement("sec.tenant")
async def test_an_admin_makes_lists_and_revokes_keys_of_his_tenant_alone(bench: Bench) -> None:
    await bench.client.publish(flow)
    admin = await make_key(bench.host, scopes=ADMIN, name="boss")
    other = await make_key(bench.host, tenant="stranger", scopes=ADMIN)
    async with room(bench, admin) as ours, room(bench, other) as theirs:
        made = await ours.ask(ours.keys.CreateKey, ke.CreateKeyRequest(roles=["automation"], name="ci"))
        assert (made.key.created_by, list(made.key.roles), made.key.project) == ("key:boss", ["automation"], "")
        listed = await ours.ask(ours.keys.ListKeys, ke.ListKeysRequest(page_size=1))
        assert [key.key_id for key in listed.keys] == [made.key.key_id], "the newest first"
        rest = await ours.ask(ours.keys.ListKeys, ke.ListKeysRequest(page_token=listed.next_page_token))
        assert {key.name for key in rest.keys} == {"boss", "tests"}
        assert made.api_key not in str(listed) + str(rest)
        digests = [bytes(row[0]) for row in await bench_launch(bench, "SELECT key_digest FROM api_key")]
        assert made.api_key.encode() not in digests
        assert not (await theirs.ask(theirs.keys.ListKeys, ke.ListKeysRequest(ended=True))).keys[1:], "their own, no other"
        with pytest.raises(NotFound):
            await theirs.ask(theirs.keys.RevokeKey, ke.RevokeKeyRequest(key_id=made.key.key_id))
        async with client_of(bench, made.api_key) as automation:
            assert (await automation.launch("keyed")).run_id
            revoked = await ours.ask(ours.keys.RevokeKey, ke.RevokeKeyRequest(key_id=made.key.key_id))
            assert revoked.key.revoked_by == "key:boss"
            again = await ours.ask(ours.keys.RevokeKey, ke.RevokeKeyRequest(key_id=made.key.key_id))
            assert again.key.revoked_at == revoked.key.revoked_at, "the first revocation stands"
            began = time.monotonic()
            with pytest.raises(Unauthenticated):
                while True:
                    await automation.get((await automation.launch("keyed")).run_id)
            assert time.monotonic() - began < 1.5
        names = {key.name for key in (await ours.ask(ours.keys.ListKeys, ke.ListKeysRequest())).keys}
        assert "ci" not in names
        ended = (await ours.ask(ours.keys.ListKeys, ke.ListKeysRequest(ended=True))).keys
        assert "ci" in {key.name for key in ended}


async def bench_launch(bench: Bench, sql: str) -> list[Any]:
    import asyncpg

    connection = await asyncpg.connect(bench.host.database_url("launch"))
    try:
        return list(await connection.fetch(sql))
    finally:
        await connection.close()


@pytest.mark.requirement("sec.tenant")
async def test_keys_expire_are_bound_to_projects_and_do_what_their_roles_say(bench: Bench) -> None:
    await bench.client.publish(flow)
    admin = await make_key(bench.host, scopes=ADMIN)
    async with room(bench, admin) as ours:
        short = await ours.ask(ours.keys.CreateKey, ke.CreateKeyRequest(roles=["auditor"], lasts=Duration(seconds=1)))
        async with client_of(bench, short.api_key) as auditor:
            run = await bench.client.launch("keyed")
            assert (await auditor.get(run.run_id)).run_id == run.run_id
            with pytest.raises(RunwayError, match=r"METHOD_DENIED.*automation"):
                await auditor.launch("keyed")
            with pytest.raises(RunwayError, match="METHOD_DENIED"):
                await auditor.cancel(run.run_id)
            with pytest.raises(Unauthenticated):
                while True:
                    await auditor.get(run.run_id)
                    await asyncio.sleep(0.05)
        with pytest.raises(NotFound) as unknown:
            await ours.ask(ours.keys.CreateKey, ke.CreateKeyRequest(roles=["admin"], project="web"))
        assert (unknown.value.field, "runway project create web" in unknown.value.remedy) == ("project", True)
        common = await ours.ask(ours.keys.CreateKey, ke.CreateKeyRequest(roles=["auditor"], project="default"))
        assert common.key.project == "default", "every tenant has it"
        await ours.ask(ours.projects.CreateProject, pr.CreateProjectRequest(project="web"))
        bound = await ours.ask(ours.keys.CreateKey, ke.CreateKeyRequest(roles=["admin"], project="web"))
        async with room(bench, bound.api_key) as web:
            with pytest.raises(NotFound):
                await web.ask(web.keys.CreateKey, ke.CreateKeyRequest(roles=["admin"], project="other"))
            made = await web.ask(web.keys.CreateKey, ke.CreateKeyRequest(roles=["worker"]))
            assert made.key.project == "web"
            assert {key.project for key in (await web.ask(web.keys.ListKeys, ke.ListKeysRequest())).keys} == {"web"}
            with pytest.raises(NotFound):
                await web.ask(web.keys.RevokeKey, ke.RevokeKeyRequest(key_id=short.key.key_id))
            with pytest.raises(NotFound):
                await web.ask(web.projects.SuspendProject, pr.SuspendProjectRequest(project="default", reason="r"))
        with pytest.raises(RunwayError, match="lasts"):
            await ours.ask(ours.keys.CreateKey, ke.CreateKeyRequest(roles=["admin"], lasts=Duration(seconds=0)))


@pytest.mark.requirement("sec.tenant")
async def test_keys_that_who_runs_the_installation_makes_are_of_what_is_there_too(bench: Bench) -> None:
    await make_key(bench.host)
    async with service_channel(bench.host) as channel:
        admin = admin_service_pb2_grpc.AdminServiceStub(channel)
        for tenant, project, field in (("acme", "nope", "project"), ("nobody", "", "")):
            request = admin_service_pb2.CreateApiKeyRequest(tenant=tenant, project=project, scopes=["worker"], name="n")
            with pytest.raises(grpc.aio.AioRpcError) as no:
                await admin.CreateApiKey(request)
            refused = error_of(no.value)
            assert (type(refused), refused.field) == (NotFound, field)


@pytest.mark.requirement("sec.tenant")
async def test_a_stream_ends_when_its_key_is_revoked(bench: Bench) -> None:
    await bench.client.publish(flow)
    admin = await make_key(bench.host, scopes=ADMIN)
    run = await bench.client.launch("keyed")
    async with room(bench, admin) as ours:
        made = await ours.ask(ours.keys.CreateKey, ke.CreateKeyRequest(roles=["auditor"]))
        async with client_of(bench, made.api_key) as auditor:
            heard = asyncio.Event()

            async def listen() -> None:
                async for _ in auditor.watch(run.run_id):
                    heard.set()

            listening = asyncio.create_task(listen())
            await asyncio.wait_for(heard.wait(), 10)
            await ours.ask(ours.keys.RevokeKey, ke.RevokeKeyRequest(key_id=made.key.key_id))
            await asyncio.sleep(1.2)  # what was known of the key is believed for a second
            await bench.client.cancel(run.run_id)
            with pytest.raises(Unauthenticated):
                await asyncio.wait_for(listening, 20)


@pytest.mark.requirement("project.onboard")
async def test_a_suspended_project_launches_nothing_and_what_runs_goes_on(bench: Bench) -> None:
    await bench.client.publish(flow)
    admin = await make_key(bench.host, scopes=ADMIN)
    async with room(bench, admin) as ours, bench.worker(flow):
        ask, projects = ours.ask, ours.projects
        created = await ask(projects.CreateProject, pr.CreateProjectRequest(project="web"))
        assert (created.created, created.project.state, created.project.version) == (True, pr.PROJECT_STATE_ACTIVE, 1)
        assert not (await ask(projects.CreateProject, pr.CreateProjectRequest(project="web"))).created
        listed = (await ask(projects.ListProjects, pr.ListProjectsRequest())).projects
        assert [project.project for project in listed] == ["default", "web"], "also what something was published in"
        before = await bench.client.launch("keyed")
        suspended = (await ask(projects.SuspendProject, pr.SuspendProjectRequest(project="default", reason="audit"))).project
        assert (suspended.state, suspended.reason, suspended.version) == (pr.PROJECT_STATE_SUSPENDED, "audit", 2)
        again = (await ask(projects.SuspendProject, pr.SuspendProjectRequest(project="default", reason="more"))).project
        assert again == suspended, "what it is already, it stays"
        assert await bench.client.result(before.run_id, timeout_s=30) == 1
        denied = await bench.client.launch("keyed", request_id="while it is suspended")
        assert (denied.state, denied.failure.type) == (pb.RUN_STATE_DENIED, "PROJECT_SUSPENDED")
        with pytest.raises(RunwayError, match="version 2, not 1"):
            await ask(projects.ResumeProject, pr.ResumeProjectRequest(project="default", expected_version=1))
        resumed = (await ask(projects.ResumeProject, pr.ResumeProjectRequest(project="default", expected_version=2))).project
        assert (resumed.state, resumed.reason, resumed.version) == (pr.PROJECT_STATE_ACTIVE, "", 3)
        run = await bench.client.launch("keyed")
        assert await bench.client.result(run.run_id, timeout_s=30) == 1
        with pytest.raises(NotFound):
            await ask(projects.SuspendProject, pr.SuspendProjectRequest(project="webb", reason="a slip"))


@pytest.mark.requirement("project.onboard")
async def test_launches_and_a_suspension_at_once_have_one_order(bench: Bench) -> None:
    """Whatever is launched after the suspension was answered is denied."""
    await bench.client.publish(flow)
    admin = await make_key(bench.host, scopes=ADMIN)
    async with room(bench, admin) as ours:
        answered = False

        async def launches() -> list[tuple[bool, int]]:
            seen = []
            for _ in range(40):
                late = answered
                seen.append((late, (await bench.client.launch("keyed")).state))
            return seen

        async def suspend() -> None:
            nonlocal answered
            await ours.ask(ours.projects.SuspendProject, pr.SuspendProjectRequest(project="default", reason="r"))
            answered = True

        results = await asyncio.gather(launches(), launches(), suspend())
        assert all(state == pb.RUN_STATE_DENIED for seen in results[:2] for late, state in seen if late)
        assert any(late for seen in results[:2] for late, _ in seen)


@pytest.mark.requirement("sec.tenant")
async def test_an_operator_stops_what_is_his_tenants_and_not_what_somebody_above_has_stopped(bench: Bench) -> None:
    await make_key(bench.host, tenant="stranger")
    await bench.client.publish(flow)
    key = await make_key(bench.host, scopes=("auditor", "operator"), name="night")
    stop, drain = so.SCOPE_MODE_KILL, so.SCOPE_MODE_DRAIN
    async with room(bench, key) as ours, service_channel(bench.host) as channel:
        above = scope_service_pb2_grpc.ScopeServiceStub(channel)
        for kind, name in (
            (so.SCOPE_KIND_TENANT, "stranger"),
            (so.SCOPE_KIND_PROJECT, "stranger/default"),
            (so.SCOPE_KIND_TOOL, "http.request"),
            (so.SCOPE_KIND_PROVIDER, "openai"),
            (so.SCOPE_KIND_PROJECT, "acme2/default"),
        ):
            with pytest.raises(NotFound):
                request = so.StopScopeRequest(kind=kind, name=name, mode=drain, reason="r", actor="me", unseen=True)
                await ours.ask(ours.scopes.StopScope, request)
        request = so.StopScopeRequest(kind=so.SCOPE_KIND_PROJECT, name="acme/default", mode=drain, reason="r", actor="me")
        stopped = await ours.ask(ours.scopes.StopScope, request)
        assert stopped.scope.actor == "key:night (me)"
        await above.StopScope(so.StopScopeRequest(kind=so.SCOPE_KIND_TENANT, name="stranger", mode=stop, reason="r", actor="x"))
        listed = (await ours.ask(ours.scopes.ListScopes, so.ListScopesRequest())).scopes
        assert [scope.name for scope in listed] == ["acme/default"]
        changes = (await ours.ask(ours.scopes.ListScopeChanges, so.ListScopeChangesRequest())).changes
        assert {change.name for change in changes} == {"acme/default"}
        assert len((await above.ListScopes(so.ListScopesRequest())).scopes) == 2
        release = so.ReleaseScopeRequest(kind=so.SCOPE_KIND_PROJECT, name="acme/default", reason="r", actor="me")
        await ours.ask(ours.scopes.ReleaseScope, release)
        await above.StopScope(so.StopScopeRequest(kind=so.SCOPE_KIND_TENANT, name="acme", mode=stop, reason="r", actor="boss"))
        release = so.ReleaseScopeRequest(kind=so.SCOPE_KIND_TENANT, name="acme", reason="r", actor="me")
        with pytest.raises(RunwayError, match="who runs the installation"):
            await ours.ask(ours.scopes.ReleaseScope, release)
        weaker = so.StopScopeRequest(kind=so.SCOPE_KIND_TENANT, name="acme", mode=drain, reason="r", actor="me")
        with pytest.raises(RunwayError, match="METHOD_DENIED"):
            await ours.ask(ours.scopes.StopScope, weaker)


@pytest.mark.requirement("sec.tenant")
async def test_a_repeated_request_makes_one_key_and_tells_its_text_once(bench: Bench) -> None:
    admin = await make_key(bench.host, scopes=ADMIN, name="boss")
    other = await make_key(bench.host, tenant="stranger", scopes=ADMIN)
    async with room(bench, admin) as ours, room(bench, other) as theirs:
        request = ke.CreateKeyRequest(roles=["automation", "auditor"], name="ci", request_id="ci-1")
        answers = await asyncio.gather(*(ours.ask(ours.keys.CreateKey, request) for _ in range(10)))
        assert len({made.key.key_id for made in answers}) == 1, "ten at once make one"
        (first,) = [made for made in answers if made.api_key]
        assert first.secret == ke.KEY_SECRET_SHOWN
        again = [made for made in answers if not made.api_key]
        assert {made.secret for made in again} == {ke.KEY_SECRET_NOT_KEPT}
        assert f"runway key revoke {first.key.key_id}" in again[0].remedy
        assert {str(made.key) for made in again} == {str(first.key)}
        named = [key for key in (await ours.ask(ours.keys.ListKeys, ke.ListKeysRequest(ended=True))).keys if key.name == "ci"]
        assert len(named) == 1
        async with client_of(bench, first.api_key) as ci:
            assert await ci.versions() == [], "the text that was told is the key's"
        for change in ({"name": "cd"}, {"roles": ["auditor"]}, {"project": "default"}, {"lasts": Duration(seconds=60)}):
            asked = {"roles": ["automation", "auditor"], "name": "ci", "request_id": "ci-1"} | change
            with pytest.raises(RunwayError) as no:
                await ours.ask(ours.keys.CreateKey, ke.CreateKeyRequest(**asked))
            assert no.value.reason == "REQUEST_ID_REUSED"
            assert first.key.key_id not in str(no.value)
        mine = await theirs.ask(theirs.keys.CreateKey, request)
        assert (mine.secret, mine.key.key_id != first.key.key_id) == (ke.KEY_SECRET_SHOWN, True), "tenants do not meet"
        await ours.ask(ours.keys.RevokeKey, ke.RevokeKeyRequest(key_id=first.key.key_id))
        ended = await ours.ask(ours.keys.CreateKey, request)
        assert (ended.key.key_id, ended.key.revoked_by, ended.api_key) == (first.key.key_id, "key:boss", "")
        assert "was revoked: make another under a new request_id" in ended.remedy
        assert "runway key revoke" not in ended.remedy, "that is done"
        request.request_id = "ci-2"
        assert (await ours.ask(ours.keys.CreateKey, request)).api_key, "under a new id another is made"
        request.request_id = ""
        assert len({(await ours.ask(ours.keys.CreateKey, request)).key.key_id for _ in range(2)}) == 2


@pytest.mark.requirement("project.onboard")
async def test_who_runs_the_installation_makes_a_key_once_per_request(bench: Bench) -> None:
    async with service_channel(bench.host) as channel:
        admin = admin_service_pb2_grpc.AdminServiceStub(channel)
        request = admin_service_pb2.CreateApiKeyRequest(tenant="acme", scopes=["worker"], name="w", request_id="first")
        answers = await asyncio.gather(*(admin.CreateApiKey(request) for _ in range(10)))
        assert len({made.key_id for made in answers}) == 1
        assert sorted(made.secret for made in answers) == [ke.KEY_SECRET_SHOWN, *[ke.KEY_SECRET_NOT_KEPT] * 9]
        assert sum(bool(made.api_key) for made in answers) == 1
        assert all(bool(made.remedy) != bool(made.api_key) for made in answers)
        request.scopes.append("fleet")
        with pytest.raises(grpc.aio.AioRpcError) as no:
            await admin.CreateApiKey(request)
        assert no.value.code() == grpc.StatusCode.ALREADY_EXISTS
        nowhere = admin_service_pb2.CreateApiKeyRequest(tenant="nobody", scopes=["worker"], request_id="first")
        with pytest.raises(grpc.aio.AioRpcError) as no:
            await admin.CreateApiKey(nowhere)
        assert no.value.code() == grpc.StatusCode.NOT_FOUND
