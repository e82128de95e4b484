"""A worker that drains while no scheduler answers its beats: what it runs goes on to its end, whatever becomes of the sign-off."""

import asyncio
import uuid
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from runway.scheduler.v1 import worker_service_pb2 as pb
from runway.scheduler.v1 import worker_service_pb2_grpc
from runway_sdk import Target, Worker, step, workflow

RAN: list[str] = []


@step
async def slow() -> int:
    """Longer than a beat is waited for."""
    try:
        await asyncio.sleep(5)  # the work itself: it outlasts the beat that nobody answers
    except asyncio.CancelledError:
        RAN.append("cancelled")
        raise
    RAN.append("done")
    return 1


class Silent(worker_service_pb2_grpc.WorkerServiceServicer):
    """Grants one lease, takes its report, and answers no beat."""

    def __init__(self) -> None:
        self.beating = asyncio.Event()
        self.reported: list[str] = []

    async def ClaimAttempts(self, request: pb.ClaimAttemptsRequest, context: Any) -> pb.ClaimAttemptsResponse:
        if request.slots < 2:
            await asyncio.Event().wait()
        beat = Duration(seconds=1)
        named = {"run_id": str(uuid.uuid4()), "step_key": "slow", "handler": request.handlers[0], "attempt_id": b"a" * 16}
        lease = pb.Lease(lease_epoch=1, lease_token=b"t", lease_ttl=Duration(seconds=60), heartbeat_interval=beat, **named)
        return pb.ClaimAttemptsResponse(leases=[lease])

    async def HeartbeatAttempts(self, request: pb.HeartbeatAttemptsRequest, context: Any) -> pb.HeartbeatAttemptsResponse:
        self.beating.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def CompleteAttempts(self, request: pb.CompleteAttemptsRequest, context: Any) -> pb.CompleteAttemptsResponse:
        self.reported += [str(one.WhichOneof("result")) for one in request.completions]
        return pb.CompleteAttemptsResponse(results=[pb.CompletionResult(recorded=True) for _ in request.completions])


@pytest.mark.requirement("sched.switch")
async def test_a_sign_off_that_nobody_answers_ends_no_attempt() -> None:
    RAN.clear()
    silent, server = Silent(), grpc.aio.server()
    worker_service_pb2_grpc.add_WorkerServiceServicer_to_server(silent, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    worker = Worker([workflow("w", steps=[slow])], target=Target(f"127.0.0.1:{port}", "rk_x"), slots=2)
    running = asyncio.create_task(worker.run())
    try:
        await asyncio.wait_for(silent.beating.wait(), 10)
        worker.drain()
        await asyncio.wait_for(running, 20)
        assert (RAN, silent.reported) == (["done"], ["output"])
    finally:
        running.cancel()
        await server.stop(0)
