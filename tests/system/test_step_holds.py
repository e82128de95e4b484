"""A step of one run is drained through the whole installation: its attempt returns its lease at a checkpoint, it waits while others
go on, and once it is released it goes on from there, with no attempt counted."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from runway.scheduler.v1 import control_service_pb2 as pb
from runway.scheduler.v1 import control_service_pb2_grpc
from runway_sdk.testing import Stack

from libs.rpc.channels import open_channel
from libs.testkit.waiting import wait_until
from tests.system.conftest import FLOWS
from tests.system.flows import walking

WHO = {"reason": "its provider is down", "actor": "ann"}
STEP = pb.HOLD_KIND_STEP


@asynccontextmanager
async def operator(stack: Stack) -> AsyncIterator[Any]:
    secret = (stack.folder / "data" / "service-secret").read_text().strip()
    async with open_channel(stack.target.control_address, secret=secret) as channel:
        yield control_service_pb2_grpc.ControlServiceStub(channel)


@pytest.mark.requirement("run.pause")
@pytest.mark.requirement("sched.switch")
async def test_a_drained_step_yields_at_a_checkpoint_waits_and_goes_on(stack: Stack, tmp_path: Path) -> None:
    end = tmp_path / "end"
    await stack.client.publish(walking)
    async with operator(stack) as stub, stack.worker(f"{FLOWS}:walking", worker_id="walker", slots=4):
        run = await stack.client.launch("walking", {"pages": 10, "until": str(end)})
        name = f"{run.run_id}/walk"

        async def begun() -> bool:
            return any(not one.HasField("ended_at") for one in await stack.client.attempts(run.run_id))

        await wait_until(begun, timeout_s=30, what="its attempt")
        told = await stub.PutHold(pb.PutHoldRequest(kind=STEP, name=name, mode=pb.HOLD_MODE_DRAIN, **WHO))
        assert (told.changed, told.extent.live_leases) == (True, 1)
        assert all(replica.acted for replica in told.replicas)

        async def yielded() -> bool:
            return all(one.HasField("ended_at") for one in await stack.client.attempts(run.run_id))

        try:
            await wait_until(yielded, timeout_s=20, what="a lease returned at a checkpoint")
            other = await stack.client.launch("walking", {"pages": 2})
            assert (await stack.client.wait(other.run_id, timeout_s=30)).outcome == "succeeded", "others go on"

            async def explained() -> bool:
                (step,) = (await stack.client.explain(run.run_id, "walk")).steps
                return any(one.code == "HOLD" and f"{name} --step" in one.remedy for one in step.blockers)

            await wait_until(explained, timeout_s=20, what="the hold among its blockers")
            assert await yielded(), "nothing of it was granted meanwhile"
        finally:
            await stub.ReleaseHold(pb.ReleaseHoldRequest(kind=STEP, name=name, **WHO))
            end.touch()
        made = await stack.client.result(run.run_id, timeout_s=60)
        (step,) = await stack.client.steps(run.run_id)
        attempts = await stack.client.attempts(run.run_id)
    assert step.attempts == 1, "returning a lease is no attempt"
    assert len(attempts) >= 2
    assert len(made) >= 10
    assert len(set(made)) >= 2, "attempts went on from a checkpoint"
