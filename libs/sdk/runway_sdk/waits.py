"""Waits for outcomes of runs: those that begin in the same moment share one stream, and a lonely one is a call of its own.

Authoritative for nothing. Can go wrong: a stream that breaks, or whose server is away: what was not told yet is asked again, as
long as somebody waits for it. Who waits for a time asks himself what the run is like when it has passed.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from runway.launch.v1 import launch_service_pb2 as pb

from runway_sdk.connection import Connection
from runway_sdk.errors import RunwayError, Unavailable, error_of, item_error_of

WAIT_S = 20
MARGIN_S = 10
"""How much longer than it asked for a caller waits for the answer."""
MOST = 500
"""Runs of one stream."""
PAUSE_S = 0.1

Asked = dict[str, "list[asyncio.Future[pb.Run]]"]


class Waits:
    """The waits of one client. The stub is of launch's public port."""

    def __init__(self, connection: Connection, stub: Any) -> None:
        self._connection = connection
        self._stub = stub
        self._new: dict[bool, Asked] = {False: {}, True: {}}
        self._tasks: set[asyncio.Task[None]] = set()

    async def wait(self, run_id: str, *, settled: bool, timeout_s: float) -> pb.Run:
        """The run once it has come so far, or as it is when the time has passed."""
        new = self._new[settled]
        if not new:
            self._begin(self._open(settled))
        answer: asyncio.Future[pb.Run] = asyncio.get_running_loop().create_future()
        new.setdefault(run_id, []).append(answer)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            run: pb.Run = (await self._once(run_id, settled, 0.0)).run
            return run

    def _begin(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _open(self, settled: bool) -> None:
        await asyncio.sleep(0)  # others of the same moment
        asked, self._new[settled] = self._new[settled], {}
        names = list(asked)
        for at in range(0, len(names), MOST):
            part = {name: asked[name] for name in names[at : at + MOST]}
            following = self._begin(self._follow(part, settled))
            for answer in (answer for answers in part.values() for answer in answers):
                answer.add_done_callback(partial(_left, part, following))

    async def _follow(self, asked: Asked, settled: bool) -> None:
        """Until nobody waits."""
        while left := {name: answers for name, answers in asked.items() if not all(answer.done() for answer in answers)}:
            try:
                await (self._alone(left, settled) if len(left) == 1 else self._together(left, settled))
            except Unavailable as away:
                await asyncio.sleep(max(PAUSE_S, away.retry_after_ms / 1000))
            except RunwayError as refused:
                _end(left, refused)
            except BaseException as error:
                _end(left, RunwayError(f"the wait ended: {type(error).__name__}", reason="INTERNAL"))
                raise

    async def _alone(self, left: Asked, settled: bool) -> None:
        (name, answers), *_ = left.items()
        answer = await self._once(name, settled, WAIT_S)
        if answer.reached:
            _tell(answers, answer.run)

    async def _together(self, left: Asked, settled: bool) -> None:
        request = pb.WaitRunsRequest(run_ids=list(left), until=_until(settled), timeout=Duration(seconds=WAIT_S))
        try:
            stream = self._stub.WaitRuns(request, timeout=WAIT_S + MARGIN_S, metadata=self._connection.metadata)
            async for told in stream:
                for item in told.runs:
                    if item.HasField("error"):
                        _end({item.run_id: left[item.run_id]}, item_error_of(item.error))
                    else:
                        _tell(left[item.run_id], item.run)
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None

    async def _once(self, run_id: str, settled: bool, timeout_s: float) -> pb.WaitRunResponse:
        duration = Duration()
        duration.FromMilliseconds(int(timeout_s * 1000))
        request = pb.WaitRunRequest(run_id=run_id, until=_until(settled), timeout=duration)
        return await self._connection.call(self._stub.WaitRun, request, timeout_s=timeout_s + MARGIN_S)

    async def close(self) -> None:
        """Ends every wait."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _until(settled: bool) -> pb.WaitUntil.ValueType:
    return pb.WAIT_UNTIL_SETTLED if settled else pb.WAIT_UNTIL_DECIDED


def _tell(answers: "Sequence[asyncio.Future[pb.Run]]", run: pb.Run) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_result(run)


def _end(asked: Asked, refused: RunwayError) -> None:
    for answer in (answer for answers in asked.values() for answer in answers if not answer.done()):
        answer.set_exception(refused)


def _left(asked: Asked, following: "asyncio.Task[None]", gone: "asyncio.Future[pb.Run]") -> None:
    """One waits no longer; where nobody does, nothing is asked any more."""
    if gone.cancelled() and all(answer.done() for answers in asked.values() for answer in answers):
        following.cancel()
