"""An installation in one process with people who approve: launch, readiness, scheduler and gateway over real gRPC."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg
from runway.gateway.v1 import gateway_service_pb2 as gw
from runway.launch.v1 import approval_service_pb2 as pb
from runway.launch.v1 import launch_service_pb2 as la
from runway_sdk import ApprovalRule, ApproverKey, Client, Context, Target, Worker, Workflow, step, workflow

from libs.kernel.clock import Clock
from libs.runtime.host import Host
from libs.testkit.hosts import make_key
from libs.testkit.waiting import wait_until
from tests.rpc.gateway.provider import Provider

PENDING, APPROVED, REJECTED, EXPIRED, STALE, WITHDRAWN = range(1, 7)


@dataclass
class Person:
    """Somebody with a key of the tenant, and a key to sign with."""

    name: str
    client: Client
    key: ApproverKey

    async def decide(
        self, approval_id: str, *, approve: bool = True, reason: str = "", break_glass: bool = False
    ) -> pb.DecideApprovalResponse:
        approval = await self.client.approvals.get(approval_id)
        return await self.client.approvals.decide(
            approval, self.key, self.name, approve=approve, reason=reason, break_glass=break_glass
        )


@dataclass
class Room:
    """The installation, its owner's client, and what tests look at."""

    host: Host
    client: Client
    target: Target
    provider: Provider
    gateway: asyncpg.Connection
    launch: asyncpg.Connection
    clock: Clock | None = None

    @asynccontextmanager
    async def worker(self, *flows: Workflow) -> AsyncIterator[Worker]:
        for found in flows:
            await self.client.publish(found)
        worker = Worker(flows, target=self.target, slots=20)
        running = asyncio.create_task(worker.run())
        try:
            yield worker
            assert not running.done(), "the worker ended"
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    @asynccontextmanager
    async def person(
        self, name: str, *, scopes: Sequence[str] = ("reviewer",), tenant: str = "acme", register: bool = True
    ) -> AsyncIterator[Person]:
        key = await make_key(self.host, name=name, scopes=scopes, tenant=tenant)
        async with Client(Target(self.host.addresses.public, key, self.host.addresses.control)) as client:
            found = Person(name, client, ApproverKey.generate())
            if register:
                await client.approvals.register(found.key)
            yield found

    async def asked(self, run_id: str, count: int = 1) -> list[pb.Approval]:
        """The run's approvals, oldest first, once there are so many."""

        async def there() -> list[pb.Approval] | None:
            found = await self.client.approvals.find(run_id)
            return found[::-1] if len(found) >= count else None

        found = await wait_until(there, timeout_s=20, what=f"{count} approvals of {run_id}")
        assert found is not None
        return found

    async def stands(self, approval_id: str, state: int) -> pb.Approval:
        """The approval, once it stands so."""

        async def there() -> pb.Approval | None:
            found = await self.client.approvals.get(approval_id)
            return found if found.state == state else None

        found = await wait_until(there, timeout_s=20, what=pb.ApprovalState.Name(pb.ApprovalState.ValueType(state)))
        assert found is not None
        return found

    async def used(self, approval_id: str) -> pb.Approval:
        """The approval, once launch knows that it was used."""

        async def there() -> pb.Approval | None:
            found = await self.client.approvals.get(approval_id)
            return found if found.HasField("consumed_at") else None

        found = await wait_until(there, timeout_s=20, what="an approval that was used")
        assert found is not None
        return found

    async def effect(self, run_id: str, slot: str) -> gw.Effect:
        return next(effect for effect in await self.client.effects(run_id) if effect.slot == slot)

    async def waiting(self, run_id: str) -> la.Run:
        """The run, once it is shown as waiting for an approval."""

        async def there() -> la.Run | None:
            found = await self.client.get(run_id)
            return found if "approval" in found.wait_reasons else None

        found = await wait_until(there, timeout_s=20, what="a run that waits for an approval")
        assert found is not None
        return found

    async def log(self, run_id: str) -> list[str]:
        """Kinds of its approvals' entries in order."""
        return [e.kind.removeprefix("approval.") for e in await self.client.events(run_id) if e.kind.startswith("approval.")]


def posting(
    name: str = "posting",
    *,
    need: int = 1,
    eligible: Sequence[str] = (),
    expires_in: timedelta | None = None,
    above: int = 0,
    hold: int = 0,
    bodies: Any = None,
    slots: Sequence[str] = ("post",),
) -> Workflow:
    """A workflow whose step posts by slots in turn; `bodies` says what, by attempt (else always the same)."""

    rule = ApprovalRule(["http.request"], need=need, eligible=eligible, expires_in=expires_in, above_micros=above)

    @step(tools=["http.request"], approvals=[rule])
    async def post(ctx: Context, run: Any) -> list[Any]:
        answers = []
        for slot in slots:
            body = bodies(slot) if bodies is not None else {"to": "everybody"}
            arguments = {"target": "api", "method": "POST", "path": f"/{slot}/{ctx.run_id}", "json": body}
            answers.append((await ctx.tool("http.request", arguments, slot=slot, hold_micros=hold)).value["status"])
        return answers

    return workflow(name, steps=[post])
