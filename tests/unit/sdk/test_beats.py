"""What a worker takes from the answer to its heartbeats."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from runway.scheduler.v1 import worker_service_pb2 as pb
from runway_sdk import Target, Worker
from runway_sdk.context import LeaseHolder
from runway_sdk.worker import _Live


class Answering:
    """A connection whose every call is answered so, after something happened meanwhile."""

    def __init__(self, answer: pb.HeartbeatAttemptsResponse, meanwhile: Callable[[], None]) -> None:
        self._answer = answer
        self._meanwhile = meanwhile

    async def call(self, *_: Any, **__: Any) -> pb.HeartbeatAttemptsResponse:
        self._meanwhile()
        return self._answer


@pytest.mark.parametrize("renewed", [True, False])
async def test_a_token_that_was_renewed_while_the_beat_was_under_way_stays(renewed: bool) -> None:
    async def renew(holder: LeaseHolder, epoch: int) -> None:
        raise AssertionError

    worker = Worker([], target=Target("127.0.0.1:1", "rk_x"))
    holder = LeaseHolder(b"first", renew)
    live = _Live(pb.Lease(attempt_id=b"a" * 16), holder, asyncio.create_task(asyncio.sleep(0)), 0, 1, 0)

    def meanwhile() -> None:
        if renewed:
            holder.token = b"renewed"

    result = pb.HeartbeatResult(status=pb.LEASE_STATUS_LIVE, lease_token=b"from the beat")
    worker._connection = Answering(pb.HeartbeatAttemptsResponse(results=[result]), meanwhile)  # type: ignore[assignment]
    worker._control = SimpleNamespace(HeartbeatAttempts=None)  # type: ignore[assignment]
    await worker._beat_once([live], 1.0)
    assert holder.token == (b"renewed" if renewed else b"from the beat")
    assert live.heard_at == 1.0
    await live.task
