"""How long a worker and a client believe in what nobody confirms: a lease that is not known, a launch that is refused for now."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from runway.launch.v1 import launch_service_pb2 as launch_pb
from runway.scheduler.v1 import worker_service_pb2 as pb
from runway_sdk.client import Client
from runway_sdk.connection import Target
from runway_sdk.context import LeaseHolder
from runway_sdk.errors import BudgetExhausted, RunwayError
from runway_sdk.worker import Worker, _Live

TARGET = Target("127.0.0.1:1", "rk_none")


class Beats:
    """Answers every heartbeat with a status; stands for the connection and the stub."""

    def __init__(self) -> None:
        self.status = pb.LEASE_STATUS_UNKNOWN
        self.HeartbeatAttempts = None

    async def call(self, method: Any, request: pb.HeartbeatAttemptsRequest, **_: Any) -> pb.HeartbeatAttemptsResponse:
        return pb.HeartbeatAttemptsResponse(results=[pb.HeartbeatResult(status=self.status) for _ in request.heartbeats])


async def never(_: LeaseHolder, epoch: int) -> None:
    raise AssertionError(epoch)


async def test_a_lease_that_nobody_knows_for_as_long_as_its_ttl_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, beats = Worker([], target=TARGET), Beats()
    monkeypatch.setattr(worker, "_beating", beats)
    monkeypatch.setattr(worker, "_beats", beats, raising=False)
    task = asyncio.create_task(asyncio.Event().wait())
    lease = pb.Lease(run_id="r", step_key="s", lease_ttl=Duration(seconds=9))
    live = _Live(lease, LeaseHolder(b"token", never), task, 0.0, 3.0, 100.0)  # type: ignore[arg-type]
    await worker._beat_once([live], 108.0)
    assert not live.holder.lost.is_set()
    beats.status = pb.LEASE_STATUS_LIVE
    await worker._beat_once([live], 108.5)
    beats.status = pb.LEASE_STATUS_UNKNOWN
    await worker._beat_once([live], 117.0)
    assert not live.holder.lost.is_set()
    await worker._beat_once([live], 117.5)
    assert (live.holder.lost.is_set(), live.holder.reason) == (True, "LEASE_EXPIRED")
    task.cancel()


def refusing(*refusals: RunwayError) -> Any:
    left = list(refusals)

    async def send(requests: Sequence[launch_pb.LaunchRunRequest]) -> Sequence[launch_pb.LaunchResult]:
        if left:
            raise left.pop(0)
        return [launch_pb.LaunchResult(run=launch_pb.Run(run_id=item.request_id)) for item in requests]

    return send


async def test_a_launch_waits_for_its_tenants_rate_and_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Client(TARGET) as client:
        soon = BudgetExhausted("launches too fast", reason="QUOTA_EXCEEDED", retry_after_ms=1)
        monkeypatch.setattr(client._gather, "_send", refusing(soon, soon))
        assert (await client.launch("w", request_id="one")).run_id == "one"
        for final in (BudgetExhausted("a cap", reason="QUOTA_EXCEEDED"), BudgetExhausted("no money", retry_after_ms=1)):
            monkeypatch.setattr(client._gather, "_send", refusing(final))
            with pytest.raises(BudgetExhausted):
                await client.launch("w", request_id="two")
        late = BudgetExhausted("launches too fast", reason="QUOTA_EXCEEDED", retry_after_ms=3_600_000)
        monkeypatch.setattr(client._gather, "_send", refusing(late))
        with pytest.raises(BudgetExhausted):
            await client.launch("w", request_id="three")


class Claims:
    """A scheduler whose poll waits until it is asked again under the same claim, as a lease is being granted."""

    def __init__(self) -> None:
        self.asked: list[pb.ClaimAttemptsRequest] = []
        self.waits = asyncio.Event()
        self.ClaimAttempts = None

    async def call(self, method: Any, request: pb.ClaimAttemptsRequest, **_: Any) -> pb.ClaimAttemptsResponse:
        self.asked.append(request)
        if request.wait.seconds:
            self.waits.set()
            await asyncio.Event().wait()
        return pb.ClaimAttemptsResponse(leases=[pb.Lease(attempt_id=b"a" * 16)])


async def test_a_worker_that_drains_takes_what_its_claim_was_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, claims = Worker([], target=TARGET), Claims()
    monkeypatch.setattr(worker, "_connection", claims)
    monkeypatch.setattr(worker, "_stub", claims, raising=False)
    request = pb.ClaimAttemptsRequest(claim_id=b"c" * 16, slots=4, wait=Duration(seconds=20))
    claiming = asyncio.create_task(worker._claim_once(request, 0.05))
    await claims.waits.wait()
    worker.drain()
    leases = await asyncio.wait_for(claiming, 3)
    assert leases is not None
    assert [lease.attempt_id for lease in leases] == [b"a" * 16]
    assert [(ask.claim_id, ask.slots, ask.wait.seconds) for ask in claims.asked] == [(b"c" * 16, 4, 20), (b"c" * 16, 4, 0)]
