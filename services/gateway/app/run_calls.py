"""Calls under way in this process: the only place that sends anything outside.

A nonce is in `_alive` from before its intent is committed until its receipt is. One that is given up before anything was sent
is void: it never was and never will be sent, and only of those is that ever said. A call outlives the RPC that asked for it;
its receipt is retried until it commits, and remembered for a while after that.

A call whose run is closed is cut where its tool may be (`domain.aborting`): its task is cancelled while the tool has it, and
its receipt is recorded as of any other.

Can go wrong: the process ends in between. The try stays `requested` until its death is proved, then it is unknown. And a
database that was promoted without its last commits: a try whose receipt was recorded is under way again by its row.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

from libs.kernel.refusal import Refusal
from libs.runtime.faults import fault_point
from libs.telemetry.catalogue import EFFECT_SECONDS, EFFECTS, EFFECTS_ABORTED
from libs.telemetry.logs import get_logger, log_context
from libs.telemetry.traces import continued
from services.gateway.domain.aborting import CAUSE, WHY, cut_outcome, may_cut
from services.gateway.domain.arguments import key_of, parse
from services.gateway.domain.effect import Effect, EffectName, Failed, Outcome, Receipt, ReplayClass, State
from services.gateway.ports import Dispatch, Ports, Request

MOST_VOID = 100_000
MOST_RECEIPTS = 1_000
RECEIPT_BYTES = 65_536
"""Of a greater answer it is only known that there was one."""
T = TypeVar("T")
Record = Callable[[Receipt], Awaitable[Effect | None]]
Over = Callable[[UUID, Outcome | None], None]
"""Told once for each call that was started: what came of it, None where nobody knows."""
log = get_logger(__name__)


class Recently(OrderedDict[UUID, T]):
    """Bounded: who has been there for longest goes first."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def put(self, nonce: UUID, item: T) -> None:
        """The newest."""
        self[nonce] = item
        if len(self) > self._most:
            self.popitem(last=False)


class Cut:
    """Whether a call may be cut, and was. Implements `ports.Cutting`."""

    def __init__(self, task: "asyncio.Task[None]", *, may: bool) -> None:
        self._task = task
        self.may = may
        self.done = False

    def begins(self) -> None:
        """From here on it cannot be taken back: it is waited for."""
        self.may = False

    def cut(self) -> bool:
        """Cuts it, once; whether it did."""
        if not self.may:
            return False
        self.may, self.done = False, True
        self._task.cancel()
        return True


class Calls:
    """The calls of one process."""

    def __init__(self, ports: Ports, record: Record, over: Over = lambda nonce, outcome: None) -> None:
        self._over = over
        self._ports = ports
        self._record = record
        self._alive: set[UUID] = set()
        self._void: Recently[None] = Recently(MOST_VOID)
        self._receipts: Recently[Receipt] = Recently(MOST_RECEIPTS)
        self._results: dict[EffectName, asyncio.Future[Effect | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._cuts: dict[UUID, set[Cut]] = {}

    @property
    def under_way(self) -> int:
        """Calls of this process that have no recorded receipt."""
        return len(self._alive)

    def alive(self, nonce: UUID) -> bool:
        """Whether this process may still send, or is sending, the try of this nonce."""
        return nonce in self._alive

    def reserve(self, nonces: Iterable[UUID]) -> None:
        """Before their intents are committed."""
        self._alive.update(nonces)

    def release(self, nonces: Iterable[UUID]) -> None:
        """They have no row: refused."""
        self._alive.difference_update(nonces)

    def give_up(self, nonces: Iterable[UUID]) -> None:
        """Void: they may have a row, and will never be sent."""
        for nonce in nonces:
            self._void.put(nonce, None)
            self._alive.discard(nonce)

    def void(self, nonce: UUID) -> bool:
        """Whether this is certain: it was never sent and never will be."""
        return nonce in self._void

    def receipt(self, nonce: UUID) -> Receipt | None:
        """What was recorded of a call not long ago."""
        return self._receipts.get(nonce)

    def start(self, dispatch: Dispatch) -> None:
        """Makes the call of a committed intent, in a task of its own."""
        result: asyncio.Future[Effect | None] = asyncio.get_running_loop().create_future()
        self._results[dispatch.name] = result
        task = asyncio.get_running_loop().create_task(self._run(dispatch, result), name=f"call {dispatch.tool}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def result(self, name: EffectName) -> "asyncio.Future[Effect | None] | None":
        """The outcome to come of a slot whose call this process makes; None where another does, or none is made."""
        return self._results.get(name)

    def cuttable_runs(self) -> list[UUID]:
        """Runs with calls under way here that may be cut."""
        return sorted(run_id for run_id, cuts in self._cuts.items() if any(cut.may for cut in cuts))

    def abort(self, run_ids: Iterable[UUID]) -> int:
        """Cuts what may be cut of these runs, which are closed; how many calls."""
        return sum(cut.cut() for run_id in run_ids for cut in tuple(self._cuts.get(run_id, ())))

    async def stop(self, grace_ms: int) -> None:
        """Waits for calls under way; what is left then is cut, and its outcome is for those who find this process dead."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=grace_ms / 1000)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _run(self, dispatch: Dispatch, result: "asyncio.Future[Effect | None]") -> None:
        name = dispatch.name
        came: Outcome | None = None
        try:
            with (
                continued(dispatch.traceparent, "effect", tool=dispatch.tool),
                log_context(run=name.run_id, step=name.step_key, slot=name.slot),
            ):
                fault_point("gateway.after_intent", name.step_key, name.slot)
                outcome = came = await self._call(dispatch)
                fault_point("gateway.after_call", name.step_key, name.slot)
                EFFECTS.labels(dispatch.tool, outcome.state.value).inc()
                receipt = Receipt(name, dispatch.n, dispatch.nonce, outcome)
                effect = await self._recorded(receipt)
                if len(outcome.result or b"") <= RECEIPT_BYTES:
                    self._receipts.put(dispatch.nonce, receipt)
                fault_point("gateway.after_receipt", name.step_key, name.slot)
            result.set_result(effect)
        finally:
            self._over(dispatch.nonce, came)
            self._alive.discard(dispatch.nonce)
            if self._results.get(name) is result:
                del self._results[name]
            if not result.done():
                result.cancel()

    async def _call(self, dispatch: Dispatch) -> Outcome:
        """The tool's outcome; whatever it raises may have been after bytes left."""
        tool = self._ports.tools.find(dispatch.tool)
        if tool is None:
            return Outcome(State.NOT_SENT, failure=Failed("infrastructure", "the tool is not offered any more", "NOT_FOUND"))
        task = asyncio.current_task()
        assert task is not None
        cut = Cut(task, may=may_cut(tool.abort, dispatch.replay_class))
        request = Request(
            name=dispatch.name,
            tenant=dispatch.tenant,
            project=dispatch.project,
            arguments=parse(dispatch.proposal),
            key=key_of(dispatch.name),
            replay_class=dispatch.replay_class,
            cut=cut,
        )
        began_ms = self._ports.clock.monotonic_ms()
        self._cuts.setdefault(dispatch.name.run_id, set()).add(cut)
        try:
            outcome = await tool.call(request)
        except asyncio.CancelledError:
            if not cut.done or task.uncancel():  # the process ends: nobody knows
                raise
            EFFECTS_ABORTED.labels(dispatch.tool).inc()
            log.info("a call was cut: its run is closed", tool=dispatch.tool)
            outcome = cut_outcome(dispatch.replay_class)
        except Exception as error:
            if cut.done:  # it made something else of being cut
                task.uncancel()
            log.error("a tool failed in an unforeseen way", tool=dispatch.tool, exc_info=error)
            outcome = Outcome(State.UNKNOWN, cause="internal_error", evidence=type(error).__name__)
        finally:
            cut.begins()
            self._forget(dispatch.name.run_id, cut)
        EFFECT_SECONDS.labels(dispatch.tool).observe((self._ports.clock.monotonic_ms() - began_ms) / 1000)
        if outcome.state is State.UNKNOWN and dispatch.replay_class is ReplayClass.PURE:
            return lost_pure(outcome, dispatch.hold)
        return outcome

    def _forget(self, run_id: UUID, cut: Cut) -> None:
        cuts = self._cuts[run_id]
        cuts.discard(cut)
        if not cuts:
            del self._cuts[run_id]

    async def _recorded(self, receipt: Receipt) -> Effect | None:
        """Records the receipt, however long the database is away."""
        failures = 0
        while True:
            try:
                return await self._record(receipt)
            except Refusal as refusal:
                log.warning("a receipt cannot be recorded yet", reason=refusal.reason.value, message=refusal.message)
            await asyncio.sleep(min(self._ports.limits.receipt_retry_ms << min(failures, 6), 5_000) / 1000)
            failures += 1


def lost_pure(outcome: Outcome, hold: int) -> Outcome:
    """A pure call whose answer was lost may simply be repeated, as a new cost; the lost one is charged what was held."""
    text = {
        "call_timed_out": "no answer came in time",
        CAUSE: f"it was cut: {WHY}",
        "process_died": "the gateway process died before the answer was recorded",
        "receipt_lost": "the database lost the answer that was recorded",
    }.get(outcome.cause, "the answer was lost")
    kind = "policy" if outcome.cause == CAUSE else "transient"
    failure = outcome.failure or Failed(kind, text, (outcome.cause or "answer_lost").upper())
    return replace(outcome, state=State.FAILED, failure=failure, cost=hold)
