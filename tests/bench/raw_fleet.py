"""Workers that hold leases and run nothing: a claim, heartbeats, and after so many seconds a report, over raw gRPC.

Two hundred slots cost a few tasks of one process, so that what is measured is the scheduler and not its workers. They ask as the SDK's worker
does: one claim at a time, for what is free, repeated under its name where it got no answer. Can go wrong: a worker that is late and calls
the scheduler slow; times are therefore read from the scheduler's rows, and what workers saw stands beside them.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Value
from runway.scheduler.v1 import worker_service_pb2 as pb
from runway.scheduler.v1 import worker_service_pb2_grpc
from runway_sdk.connection import Connection, Target
from runway_sdk.errors import RunwayError

CLAIM_WAIT_S = 10
PAUSE_S = 0.05
MOST = 1_000
DONE = Value(number_value=1)
AGAIN = frozenset({"NO_LEADER", "AUTHORITY_UNREACHABLE", "DRAINING", "UNAVAILABLE", "DEADLINE_EXCEEDED", "EPOCH_STALE"})
"""Reports refused for these come again."""
Hook = Callable[[pb.Lease, float], None]
"""Called with each lease and when it came, by `time.perf_counter`."""


@dataclass(slots=True)
class _Held:
    lease: pb.Lease
    token: bytes
    beat_at: float


@dataclass(slots=True)
class RawWorker:
    """One worker process, as the scheduler sees it."""

    target: Target
    worker_id: str
    slots: int
    handlers: Collection[str]
    step_s: float | None
    """None: leases are held until they are let go."""
    on_lease: Hook | None = None
    fenced: int = 0
    """Leases that were told to be somebody else's: none is, where no worker dies."""
    reported: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    claims: int = 0
    _held: dict[bytes, _Held] = field(default_factory=dict)
    _ends: list[pb.Completion] = field(default_factory=list)
    _some_ends: asyncio.Event = field(default_factory=asyncio.Event)
    _freed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def live(self) -> int:
        """Leases held now."""
        return len(self._held)

    async def run(self) -> None:
        """Works until it is cancelled."""
        connection = Connection(self.target)
        public = worker_service_pb2_grpc.WorkerServiceStub(connection.public("scheduler"))
        control = worker_service_pb2_grpc.WorkerServiceStub(connection.control("scheduler"))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._claim(connection, public))
                group.create_task(self._beat(connection, control))
                group.create_task(self._report(connection, control))
        finally:
            await connection.close()

    def let_go(self, count: int) -> None:
        """Reports so many held leases as done, the oldest first."""
        for held in list(self._held.values())[:count]:
            self._end(held.lease.attempt_id)

    async def _claim(self, connection: Connection, stub: worker_service_pb2_grpc.WorkerServiceStub) -> None:
        claim_id = secrets.token_bytes(16)
        while True:
            free = self.slots - len(self._held)
            if free <= 0:
                self._freed.clear()
                await self._freed.wait()
                continue
            request = pb.ClaimAttemptsRequest(
                claim_id=claim_id,
                worker_id=self.worker_id,
                slots=min(free, MOST),
                handlers=sorted(self.handlers),
                wait=Duration(seconds=CLAIM_WAIT_S),
            )
            try:
                answer = await connection.call(stub.ClaimAttempts, request, timeout_s=CLAIM_WAIT_S + 5)
            except RunwayError as refused:
                self.refused[refused.reason] = self.refused.get(refused.reason, 0) + 1
                await asyncio.sleep(PAUSE_S)  # the same claim is made again
                continue
            claim_id = secrets.token_bytes(16)
            self.claims += 1
            now, loop = time.perf_counter(), asyncio.get_running_loop()
            for lease in answer.leases:
                if lease.attempt_id in self._held:
                    continue
                beat_s = min(1.0, max(0.2, lease.heartbeat_interval.ToMilliseconds() / 1000))
                self._held[lease.attempt_id] = _Held(lease, lease.lease_token, loop.time() + beat_s)
                if self.on_lease is not None:
                    self.on_lease(lease, now)
                if self.step_s is not None:
                    loop.call_later(self.step_s, self._end, lease.attempt_id)

    def _end(self, attempt_id: bytes) -> None:
        held = self._held.get(attempt_id)
        if held is not None:
            self._ends.append(pb.Completion(lease_token=held.token, output=DONE))
            held.beat_at = float("inf")
            self._some_ends.set()

    async def _report(self, connection: Connection, stub: worker_service_pb2_grpc.WorkerServiceStub) -> None:
        """All that have ended, in one call at a time; a slot is free once its report is answered."""
        while True:
            await self._some_ends.wait()
            ends, self._ends = self._ends[:MOST], self._ends[MOST:]
            if not self._ends:
                self._some_ends.clear()
            request = pb.CompleteAttemptsRequest(completions=ends)
            try:
                answer = await connection.call(stub.CompleteAttempts, request)
            except RunwayError as refused:
                self.refused[refused.reason] = self.refused.get(refused.reason, 0) + 1
                await asyncio.sleep(PAUSE_S)
                self._ends += ends
                self._some_ends.set()
                continue
            by_token = {held.token: attempt_id for attempt_id, held in self._held.items()}
            again = []
            for end, result in zip(ends, answer.results, strict=True):
                if not result.recorded and result.error.reason in AGAIN:
                    again.append(end)
                    continue
                self.reported += result.recorded
                if not result.recorded:
                    self.refused[result.error.reason] = self.refused.get(result.error.reason, 0) + 1
                self._held.pop(by_token.get(end.lease_token, b""), None)
            if again:
                await asyncio.sleep(PAUSE_S)
                self._ends += again
                self._some_ends.set()
            self._freed.set()

    async def _beat(self, connection: Connection, stub: worker_service_pb2_grpc.WorkerServiceStub) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0.2)  # the pace of the SDK's worker
            now = loop.time()
            due = [held for held in self._held.values() if held.beat_at <= now][:5_000]
            if not due:
                continue
            beats = [
                pb.Heartbeat(
                    run_id=held.lease.run_id,
                    attempt_id=held.lease.attempt_id,
                    lease_epoch=held.lease.lease_epoch,
                    step_key=held.lease.step_key,
                )
                for held in due
            ]
            try:
                request = pb.HeartbeatAttemptsRequest(worker_id=self.worker_id, heartbeats=beats)
                answer = await connection.call(stub.HeartbeatAttempts, request, timeout_s=2)
            except RunwayError:
                continue  # the next beat asks again
            for held, result in zip(due, answer.results, strict=True):
                if held.beat_at <= now:
                    held.beat_at = now + held.lease.heartbeat_interval.ToMilliseconds() / 1000
                    held.token = result.lease_token or held.token
                if result.status == pb.LEASE_STATUS_FENCED and held.lease.attempt_id in self._held and held.beat_at < 1e18:
                    self.fenced += 1
                    del self._held[held.lease.attempt_id]
                    self._freed.set()


@asynccontextmanager
async def raw_fleet(
    target: Target,
    key: str,
    handlers: Collection[str],
    *,
    workers: int,
    slots: int,
    step_s: float | None,
    on_lease: Hook | None = None,
    name: str = "raw",
) -> AsyncIterator[Sequence[RawWorker]]:
    """So many workers while the block runs, with so many slots in all. Where several schedulers serve, each is asked by some."""
    made = []
    for number in range(workers):
        share = slots // workers + (number < slots % workers)
        mine = replace(target, api_key=key, **_turned(target, number))
        made.append(RawWorker(mine, f"{name}-{number}", share, handlers, step_s, on_lease))
    tasks = [asyncio.create_task(worker.run()) for worker in made]
    try:
        yield made
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _turned(target: Target, number: int) -> dict[str, dict[str, str]]:
    """The scheduler's addresses in another order, for every other worker: who asks takes the first that answers."""
    found = {}
    for kind in ("services", "control_services"):
        addresses = dict(getattr(target, kind))
        named = addresses.get("scheduler", "")
        if named.startswith("ipv4:"):
            each = named.removeprefix("ipv4:").split(",")
            turn = number % len(each)
            addresses["scheduler"] = "ipv4:" + ",".join(each[turn:] + each[:turn])
        found[kind] = addresses
    return found
