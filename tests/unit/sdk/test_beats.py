"""What a worker takes from the answer to its heartbeats."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from runway.scheduler.v1 import worker_service_pb2 as pb
from runway_sdk import Target, Worker
from runway_sdk.context import LeaseHolder
from runway_sdk.errors import Unavailable
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
    worker._beating = Answering(pb.HeartbeatAttemptsResponse(results=[result]), meanwhile)  # type: ignore[assignment]
    worker._beats = SimpleNamespace(HeartbeatAttempts=None)  # type: ignore[assignment]
    await worker._beat_once([live], 1.0)
    assert holder.token == (b"renewed" if renewed else b"from the beat")
    assert live.heard_at == 1.0
    await live.task


class Refusing:
    """A connection whose every call fails so."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code
        self.closed = False

    async def call(self, *_: Any, **__: Any) -> None:
        raise Unavailable("no answer", code=self._code)

    async def close(self) -> None:
        self.closed = True


@pytest.mark.requirement("sched.authority")
@pytest.mark.parametrize(
    ("code", "anew"),
    [(grpc.StatusCode.DEADLINE_EXCEEDED, True), (grpc.StatusCode.UNAVAILABLE, False)],
    ids=["silent", "refused"],
)
async def test_after_a_silent_beat_the_next_takes_a_new_connection(code: grpc.StatusCode, anew: bool) -> None:
    worker = Worker([], target=Target("127.0.0.1:1", "rk_x"))
    live = _Live(pb.Lease(attempt_id=b"a" * 16), cast(LeaseHolder, SimpleNamespace(token=b"t")), cast(Any, None), 0, 3, 0)
    silent = Refusing(code)
    worker._beating = silent  # type: ignore[assignment]
    worker._beats = SimpleNamespace(HeartbeatAttempts=None)  # type: ignore[assignment]
    await worker._beat_once([live], 1.0)
    assert (worker._beating is not silent, silent.closed) == (anew, anew)
    assert live.beat_at == 0, "due at once"
    if anew:
        assert worker._beating is not None
        await worker._beating.close()
