"""Readiness behind its inbox, with launch beside it, for tests of waits: the scheduler is played by the test."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from google.protobuf import struct_pb2
from runway.events.v1 import events_pb2 as ev
from runway.internal.inbox.v1 import inbox_pb2
from runway.readiness.v1 import readiness_service_pb2 as rd
from runway_sdk import Client, Target, step, workflow
from runway_sdk.values import from_value, to_value

from libs.runtime.host import Host
from libs.testkit.clocks import ManualClock
from libs.testkit.fixtures import StackDatabase
from libs.testkit.hosts import Peer, make_key, running_host
from libs.testkit.waiting import wait_until

APPLIED, RETRY = inbox_pb2.VERDICT_APPLIED, inbox_pb2.VERDICT_RETRY
HOUR_MS = 3_600_000
WAIT, INPUT = ev.COMMAND_KIND_WAIT, ev.COMMAND_KIND_INPUT


@step
def only(run: Any) -> int:
    return 1


ONE = workflow("one", steps=[only])


@dataclass
class Room:
    host: Host
    client: Client
    scheduler: Peer
    db: asyncpg.Connection
    clock: ManualClock
    urls: dict[str, str]

    async def tell(self, *events: ev.Event) -> list[int]:
        request = inbox_pb2.DeliverRequest(service="readiness", events=[event.SerializeToString() for event in events])
        return [item.verdict for item in (await self.host.peers.deliver("readiness", request)).verdicts]

    def tickets(self, run_id: str) -> list[ev.StepReady]:
        found = [event.step_ready for event in self.scheduler.facts("step_ready")]
        return [fact for fact in found if fact.run_id == UUID(run_id).bytes]

    async def ticket(self, run_id: str, sequence: int) -> Any:
        """The input of this ticket, once it came."""

        def found() -> list[ev.StepReady]:
            return [fact for fact in self.tickets(run_id) if fact.ticket_sequence == sequence]

        await wait_until(found, what=f"ticket {sequence}")
        return from_value(struct_pb2.Value.FromString(found()[0].input))

    async def launch(self) -> str:
        run = await self.client.launch("one", {"x": 1}, deadline=timedelta(days=20))
        await self.ticket(run.run_id, 1)
        return str(run.run_id)

    async def state(self, run_id: str) -> rd.Step:
        return (await self.client.steps(run_id))[0]


@pytest.fixture
async def room(stack_db: StackDatabase, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Room]:
    environ = getattr(request, "param", {})
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    urls = await stack_db(["launch", "readiness"])
    scheduler, clock = Peer("scheduler"), ManualClock()
    async with AsyncExitStack() as stack:
        db = await asyncpg.connect(urls["readiness"])
        stack.push_async_callback(db.close)
        both = running_host(["launch", "readiness"], urls, peers=[scheduler], environ=environ, clock=clock)
        host = await stack.enter_async_context(both)
        client = await stack.enter_async_context(Client(Target(host.addresses.public, await make_key(host))))
        await client.publish(ONE)
        yield Room(host, client, scheduler, db, clock, urls)


def asks(run_id: str, slot: str, payload: Any, kind: int = WAIT) -> ev.Event:
    fact = ev.CommandRecorded(run_id=UUID(run_id).bytes, step_key="only", slot=slot, attempt_id=uuid4().bytes, lease_epoch=1)
    fact.kind = ev.CommandKind.ValueType(kind)
    fact.payload = to_value(payload, "payload").SerializeToString()
    return ev.Event(event_id=uuid4().bytes, command_recorded=fact)


def yields(run_id: str, ticket: int, *slots: str) -> ev.Event:
    fact = ev.AttemptFinished(
        run_id=UUID(run_id).bytes, step_key="only", ticket_sequence=ticket, attempt_id=uuid4().bytes, lease_epoch=1
    )
    fact.end = ev.ATTEMPT_END_YIELDED
    fact.awaits.extend(slots)
    return ev.Event(event_id=uuid4().bytes, attempt_finished=fact)
