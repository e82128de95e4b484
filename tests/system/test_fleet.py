"""One worker process for many tenants, through the whole installation: its key is a fleet's, its code knows nothing of it."""

import asyncio
import json
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from runway.launch.v1 import admin_service_pb2 as pb
from runway.launch.v1 import admin_service_pb2_grpc
from runway_sdk import Client, NotFound
from runway_sdk.testing import Stack

from libs.rpc.channels import open_channel
from tests.system.conftest import FLOWS, Origin
from tests.system.flows import pushing

ROOT = Path(__file__).resolve().parents[2]


async def make_key(stack: Stack, tenant: str, *scopes: str) -> str:
    """As an operator of the installation makes it."""
    secret = (stack.folder / "data" / "service-secret").read_text().strip()
    async with open_channel(stack.target.control_address, secret=secret) as channel:
        admin = admin_service_pb2_grpc.AdminServiceStub(channel)
        await admin.PutTenant(pb.PutTenantRequest(tenant=tenant, limit_micros=10**12, max_active_runs=100))
        return str((await admin.CreateApiKey(pb.CreateApiKeyRequest(tenant=tenant, scopes=scopes, name="t"))).api_key)


@asynccontextmanager
async def serving(profile: Path) -> AsyncIterator[None]:
    command = (
        sys.executable,
        "-m",
        "runway_sdk.serve",
        f"{FLOWS}:pushing",
        "--worker-id",
        "fleet-1",
        "--profile",
        str(profile),
    )
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    try:
        yield
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 30)


async def test_one_fleet_runs_steps_of_two_tenants_with_artifacts_checkpoints_and_effects(
    stack: Stack, origin: Origin, tmp_path: Path
) -> None:
    north, south = [Client(replace(stack.target, api_key=await make_key(stack, name))) for name in ("north", "south")]
    fleet = await make_key(stack, "platform", "fleet")
    profile = tmp_path / "profile.json"
    given = json.loads((stack.folder / "data" / "profile.json").read_text())
    profile.write_text(json.dumps(given | {"api_key": fleet}))
    async with north, south, Client(replace(stack.target, api_key=fleet)) as platform, serving(profile):
        for client in (north, south):
            await client.publish(pushing)
        branches = [f"fleet-{secrets.token_hex(3)}" for _ in range(2)]
        runs = [
            await client.launch("pushing", {"repository": str(origin.path), "branch": branch})
            for client, branch in zip((north, south), branches, strict=True)
        ]
        for client, run, branch in zip((north, south), runs, branches, strict=True):
            commit = await client.result(run.run_id, timeout_s=60)
            assert (origin.head(branch), origin.pushes(branch)) == (commit, 1)
            assert {attempt.worker_id for attempt in await client.attempts(run.run_id)} == {"fleet-1"}
            with pytest.raises(NotFound):
                await platform.get(run.run_id)
            with pytest.raises(NotFound):
                await platform.effects(run.run_id)
            assert list(await client.workers()) == []
        with pytest.raises(NotFound):
            await south.get(runs[0].run_id)
