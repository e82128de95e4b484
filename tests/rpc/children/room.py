"""Launch and the gateway, with readiness, the scheduler and the checkpoint service played by the test: for what no worker is
needed."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg
from google.protobuf import struct_pb2
from runway.events.v1 import events_pb2 as ev
from runway.internal.fence.v1 import fence_pb2
from runway.internal.inbox.v1 import inbox_pb2
from runway.launch.v1 import admin_service_pb2, admin_service_pb2_grpc
from runway.launch.v1 import launch_service_pb2 as pb
from runway.launch.v1 import tree_service_pb2 as tr
from runway_sdk import Client, Target
from runway_sdk.values import from_value, to_value

from libs.runtime.host import Host
from libs.testkit.fixtures import StackDatabase
from libs.testkit.hosts import Peer, make_key, running_host, service_channel
from libs.testkit.waiting import wait_until
from tests.rpc.children.conftest import MISCOUNTED, UNBALANCED

APPLIED, RETRY = inbox_pb2.VERDICT_APPLIED, inbox_pb2.VERDICT_RETRY
STEP = "act"


@dataclass
class Room:
    host: Host
    client: Client
    readiness: Peer
    scheduler: Peer
    launch: asyncpg.Connection
    gateway: asyncpg.Connection
    urls: dict[str, str]
    slots: int = 0
    known: set[str] = field(default_factory=set)

    async def tell(self, *events: ev.Event, service: str = "launch") -> list[int]:
        request = inbox_pb2.DeliverRequest(service=service, events=[event.SerializeToString() for event in events])
        return [item.verdict for item in (await self.host.peers.deliver(service, request)).verdicts]

    def spawn_event(self, run_id: str, children: Sequence[dict[str, Any]], slot: str = "", **more: Any) -> ev.Event:
        self.slots += 1
        payload = to_value({"children": list(children), **more}, "spawn").SerializeToString()
        return ev.Event(
            command_recorded=ev.CommandRecorded(
                run_id=UUID(run_id).bytes,
                step_key=STEP,
                slot=slot or f"spawn#{self.slots}",
                kind=ev.COMMAND_KIND_SPAWN,
                payload=payload,
            )
        )

    def join_event(self, run_id: str, slot: str = "join", **policy: Any) -> ev.Event:
        payload = to_value(policy, "join").SerializeToString()
        return ev.Event(
            command_recorded=ev.CommandRecorded(
                run_id=UUID(run_id).bytes, step_key=STEP, slot=slot, kind=ev.COMMAND_KIND_JOIN, payload=payload
            )
        )

    async def spawn(self, run_id: str, *children: dict[str, Any], slot: str = "", **more: Any) -> list[str]:
        """Children of one command, by id, in order."""
        before = {child.run.run_id for child in await self.client.trees.children(run_id)}
        assert await self.tell(self.spawn_event(run_id, children, slot, **more)) == [APPLIED]
        return [c.run.run_id for c in await self.client.trees.children(run_id) if c.run.run_id not in before]

    async def finish(self, run_id: str, outcome: str = "succeeded", output: Any = None) -> None:
        fact = ev.GraphFinished(
            run_id=UUID(run_id).bytes, outcome=outcome, output=to_value(output, "output").SerializeToString()
        )
        if outcome == "failed":
            fact.failure.CopyFrom(ev.Failure(failure_class="attempt", message="it broke", type="Broken"))
        assert await self.tell(ev.Event(graph_finished=fact)) == [APPLIED]

    async def refusals(self, run_id: str) -> list[str]:
        """Types of spawns that were refused, by the run's log."""
        return [event.detail["type"] for event in await self.client.events(run_id) if event.kind == "run.spawn_refused"]

    def answers(self, run_id: str, slot: str = "join") -> list[Any]:
        """What readiness was told of a join."""
        found = [event.command_answered for event in self.readiness.facts("command_answered")]
        mine = [fact for fact in found if fact.run_id == UUID(run_id).bytes and fact.slot == slot]
        return [from_value(struct_pb2.Value.FromString(fact.result)) for fact in mine]

    async def answer(self, run_id: str, slot: str = "join") -> Any:
        await wait_until(lambda: self.answers(run_id, slot), what=f"an answer of {slot}")
        return self.answers(run_id, slot)[0]

    async def settled(self, *run_ids: str) -> list[pb.Run]:
        return [await self.client.wait(run_id, settled=True, timeout_s=20) for run_id in run_ids]

    async def spend(self, run_id: str, micros: int) -> bool:
        """As calls do: only what is free at the gateway's gate, which is read cold first."""
        request = fence_pb2.GetFencesRequest(service="launch", run_ids=[UUID(run_id).bytes])
        cold = await self.host.peers.get_fences("launch", request)
        await self.host.peers.raise_fences("gateway", fence_pb2.RaiseFencesRequest(service="gateway", gates=cold.gates))
        sql = """UPDATE run_gate SET used = used + $2 WHERE run_id = $1 AND granted - held - used - delegated >= $2 AND mode = 0
                 RETURNING run_id"""
        return bool(await self.gateway.fetch(sql, UUID(run_id), micros))

    async def nodes(self, run_id: str) -> list[tr.TreeNode]:
        return await self.client.trees.tree(run_id)

    async def limit_descendants(self, most: int) -> None:
        async with service_channel(self.host) as channel:
            request = admin_service_pb2.PutTenantRequest(
                tenant="acme", limit_micros=10**12, max_active_runs=10**6, max_active_descendants=most
            )
            await admin_service_pb2_grpc.AdminServiceStub(channel).PutTenant(request)

    async def sums(self) -> None:
        """Every ledger sums."""
        assert not await self.launch.fetch(UNBALANCED), "launch's balances are not the sum of its postings"
        assert not await self.gateway.fetch(MISCOUNTED), "a gate does not count its slices"


@asynccontextmanager
async def opened_room(stack_db: StackDatabase, tools: Sequence[str] = ()) -> AsyncIterator[Room]:
    urls = await stack_db(["launch", "gateway"])
    readiness, scheduler = Peer("readiness"), Peer("scheduler")
    peers = [readiness, scheduler, Peer("checkpoint"), Peer("reconciler")]
    launch, gateway = await asyncpg.connect(urls["launch"]), await asyncpg.connect(urls["gateway"])
    try:
        async with running_host(["launch", "gateway"], urls, peers=peers) as host:
            target = Target(host.addresses.public, await make_key(host), host.addresses.control)
            async with Client(target) as client:
                yield Room(host, client, readiness, scheduler, launch, gateway, dict(urls))
    finally:
        await launch.close()
        await gateway.close()
