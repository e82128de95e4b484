"""A process that stops keeps its connections and answers nothing. Callers that know another replica go there in seconds."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Sequence

import grpc
import pytest
import runway_sdk.connection
from grpc_health.v1 import health_pb2, health_pb2_grpc

from libs.rpc.channels import OPTIONS

SERVER = """
import time
from concurrent import futures
import grpc
from grpc_health.v1 import health, health_pb2_grpc
server = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.http2.max_ping_strikes", 0)])
health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
time.sleep(600)
"""
QUICK = {"grpc.keepalive_time_ms": 1_000}
"""Only so that the test is shorter; how long an answer to a ping is waited for is the channel's own."""


ETCD_TTL_MS = 5_000


@pytest.mark.requirement("sched.authority")
@pytest.mark.parametrize("options", [OPTIONS, runway_sdk.connection._OPTIONS], ids=["services", "sdk"])
def test_a_peer_that_stopped_is_left_when_its_shards_are_taken_over(options: Sequence[tuple[str, int]]) -> None:
    said = dict(options)
    assert said["grpc.keepalive_time_ms"] + said["grpc.http2.ping_timeout_ms"] <= ETCD_TTL_MS
    assert said["grpc.http2.ping_timeout_ms"] == said["grpc.keepalive_timeout_ms"]


@contextlib.asynccontextmanager
async def replica() -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            yield process, int(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("options", [OPTIONS, runway_sdk.connection._OPTIONS], ids=["services", "sdk"])
async def test_callers_leave_a_peer_that_stopped(options: Sequence[tuple[str, int]]) -> None:
    async with replica() as (stopped, first), replica() as (_, second):
        address = f"ipv4:127.0.0.1:{first},127.0.0.1:{second}"
        async with grpc.aio.insecure_channel(address, options=list((dict(options) | QUICK).items())) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            await health.Check(health_pb2.HealthCheckRequest(), timeout=20)
            stopped.send_signal(signal.SIGSTOP)
            try:
                async with asyncio.timeout(30):
                    while True:
                        with contextlib.suppress(grpc.aio.AioRpcError):
                            await health.Check(health_pb2.HealthCheckRequest(), timeout=25)
                            break
            finally:
                stopped.send_signal(signal.SIGCONT)


@pytest.mark.timeout(120)
@pytest.mark.requirement("sched.authority")
async def test_a_new_connection_goes_to_a_replica_that_answers_long_before_keepalive_finds_out() -> None:
    async with replica() as (stopped, first), replica() as (_, second):
        target = runway_sdk.connection.Target(f"ipv4:127.0.0.1:{first},127.0.0.1:{second}", "rk_x")
        loop = asyncio.get_running_loop()
        connection = runway_sdk.connection.Connection(target, alone=True)
        request = health_pb2.HealthCheckRequest()
        await health_pb2_grpc.HealthStub(connection.public("scheduler")).Check(request, timeout=20)
        stopped.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(grpc.aio.AioRpcError):
                await health_pb2_grpc.HealthStub(connection.public("scheduler")).Check(request, timeout=1)
            began = loop.time()
            fresh = runway_sdk.connection.Connection(target, alone=True)
            health = health_pb2_grpc.HealthStub(fresh.public("scheduler"))
            await health.Check(request, timeout=30, wait_for_ready=True)
            assert loop.time() - began < 4, "a lease of the default TTL would have expired"
            await fresh.close()
            await connection.close()
        finally:
            stopped.send_signal(signal.SIGCONT)
