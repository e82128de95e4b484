"""A step that goes on after a person's answer: its ticket has the class approval_resume by itself, which nobody may ask for."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from runway.events.v1 import events_pb2 as ev
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk import Context, InvalidRequest, step, workflow

from libs.testkit.waiting import wait_until
from tests.rpc.waits.conftest import Bench
from tests.rpc.waits.room import INPUT, WAIT, Room, asks, room, yields

__all__ = ["room"]
MIGRATION, APPROVAL_RESUME = pb.RUN_CLASS_MIGRATION, pb.RUN_CLASS_APPROVAL_RESUME
ORDER: list[str] = []
GATE = asyncio.Event()


@step
async def asks_first(run: dict[str, Any], context: Context) -> str:
    await context.input("Go on?", {}, timeout=timedelta(hours=1))
    ORDER.append("resumed")
    return "answered"


@step
async def floods(run: int) -> int:
    await GATE.wait()
    ORDER.append(f"flood {run}")
    return run


ASKS = workflow("asks", steps=[asks_first])
FLOOD = workflow("flood", steps=[floods])


@pytest.mark.requirement("sched.fair")
async def test_in_its_tenant_s_flood_a_step_that_somebody_answered_goes_before_the_queue(bench: Bench) -> None:
    GATE.clear()
    ORDER.clear()
    async with bench.worker(ASKS, FLOOD, slots=1):
        asked = await bench.client.launch("asks", {}, run_class="migration")
        await bench.waiting(asked.run_id, "user_input")
        runs = [await bench.client.launch("flood", number, run_class="migration") for number in range(8)]

        async def queued() -> bool:
            found = [told for run in runs for told in (await bench.client.explain(run.run_id)).steps]
            return sum(told.HasField("position") for told in found) == len(runs) - 1 < len(found)  # and one is leased

        await wait_until(queued, timeout_s=20, what="a flood that waits")
        await bench.client.answer(asked.run_id, True)

        async def resumed() -> bool:
            return any(told.HasField("position") for told in (await bench.client.explain(asked.run_id)).steps)

        await wait_until(resumed, timeout_s=20, what="the ticket of the step that was answered")
        GATE.set()
        assert await bench.client.result(asked.run_id, timeout_s=20) == "answered"
        await asyncio.gather(*(bench.client.result(run.run_id, timeout_s=20) for run in runs))
    assert ORDER.index("resumed") == 1, ORDER


def ended(run_id: str, ticket: int, end: int) -> ev.Event:
    event = yields(run_id, ticket)
    event.attempt_finished.end = ev.AttemptEnd.ValueType(end)
    return event


@pytest.mark.requirement("sched.fair")
@pytest.mark.parametrize(("named", "resumes"), [("migration", 4), ("automation", 4), ("interactive", 1)])
async def test_the_class_is_of_the_ticket_after_the_answer_and_of_no_other(room: Room, named: str, resumes: int) -> None:
    own = {"migration": 3, "automation": 2, "interactive": 1}[named]
    run = (await room.client.launch("one", {"x": 1}, run_class=named, deadline=timedelta(days=20))).run_id
    await room.ticket(run, 1)
    await room.tell(asks(run, "q", {"prompt": "Go on?"}, INPUT), yields(run, 1, "q"))
    await room.client.answer(run, True)
    await room.ticket(run, 2)
    await room.tell(ended(run, 2, ev.ATTEMPT_END_LOST))

    async def again() -> bool:
        room.clock.advance(60_000)
        return len(room.tickets(run)) >= 3

    await wait_until(again, timeout_s=10, what="the ticket after the attempt that was lost")
    await room.tell(asks(run, "t", {"for_ms": 0}, WAIT), yields(run, 3, "t"))
    await room.ticket(run, 4)
    await room.tell(asks(run, "late", {"prompt": "And now?", "timeout_ms": 5}, INPUT), yields(run, 4, "late"))

    async def timed_out() -> bool:
        room.clock.advance(60_000)
        return len(room.tickets(run)) >= 5

    await wait_until(timed_out, timeout_s=10, what="the ticket after the question that nobody answered")
    classes = {fact.ticket_sequence: fact.run_class for fact in room.tickets(run)}
    assert classes == {1: own, 2: resumes, 3: resumes, 4: own, 5: own}


@pytest.mark.requirement("sched.fair")
async def test_no_run_is_launched_with_it(room: Room) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await room.client.launch("one", {"x": 1}, run_class="approval_resume")
    assert refused.value.field == "run_class"
