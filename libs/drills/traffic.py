"""What callers do during a drill: launch, launch again with the same request id, cancel, wait; everything noted.

Authoritative for nothing. Can go wrong: a caller that gives up where the installation is away for a while. Refusals are noted,
and what was asked is asked again under the same request id.
"""

import asyncio
import contextlib
import secrets
from dataclasses import dataclass, field
from typing import Any

from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk import Client
from runway_sdk.connection import Target
from runway_sdk.errors import NotFound, RunwayError

from libs.drills.history import History, now_ms

WORKFLOW = "drill"
PATIENT_WORKFLOW = "drill-patient"
ENDURING_WORKFLOW = "drill-enduring"
REPEAT_EVERY = 5
CANCEL_EVERY = 6
ASK_AGAIN_S = 0.3
"""A caller that was refused for a while asks again after this: drills record refusals, and need no storm of them."""


def word(kind: Any, number: int) -> str:
    """An enum value without its prefix: RUN_STATE_SUCCEEDED is succeeded."""
    return str(kind.Name(number)).split("_", 2)[2]


@dataclass(slots=True)
class Launched:
    """A run, when its launch was asked for, and when its outcome was seen."""

    request_id: str
    asked: float
    run_id: str = ""
    outcome: str = ""
    ended: float = 0.0


@dataclass(slots=True)
class Traffic:
    """Callers of one installation."""

    target: Target
    history: History
    per_s: float = 3.0
    runs: list[Launched] = field(default_factory=list)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)
    client: Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = Client(self.target)

    async def run(self) -> None:
        """Launches at a steady rate until `stop`."""
        number = 0
        while not self._stopping.is_set():
            number += 1
            self._do(self._one(number))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), 1 / self.per_s)

    def stop(self) -> None:
        """No new launches."""
        self._stopping.set()

    async def settle(self, timeout_s: float) -> None:
        """Waits for the callers; who is still waiting then is given up, and the checker says so."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _do(self, work: "asyncio.Future[None] | object") -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _one(self, number: int) -> None:
        """One caller: launches, perhaps twice, perhaps cancels, and waits."""
        launched = Launched(secrets.token_hex(12), now_ms())
        self.runs.append(launched)
        self.history.note("client", "asked", request_id=launched.request_id)
        run_id = await self.launch(launched.request_id, number)
        if not run_id:
            return
        launched.run_id = run_id
        if number % REPEAT_EVERY == 0:
            await self.launch(launched.request_id, number)
        if number % CANCEL_EVERY == 0:
            await asyncio.sleep(secrets.randbelow(600) / 1000)
            await self.cancel(run_id)
        await self.wait(launched)

    async def patient(self, effects: int) -> Launched:
        """A run of so many effects one after another, launched; its outcome is noted like any other."""
        launched = Launched(secrets.token_hex(12), now_ms())
        self.runs.append(launched)
        launched.run_id = await self.launch(launched.request_id, effects, PATIENT_WORKFLOW)
        self._do(self.wait(launched))
        return launched

    async def begin(self, workflow: str, number: float, budget_micros: int | None = None) -> Launched:
        """A run of another workflow, launched; its outcome is noted like any other."""
        launched = Launched(secrets.token_hex(12), now_ms())
        self.runs.append(launched)
        launched.run_id = await self.launch(launched.request_id, number, workflow, budget_micros)
        self._do(self.wait(launched))
        return launched

    async def endure(self, seconds: int) -> Launched:
        """A run that holds a lease for so long."""
        launched = Launched(secrets.token_hex(12), now_ms())
        launched.run_id = await self.launch(launched.request_id, seconds, ENDURING_WORKFLOW)
        self._do(self.wait(launched))
        return launched

    async def launch(self, request_id: str, number: float, workflow: str = WORKFLOW, budget_micros: int | None = None) -> str:
        """The run of a request; empty when it was refused for good or the drill ends."""
        while True:
            try:
                run = await self.client.launch(workflow, number, request_id=request_id, budget_micros=budget_micros)
            except RunwayError as refused:
                self.history.note("client", "refused", call="launch", reason=refused.reason, request_id=request_id)
                if refused.reason not in ("AUTHORITY_UNREACHABLE", "DEADLINE_EXCEEDED", "DRAINING", "UNAVAILABLE"):
                    return ""
                await asyncio.sleep(ASK_AGAIN_S)
                continue
            self.history.note("client", "launched", request_id=request_id, run=run.run_id, epoch=run.epoch)
            return str(run.run_id)

    async def cancel(self, run_id: str, tries: int = 60) -> str:
        """The phase that the answer told; asked again while nobody can answer."""
        for _ in range(tries):
            try:
                answer = await self.client.cancel(run_id, "a drill")
            except RunwayError as refused:
                self.history.note("client", "refused", call="cancel", reason=refused.reason, run=run_id)
                await asyncio.sleep(ASK_AGAIN_S)
                continue
            phase = word(pb.CancelPhase, answer.phase)
            self.history.note(
                "client",
                "cancelled",
                run=run_id,
                phase=phase,
                epoch=answer.run.epoch,
                outcome=answer.run.outcome,
                in_flight=[(effect.step_key, effect.slot) for effect in answer.effects_in_flight],
            )
            return phase
        return ""

    async def look(self, run_id: str) -> None:
        """Notes the run as it is told now; a refusal is a refusal."""
        try:
            run = await self.client.get(run_id)
        except NotFound:
            self.history.note("client", "missing", run=run_id)
        except RunwayError as refused:
            self.history.note("client", "refused", call="get", reason=refused.reason, run=run_id)
        else:
            state = word(pb.RunState, run.state).lower()
            self.history.note("client", "seen", run=run_id, state=state, outcome=run.outcome, epoch=run.epoch)

    async def wait(self, launched: Launched) -> None:
        """Notes the outcome once it is decided."""
        while True:
            try:
                run = await self.client.wait(launched.run_id, timeout_s=600)
            except NotFound:
                self.history.note("client", "missing", run=launched.run_id)
                return
            except RunwayError as refused:
                self.history.note("client", "refused", call="wait", reason=refused.reason, run=launched.run_id)
                await asyncio.sleep(ASK_AGAIN_S)
                continue
            state = word(pb.RunState, run.state).lower()
            self.history.note("client", "seen", run=run.run_id, state=state, outcome=run.outcome, epoch=run.epoch)
            launched.outcome, launched.ended = run.outcome, now_ms()
            return
