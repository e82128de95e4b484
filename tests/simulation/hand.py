"""What a directed day does to the world: launches, cancels, pauses and signals, waits for something, cuts links.

Can go wrong: a day that waits for what never comes. Every wait has a limit, and says what it waited for.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from runway_sdk.client import Client

from tests.simulation.flows import Plan
from tests.simulation.loop import Process
from tests.simulation.traps import LIMIT_S, DidNotHappen
from tests.simulation.workload import Launched
from tests.simulation.world import Member, World

IN_TRANSACTION_S = 0.8
"""How long a transaction may be held: the server ends one that idles for a second."""
GATEWAYS = ("gateway-0", "gateway-1")
SCHEDULERS = ("scheduler-0", "scheduler-1")


class Hand:
    """What a day does to the world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.loop = world.loop

    def launch(self, name: str, plan: Plan) -> Launched:
        """A run, followed to its end by its caller."""
        run = Launched(f"request-{len(self.world.callers.runs)}", name, plan)
        self.loop.spawn(self.world.outside, self.world.callers.plain_life(run))
        return run

    def cancel(self, run: Launched) -> asyncio.Task[None]:
        """The caller changes its mind."""
        return self.loop.spawn(self.world.outside, self.world.callers.cancel(run))

    def pause(self, run: Launched, for_s: float) -> asyncio.Task[None]:
        """The caller wants to look for a while."""
        return self.loop.spawn(self.world.outside, self.world.callers.pause(run, for_s))

    def raise_budget(self, run: Launched, micros: int, times: int = 1) -> asyncio.Task[None]:
        """Somebody gives a run more, and says so this often."""

        async def work() -> None:
            async with Client(self.world.callers.target) as client:
                await self.world.callers.changes.raise_budget(client, run.run_id, micros, times)

        return self.loop.spawn(self.world.outside, work())

    def revoke(self, run: Launched, capability: str) -> asyncio.Task[None]:
        """Somebody takes something from a run."""

        async def work() -> None:
            async with Client(self.world.callers.target) as client:
                await self.world.callers.changes.revoke(client, run, capability, 1)

        return self.loop.spawn(self.world.outside, work())

    def cancel_below(self, run: Launched) -> asyncio.Task[None]:
        """Somebody cancels the first child of a run."""

        async def work() -> None:
            async with Client(self.world.callers.target) as client:
                nodes = await client.trees.tree(run.run_id)
                await client.cancel(next(node.run_id for node in nodes if node.depth), "this one is too slow")

        return self.loop.spawn(self.world.outside, work())

    def signal(self, run: Launched, place: int, event_id: str) -> asyncio.Task[None]:
        """Somebody tells of an event of a waiting run, by its correlation."""
        return self.loop.spawn(self.world.outside, self.world.callers.signal(run, place, event_id))

    async def until(self, what: str, true: Callable[[], Any], within_s: float = LIMIT_S) -> Any:
        """Waits for something."""
        end_s = self.loop.time() + within_s
        while not (found := true()):
            if self.loop.time() >= end_s:
                raise DidNotHappen(f"{what}: never")
            await asyncio.sleep(0.01)
        return found

    def member(self, process: Process | None) -> Member:
        """The place that a process fills."""
        return next(member for member in self.world.members.values() if member.process is process)

    def holder(self, run: Launched, step_key: str, *, again: bool = False) -> Member | None:
        """Whose worker has the first lease of a step, or a later one. A worker that is stopped may be granted one and never know."""
        for (run_id, key, lease_epoch), (_, worker) in self.world.leases.items():
            if (run_id, key) == (run.run_id, step_key) and (lease_epoch > 1) == again:
                return next((one for one in self.world.members.values() if repr(one.process) == worker), None)
        return None

    async def granted(self, run: Launched, step_key: str, *, again: bool = False) -> Member:
        """Waits for a grant."""
        what = f"a {'later' if again else 'first'} lease of {step_key}"
        found: Member = await self.until(what, lambda: self.holder(run, step_key, again=again))
        return found

    def cut(self, ones: tuple[str, ...], others: tuple[str, ...]) -> None:
        """They do not hear each other until the day ends."""
        self.world.network.cut |= {frozenset((one, other)) for one in ones for other in others}
