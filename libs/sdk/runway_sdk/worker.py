"""A worker process: claims attempts, runs their steps, beats for them, reports how they ended.

Authoritative for nothing: it may be killed at any moment, and what it still believes afterwards is refused where it would
be committed. Can go wrong: a report whose answer is lost (it is sent again: the same report twice is one), a lease that is
lost while the step runs (the step is cancelled and nothing is reported), or of which nobody could say for as long as its TTL
whether it lives: others may hold the step by then, so it is taken for lost.
"""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import grpc
from google.protobuf.duration_pb2 import Duration
from runway.scheduler.v1 import worker_service_pb2 as pb
from runway.scheduler.v1 import worker_service_pb2_grpc

from runway_sdk.arguments import arguments_of
from runway_sdk.connection import Connection, Target, find_target
from runway_sdk.context import Context, LeaseHolder
from runway_sdk.errors import STOPPED_FOR_NOW, InvalidRequest, RunwayError, Unauthenticated, Unavailable, item_error_of
from runway_sdk.faults import fault_point
from runway_sdk.leaving import sign_off
from runway_sdk.reporting import ENDED, Reporter, failure, failure_of, unsaid
from runway_sdk.sync_context import SyncContext
from runway_sdk.threads import in_thread
from runway_sdk.values import from_value, to_value
from runway_sdk.waiting import StepWaits, Yielding
from runway_sdk.workflow import Step, Workflow, region_label

log = logging.getLogger("runway.worker")
CLAIM_WAIT_S = 20
PROVIDER_PAUSE_S = 2.0
BEAT_TICK_S = 0.2
"""How often it is looked which attempts are due to beat: the shortest interval there is."""
BEAT_PATIENCE = 2 / 3
"""Of the interval between beats, how long an answer is waited for: a lease lives for three, and two tries must fit."""
LAST_ANSWER_S = 2.0
"""How long a draining worker waits for what its claim got."""
STOP_S = 5.0
"""How long a step may take to end once it is cancelled; then it is left behind."""
QUIET_PAUSE_S = 0.4
"""A worker says that nobody answers once it pauses this long between claims: after three of them."""


@dataclass(slots=True)
class _Live:
    """An attempt that runs here."""

    lease: pb.Lease
    holder: LeaseHolder
    task: "asyncio.Task[None]"
    beat_at: float
    interval_s: float
    heard_at: float
    """When the authority last said that it lives."""

    @property
    def ttl_s(self) -> float:
        """After so much silence it may be another's."""
        return self.lease.lease_ttl.ToMilliseconds() / 1000 or 3 * self.interval_s


class Worker:
    """Runs the steps of some workflows, `slots` at a time. `capabilities` are labels that steps may require, `region` is where
    it stands, for steps that must run there, `resources` what they may take of it besides slots."""

    def __init__(
        self,
        workflows: Sequence[Workflow],
        *,
        target: Target | None = None,
        slots: int = 16,
        capabilities: Sequence[str] = (),
        region: str = "",
        resources: Mapping[str, int] | None = None,
        worker_id: str = "",
        on_lease: Callable[[pb.Lease], None] | None = None,
    ) -> None:
        self.worker_id = worker_id or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._process = secrets.token_bytes(16)  # another process may bear this name, which a person may give
        self._target = target or find_target()
        self._slots = slots
        self._capabilities = (*capabilities, *region_label(region))
        self._resources = dict(resources or {})
        self._handlers: dict[str, Step] = {}
        for found in workflows:
            self._handlers.update(found.handlers)
        self._live: dict[bytes, _Live] = {}
        self._freed = asyncio.Event()
        self._regained = asyncio.Event()
        """An attempt ended that took more than a slot: a claim that waits says too little of what is free."""
        self._draining = asyncio.Event()
        self._on_lease = on_lease
        self._away = False
        self._reporter = Reporter(self._complete)
        self._connection: Connection | None = None
        self._beating: Connection | None = None

    async def run(self) -> None:
        """Works until `drain` is called or the task is cancelled."""
        self._connection = Connection(self._target)
        self._stub = worker_service_pb2_grpc.WorkerServiceStub(self._connection.public("scheduler"))
        self._control = worker_service_pb2_grpc.WorkerServiceStub(self._connection.control("scheduler"))
        self._beat_anew()
        beating = asyncio.create_task(self._beat())
        try:
            await self._claim()
            running = [live.task for live in self._live.values()]
            if running:
                leaving = asyncio.create_task(sign_off(self._target, self.worker_id, self._process))
                await asyncio.wait(running)
                await leaving
        finally:
            beating.cancel()
            if self._draining.is_set():
                await sign_off(self._target, self.worker_id, self._process)
            for live in list(self._live.values()):
                live.task.cancel()
            await asyncio.gather(beating, *(live.task for live in list(self._live.values())), return_exceptions=True)
            await self._connection.close()
            if self._beating is not None:
                await self._beating.close()

    def drain(self) -> None:
        """Waits for no new work; `run` returns when what runs has ended. What was being granted at this moment still runs."""
        self._draining.set()
        self._freed.set()

    # -- claiming

    async def _claim(self) -> None:
        claim_id = secrets.token_bytes(16)
        pause_s = 0.05
        while not self._draining.is_set():
            free = self._slots - len(self._live)
            if free <= 0:
                self._freed.clear()
                await self._freed.wait()
                continue
            request = pb.ClaimAttemptsRequest(
                claim_id=claim_id,
                worker_id=self.worker_id,
                slots=min(free, 1000),
                handlers=list(self._handlers),
                capabilities=self._capabilities,
                wait=Duration(seconds=CLAIM_WAIT_S),
                total_slots=self._slots,
                process=self._process,
            )
            if self._resources:
                self._say_what_is_free(request)
            leases = await self._claim_once(request, pause_s)
            if leases is None:
                pause_s = min(pause_s * 2, 2.0)
                continue
            if self._away:
                self._away = False
                log.warning("the installation answers again")
            pause_s, claim_id = 0.05, secrets.token_bytes(16)
            for lease in leases:
                self._begin(lease)

    def _say_what_is_free(self, request: pb.ClaimAttemptsRequest) -> None:
        """What is not taken by attempts that run here: they hold it until they have ended and said so."""
        free = dict(self._resources)
        for live in self._live.values():
            for name, amount in live.lease.resources.items():
                free[name] = max(0, free.get(name, 0) - amount)
        request.free.update(free)
        request.resources.update(self._resources)
        self._regained.clear()

    async def _claim_once(self, request: pb.ClaimAttemptsRequest, pause_s: float) -> Sequence[pb.Lease] | None:
        """The leases of one claim; None when nobody answered (the same claim is made again)."""
        assert self._connection is not None
        asking = asyncio.ensure_future(self._connection.call(self._stub.ClaimAttempts, request, timeout_s=CLAIM_WAIT_S + 10))
        draining = asyncio.ensure_future(self._draining.wait())
        waits = {asking, draining}
        if self._resources:
            waits.add(asyncio.ensure_future(self._regained.wait()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            answer = asking.result() if asking.done() else await self._last_answer(request)
            return list(answer.leases)
        except (Unauthenticated, InvalidRequest):
            raise  # no later claim fares better
        except RunwayError as refused:
            if self._draining.is_set():
                return []
            if not self._away and (pause_s >= QUIET_PAUSE_S or not isinstance(refused, Unavailable)):
                self._away = True
                log.warning("no work can be had now, asking again: %s", refused)
            await asyncio.wait({draining}, timeout=max(pause_s, refused.retry_after_ms / 1000))
            return None
        finally:
            for waiting in waits:
                waiting.cancel()

    async def _last_answer(self, request: pb.ClaimAttemptsRequest) -> pb.ClaimAttemptsResponse:
        """The same claim once more, without a wait: a lease being granted now would else be nobody's, and cost an attempt."""
        assert self._connection is not None
        last = pb.ClaimAttemptsRequest()
        last.CopyFrom(request)
        last.wait.CopyFrom(Duration())
        answer: pb.ClaimAttemptsResponse = await self._connection.call(self._stub.ClaimAttempts, last, timeout_s=LAST_ANSWER_S)
        return answer

    def _begin(self, lease: pb.Lease) -> None:
        if lease.attempt_id in self._live:
            return
        if self._on_lease is not None:
            self._on_lease(lease)
        holder = LeaseHolder(lease.lease_token, self._renew)
        interval_s = max(0.2, lease.heartbeat_interval.ToMilliseconds() / 1000)
        now = asyncio.get_running_loop().time()
        task = asyncio.create_task(self._attempt(lease, holder))
        self._live[lease.attempt_id] = _Live(lease, holder, task, now + min(1.0, interval_s), interval_s, now)
        task.add_done_callback(lambda _: self._ended(lease.attempt_id))

    def _ended(self, attempt_id: bytes) -> None:
        ended = self._live.pop(attempt_id, None)
        self._freed.set()
        if ended is not None and ended.lease.resources:
            self._regained.set()

    # -- running

    async def _attempt(self, lease: pb.Lease, holder: LeaseHolder) -> None:
        """Runs one attempt and reports its end, unless the lease was lost."""
        completion = pb.Completion()
        work = asyncio.ensure_future(self._step(lease, holder, completion))
        timeout_s = lease.timeout.ToMilliseconds() / 1000 if lease.HasField("timeout") else None
        try:
            await asyncio.wait({work, holder.over}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            timed_out = not work.done() and not holder.lost.is_set()
            if not work.done():
                work.cancel()
                await asyncio.wait({work}, timeout=STOP_S)
            if timed_out:  # a report of its own: a step that is left behind may still write into the other
                completion = pb.Completion(failure=failure("attempt", f"took longer than {timeout_s} s", "TIMED_OUT"))
            elif work.done() and completion.WhichOneof("result") is None:
                completion.failure.CopyFrom(unsaid(work))
            if holder.lost.is_set():
                log.info("attempt %s of %s is over here: %s", lease.attempt_id.hex(), lease.step_key, holder.reason)
                return
            fault_point("worker.before_completion", lease.step_key)
            await self._reporter.report(holder, completion)
        finally:
            work.cancel()
            holder.lose("LEASE_FENCED")  # whatever of the step is left behind learns that it is over

    async def _step(self, lease: pb.Lease, holder: LeaseHolder, completion: pb.Completion) -> None:
        """Calls the step's function; writes what came of it into `completion`."""
        assert self._connection is not None
        found = self._handlers[lease.handler]
        given = from_value(lease.input) or {}
        waits = StepWaits(given.get("waits"), lease.capacity_timed_out)
        try:
            arguments = arguments_of(found, given)
            fault_point("worker.during_step", lease.step_key)
            if found.is_async:
                if found.context_name:
                    arguments[found.context_name] = self._context(lease, holder, waits)
                result = await found.function(**arguments)
            else:
                if found.context_name:
                    arguments[found.context_name] = SyncContext(self._context(lease, holder, waits), asyncio.get_running_loop())
                result = await in_thread(found.function, arguments, f"step {lease.step_key}")
            completion.output.CopyFrom(to_value(found.output.dump_python(result, mode="json"), "output"))
        except Yielding:
            completion.yielded.CopyFrom(waits.yielded())
        except BaseExceptionGroup as group:  # of a task group: a step that only waits has not failed
            failed = group.split(Yielding)[1]
            if failed is None:
                completion.yielded.CopyFrom(waits.yielded())
            else:
                completion.failure.CopyFrom(failure_of(failed))
        except ENDED as over:
            if over.reason in STOPPED_FOR_NOW:
                completion.yielded.reason = "drain"
                if over.detail.get("scope", "").startswith("provider"):
                    await asyncio.sleep(PROVIDER_PAUSE_S)  # the scheduler cannot see it: the next attempt meets it again
            else:
                holder.lose(over.reason)
        except asyncio.CancelledError:
            raise
        except (Exception, SystemExit) as error:  # a step that exits must not end the worker
            what = str(error) if isinstance(error, RunwayError) else type(error).__name__  # the author's own may say too much
            log.warning("attempt %s of %s failed: %s", lease.attempt_id.hex(), lease.step_key, what)
            log.debug("how it failed", exc_info=error)
            completion.failure.CopyFrom(failure_of(error))

    def _context(self, lease: pb.Lease, holder: LeaseHolder, waits: StepWaits) -> Context:
        """For a step that asks for one."""
        assert self._connection is not None
        return Context(
            self._connection,
            holder,
            run_id=lease.run_id,
            step_key=lease.step_key,
            attempt_id=UUID(bytes=lease.attempt_id),
            attempt_number=lease.attempt_number,
            tenant=lease.tenant,
            project=lease.project,
            traceparent=lease.traceparent,
            waits=waits,
        )

    # -- reporting

    async def _complete(self, request: pb.CompleteAttemptsRequest) -> pb.CompleteAttemptsResponse:
        assert self._connection is not None
        return await self._connection.call(self._control.CompleteAttempts, request)

    async def _renew(self, holder: LeaseHolder, refused_epoch: int) -> None:
        assert self._connection is not None
        renewal = pb.Renewal(lease_token=holder.token, refused_epoch=refused_epoch)
        answer = await self._connection.call(self._control.RenewLeases, pb.RenewLeasesRequest(renewals=[renewal]))
        result = answer.results[0]
        if not result.lease_token:
            error = item_error_of(result.error)
            if not isinstance(error, Unavailable):
                holder.lose(error.reason)
            raise error
        holder.token = result.lease_token

    # -- beating

    async def _beat(self) -> None:
        """Beats for every attempt that is due, one call at a time; a lost answer is no answer, the next beat asks again."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(BEAT_TICK_S)
            now = loop.time()
            due = [live for live in self._live.values() if live.beat_at <= now and not live.holder.lost.is_set()]
            for at in range(0, len(due), 5000):
                try:
                    await self._beat_once(due[at : at + 5000], now)
                except Exception:  # leases must not end because one beat failed
                    log.exception("a heartbeat failed")

    def _beat_anew(self) -> None:
        """Beats have a connection of their own. A replica that stopped keeps its connections and answers nothing; keepalive
        finds out later than a lease lives, so after one silent beat the next takes a new connection, to who answers."""
        self._beating = Connection(self._target, alone=True)
        self._beats = worker_service_pb2_grpc.WorkerServiceStub(self._beating.control("scheduler"))

    async def _beat_once(self, due: Sequence[_Live], now: float) -> None:
        assert self._beating is not None
        beats = [
            pb.Heartbeat(
                run_id=live.lease.run_id,
                attempt_id=live.lease.attempt_id,
                lease_epoch=live.lease.lease_epoch,
                step_key=live.lease.step_key,
            )
            for live in due
        ]
        request = pb.HeartbeatAttemptsRequest(
            worker_id=self.worker_id, heartbeats=beats, leaving=self._draining.is_set(), process=self._process
        )
        tokens = [live.holder.token for live in due]
        shortest = min(live.interval_s for live in self._live.values() or due)  # a silent call delays the beats of all
        try:
            patience_s = max(1.0, shortest * BEAT_PATIENCE)
            answer = await self._beating.call(self._beats.HeartbeatAttempts, request, timeout_s=patience_s)
        except RunwayError as error:
            log.debug("a heartbeat got no answer: %s", error)
            if error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
                silent = self._beating
                self._beat_anew()
                await silent.close()
            return
        for live, token, result in zip(due, tokens, answer.results, strict=True):
            live.beat_at = now + live.interval_s
            if result.lease_token and live.holder.token == token:  # else it was renewed meanwhile, under a later epoch
                live.holder.token = result.lease_token
            if result.status == pb.LEASE_STATUS_LIVE:
                live.holder.yield_asked = result.please_yield
            if result.status == pb.LEASE_STATUS_FENCED:
                live.holder.lose("LEASE_FENCED")
            elif result.status == pb.LEASE_STATUS_CANCELLED:
                live.holder.lose("RUN_CANCELLED")
            elif result.status == pb.LEASE_STATUS_LIVE:
                live.heard_at = now
            elif now - live.heard_at >= live.ttl_s:
                live.holder.lose("LEASE_EXPIRED")
