"""Keys of fleets at launch: how they are made, and that they read no other tenant's runs."""

import grpc
import pytest
from runway.launch.v1 import admin_service_pb2, admin_service_pb2_grpc, launch_service_pb2_grpc
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk import Client, Target, step, workflow

from libs.kernel.refusal import Reason
from libs.rpc.channels import open_channel
from libs.rpc.status import refusal_of
from libs.testkit.fixtures import StackDatabase
from libs.testkit.hosts import Peer, make_key, running_host, service_channel


@step
async def only() -> int:
    return 1


async def test_a_fleet_key_is_bound_to_no_project_and_reads_no_other_tenants_runs(stack_db: StackDatabase) -> None:
    urls = await stack_db(["launch", "readiness"])
    peers = [Peer(name) for name in ("scheduler", "gateway", "checkpoint")]
    async with running_host(["launch", "readiness"], urls, peers=peers) as host:
        key = await make_key(host, tenant="platform", scopes=["fleet"])
        async with service_channel(host) as channel:
            admin = admin_service_pb2_grpc.AdminServiceStub(channel)
            bound = admin_service_pb2.CreateApiKeyRequest(tenant="platform", project="p", scopes=["fleet"])
            with pytest.raises(grpc.aio.AioRpcError) as no:
                await admin.CreateApiKey(bound)
            assert (refusal_of(no.value).reason, refusal_of(no.value).field) == (Reason.INVALID_FIELD, "project")
        target = Target(host.addresses.public, await make_key(host, tenant="acme"), host.addresses.control)
        async with Client(target) as client:
            await client.publish(workflow("simple", steps=[only]))
            run = await client.launch("simple")
        async with open_channel(host.addresses.public, metadata=(("authorization", f"Bearer {key}"),)) as channel:
            launch = launch_service_pb2_grpc.LaunchServiceStub(channel)
            for call in (
                launch.GetRun(pb.GetRunRequest(run_id=run.run_id)),
                launch.CancelRun(pb.CancelRunRequest(run_id=run.run_id, reason="r")),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as no:
                    await call
                assert refusal_of(no.value).reason is Reason.NOT_FOUND
            assert list((await launch.ListRuns(pb.ListRunsRequest())).runs) == []
