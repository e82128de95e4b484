"""Operators who hold single steps for a while, and are told who acts on that.

Once every scheduler process is said to act on a hold, nothing of the step is granted until its release is asked for: the auditor is told
of exactly that time. Can go wrong: a hold that nobody releases. Whoever held it asks until that is done.
"""

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from runway.scheduler.v1 import control_service_pb2 as pb
from runway.scheduler.v1 import control_service_pb2_grpc

from libs.rpc.channels import open_channel

if TYPE_CHECKING:
    from tests.simulation.workload import Callers, Launched

TRIES = 4
"""How often somebody asks whether all act on a hold before it is released again."""


@dataclass
class Holds:
    """What was held so far."""

    callers: "Callers"
    address: str = ""
    """Where schedulers listen to operators."""
    secret: str = ""
    held: int = 0
    acted: int = 0
    """Of these, those of which all were said to act on them."""
    on_held: Any = None
    """Told of a run and a step that nobody may grant from now on."""
    on_released: Any = None
    """The same, before the release is asked for."""

    async def some(self, run: "Launched", step_key: str, seed: float) -> None:
        """Somebody holds a step of a run that was launched, and lets it go again, whatever becomes of whoever waits for the run."""
        chance = random.Random(seed)
        await asyncio.sleep(chance.choice((0.0, 0.0, 0.5, 3.0)) * chance.random())
        for_s = chance.choice((0.5, 3.0, 8.0))
        mode = chance.choice((pb.HOLD_MODE_HOLD, pb.HOLD_MODE_DRAIN))
        await asyncio.shield(asyncio.ensure_future(self.hold(run.run_id, step_key, for_s, mode)))

    async def hold(self, run_id: str, step_key: str, for_s: float, mode: Any = pb.HOLD_MODE_HOLD) -> None:
        """Holds a step for so long."""
        name = {"kind": pb.HOLD_KIND_STEP, "name": f"{run_id}/{step_key}", "actor": "operator", "reason": "to look at it"}
        async with open_channel(self.address, secret=self.secret) as channel:
            control = control_service_pb2_grpc.ControlServiceStub(channel)
            self.held += 1
            for _ in range(TRIES):
                answer = await self._asked(control.PutHold, pb.PutHoldRequest(mode=mode, unseen=True, **name))
                if answer is not None and all(one.acted for one in answer.replicas):
                    self.acted += 1
                    self.callers.history.note("operator", f"all hold {step_key}")
                    if self.on_held is not None:
                        await self.on_held(run_id, step_key)
                    break
                await asyncio.sleep(0.5)
            await asyncio.sleep(for_s)
            if self.on_released is not None:
                await self.on_released(run_id, step_key)
            while await self._asked(control.ReleaseHold, pb.ReleaseHoldRequest(**name)) is None:
                await asyncio.sleep(0.5)
            self.callers.history.note("operator", f"{step_key} is released")

    async def _asked(self, method: Any, request: Any) -> Any:
        """The answer; nothing, where there was none. What is not held any more was released by a call whose answer was lost."""
        try:
            return await method(request, timeout=5.0)
        except grpc.aio.AioRpcError as error:
            released = isinstance(request, pb.ReleaseHoldRequest) and error.code() is grpc.StatusCode.NOT_FOUND
            return pb.ReleaseHoldResponse() if released else None
