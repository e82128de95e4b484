"""Reports of a worker: together, one by one where one spoils the call, and never lost to a refusal that time cures."""

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import grpc
import pytest
from runway.common.v1 import common_pb2
from runway.scheduler.v1 import worker_service_pb2 as pb
from runway_sdk.connection import Connection, Target
from runway_sdk.context import Context, LeaseHolder
from runway_sdk.errors import RunwayError, Unavailable, item_error_of
from runway_sdk.reporting import Reporter
from runway_sdk.values import to_value

Answer = Callable[[pb.Completion], common_pb2.ItemError | None]


class Scheduler:
    """Answers each completion as told; refuses a call that holds one named `poison` as a whole."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.calls: list[int] = []
        self.recorded: list[pb.Completion] = []

    async def complete(self, request: pb.CompleteAttemptsRequest) -> pb.CompleteAttemptsResponse:
        self.calls.append(len(request.completions))
        if any(item.output.string_value == "poison" for item in request.completions):
            raise RunwayError("cannot be read", reason="INVALID_FIELD" if len(request.completions) > 1 else "")
        results = []
        for item in request.completions:
            error = self.answer(item)
            results.append(pb.CompletionResult(recorded=error is None, error=error))
            if error is None:
                self.recorded.append(item)
        return pb.CompleteAttemptsResponse(results=results)


def holder(renew: Callable[[LeaseHolder, int], Awaitable[None]] | None = None) -> LeaseHolder:
    async def never(_: LeaseHolder, epoch: int) -> None:
        raise AssertionError(epoch)

    return LeaseHolder(b"token", renew or never)


def completion(text: str) -> pb.Completion:
    return pb.Completion(output=to_value(text))


async def test_one_report_that_spoils_its_call_does_not_hold_up_the_others() -> None:
    scheduler = Scheduler(lambda _: None)
    reporter = Reporter(scheduler.complete)
    names = [f"r{number}" for number in range(15)]
    spoiled = asyncio.create_task(reporter.report(holder(), completion("poison")))
    async with asyncio.timeout(10):
        await asyncio.gather(*(reporter.report(holder(), completion(name)) for name in names))
    spoiled.cancel()
    assert sorted(item.output.string_value for item in scheduler.recorded) == sorted(names)
    assert scheduler.calls[0] == 16


async def test_a_report_outlives_a_renewal_that_got_no_answer() -> None:
    renewals: list[int] = []

    async def renew(mine: LeaseHolder, epoch: int) -> None:
        renewals.append(epoch)
        if len(renewals) == 1:
            raise Unavailable("away")
        mine.token = b"renewed"

    def answer(item: pb.Completion) -> common_pb2.ItemError | None:
        if item.lease_token == b"renewed":
            return None
        return common_pb2.ItemError(code=9, reason="EPOCH_STALE", detail={"current_epoch": "7"})

    scheduler = Scheduler(answer)
    mine = holder(renew)
    async with asyncio.timeout(10):
        await Reporter(scheduler.complete).report(mine, completion("done"))
    assert renewals == [7, 7]
    assert [item.lease_token for item in scheduler.recorded] == [b"renewed"]
    assert not mine.lost.is_set()


async def test_a_large_report_goes_apart_from_the_others() -> None:
    scheduler = Scheduler(lambda _: None)
    reporter = Reporter(scheduler.complete)
    await asyncio.gather(*(reporter.report(holder(), completion("x" * 1_000_000)) for _ in range(9)))
    assert sum(scheduler.calls) == 9
    assert max(scheduler.calls) <= 4


class Stream:
    """A restore stream that breaks the first time."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, request: object, *, timeout: float, metadata: object) -> tuple[None, bytes]:
        self.calls += 1
        if self.calls == 1:
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "away")
        return None, b""


async def test_a_restore_whose_stream_breaks_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Connection(Target("127.0.0.1:1", "rk_none"))
    names = {"run_id": "r", "step_key": "s", "tenant": "t", "project": "p", "traceparent": ""}
    attempt_id = UUID(int=1)
    context = Context(connection, holder(), attempt_id=attempt_id, attempt_number=1, **names)
    stream = Stream()
    monkeypatch.setattr(context, "_read_checkpoint", stream)
    assert await context.restore() is None
    assert stream.calls == 2
    await connection.close()


async def test_a_dead_token_in_an_outage_does_not_end_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Connection(Target("127.0.0.1:1", "rk_none"))
    mine = holder()
    names = {"run_id": "r", "step_key": "s", "tenant": "t", "project": "p", "traceparent": ""}
    context = Context(connection, mine, attempt_id=UUID(int=1), attempt_number=1, **names)
    tokens: list[bytes] = []

    async def call(method: object, request: object, *, lease: bytes, **_: object) -> str:
        tokens.append(lease)
        if len(tokens) == 1:
            mine.token = b"renewed by a heartbeat"
            raise item_error_of(common_pb2.ItemError(reason="LEASE_EXPIRED", message="no authority answers"))
        return "done"

    monkeypatch.setattr(connection, "call", call)
    assert await context._leased(call, None, 1.0) == "done"
    assert tokens == [b"token", b"renewed by a heartbeat"]
    assert not mine.lost.is_set()
    await connection.close()
