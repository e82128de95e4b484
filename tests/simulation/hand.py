"""What a directed day does to the world: launches, cancels, pauses and signals, waits for something, cuts links.

Can go wrong: a day that waits for what never comes. Every wait has a limit, and says what it waited for.
"""

import asyncio
from collections.abc import Callable, Coroutine
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from runway.launch.v1 import approval_service_pb2 as ap
from runway_sdk import ApproverKey
from runway_sdk.client import Client

from tests.simulation.flows import Plan
from tests.simulation.loop import Process
from tests.simulation.traps import LIMIT_S, DidNotHappen
from tests.simulation.workload import Launched
from tests.simulation.world import REVIEWERS, Member, World

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

    def hold(self, run: Launched, step_key: str, for_s: float) -> asyncio.Task[None]:
        """An operator holds a step for a while."""
        return self.loop.spawn(self.world.outside, self.world.callers.holds.hold(run.run_id, step_key, for_s))

    def person(self, name: str, work: Callable[[Client, ApproverKey], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
        """What somebody does who may approve."""

        async def whole() -> Any:
            key = ApproverKey(Ed25519PrivateKey.from_private_bytes(sha256(name.encode()).digest()))
            async with Client(self.world.reviewer(name)) as client:
                await self.world.callers.patiently(lambda: client.approvals.register(key))
                return await work(client, key)

        return self.loop.spawn(self.world.outside, whole())

    def approve(self, name: str, run: Launched) -> asyncio.Task[Any]:
        """Somebody who allows whatever a run and those below it ask, until it has ended."""

        async def work(client: Client, key: ApproverKey) -> None:
            said: set[str] = set()
            while not run.settled:
                await asyncio.sleep(0.05)
                found = await client.approvals.find(run_id=run.run_id, states=[ap.APPROVAL_STATE_PENDING]) if run.run_id else []
                for one in [one for one in found if one.approval_id not in said]:
                    said.add(one.approval_id)
                    asked = await client.approvals.get(one.approval_id)
                    await client.approvals.decide(asked, key, name, approve=True)

        return self.person(name, work)

    async def asked(self, run: Launched, slot: str = "") -> ap.Approval:
        """Waits for an approval that a run, or one below it, asks for."""

        async def work(client: Client, _: ApproverKey) -> ap.Approval:
            end_s = self.loop.time() + LIMIT_S
            while self.loop.time() < end_s:
                found = await client.approvals.find(run_id=run.run_id) if run.run_id else []
                if named := [one for one in found if not slot or one.slot == slot]:
                    return await client.approvals.get(named[-1].approval_id)
                await asyncio.sleep(0.05)
            raise DidNotHappen("a question to people: never")

        return await self.person(REVIEWERS[0], work)

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
