"""Waits that launch decides, behind readiness' inbox on real PostgreSQL: before and after they are asked for, repeated, refused."""

from uuid import UUID, uuid4

import pytest
from runway.events.v1 import events_pb2 as ev
from runway.internal.inbox.v1 import inbox_pb2
from runway.readiness.v1 import readiness_service_pb2 as rd
from runway_sdk.values import to_value

from tests.rpc.waits.room import APPLIED, INPUT, RETRY, WAIT, Room, asks, room, yields

APPROVAL, JOIN = ev.COMMAND_KIND_APPROVAL, ev.COMMAND_KIND_JOIN
__all__ = ["room"]


def says(run_id: str, slot: str, result: object, kind: int = APPROVAL, *, refused: bool = False, by: str = "ann") -> ev.Event:
    fact = ev.CommandAnswered(run_id=UUID(run_id).bytes, step_key="only", slot=slot, refused=refused, by=by, at_ms=1)
    fact.kind = ev.CommandKind.ValueType(kind)
    fact.result = to_value(result, "result").SerializeToString()
    return ev.Event(event_id=uuid4().bytes, command_answered=fact)


@pytest.mark.requirement("step.wait")
async def test_a_step_waits_for_an_approval_and_for_children_until_launch_answers(room: Room) -> None:
    run = await room.launch()
    await room.tell(asks(run, "ok", {}, APPROVAL), asks(run, "kids", {}, JOIN), yields(run, 1, "ok", "kids"))
    assert ((await room.state(run)).state, (await room.state(run)).wait_reason) == (rd.STEP_STATE_WAITING, "approval")
    assert await room.tell(says(run, "ok", {"decision": "approved"})) == [APPLIED]
    told = (await room.ticket(run, 2))["waits"]
    assert told.keys() == {"ok"}
    assert {name: told["ok"][name] for name in ("kind", "state", "value", "by")} == {
        "kind": "approval",
        "state": "done",
        "value": {"decision": "approved"},
        "by": "ann",
    }
    await room.tell(yields(run, 2, "kids"))
    assert (await room.state(run)).wait_reason == "child_tasks"
    await room.tell(says(run, "kids", None, JOIN, refused=True, by="the tenant has too many active runs"))
    refused = (await room.ticket(run, 3))["waits"]["kids"]
    assert (refused["kind"], refused["state"], refused["by"]) == ("children", "refused", "the tenant has too many active runs")


@pytest.mark.requirement("step.wait")
async def test_an_answer_that_overtakes_its_question_is_kept_and_repeats_change_nothing(room: Room) -> None:
    run = await room.launch()
    first, other = says(run, "ok", 1), says(run, "ok", 2)
    assert await room.tell(first, other) == [APPLIED, APPLIED]
    assert await room.tell(other) == [APPLIED]
    assert await room.tell(yields(run, 1, "ok"), asks(run, "ok", {}, APPROVAL)) == [APPLIED, APPLIED]
    assert (await room.ticket(run, 2))["waits"]["ok"]["value"] == 1, "the first answer stands"
    await room.tell(first, other, asks(run, "ok", {}, APPROVAL))
    assert ((await room.state(run)).state, len(room.tickets(run))) == (rd.STEP_STATE_READY, 2)
    unknown = str(UUID(int=(room.clock.now_ms() << 80) | 7))
    assert await room.tell(says(unknown, "ok", 1)) == [RETRY], "its launch may still come"


@pytest.mark.requirement("step.wait")
async def test_an_answer_to_another_kind_of_wait_ends_nothing(room: Room) -> None:
    run = await room.launch()
    await room.tell(asks(run, "one", {"event": "paid"}, WAIT), asks(run, "two", {}, JOIN), yields(run, 1, "one", "two"))
    assert await room.tell(says(run, "one", 1), says(run, "two", 1)) == [APPLIED, APPLIED]
    assert (await room.state(run)).state == rd.STEP_STATE_WAITING
    assert await room.tell(says(run, "one", 1, WAIT)) == [APPLIED], "of capacity, and this slot waits for an event"
    wrong = says(run, "two", 1, INPUT)
    lost = says(run, "two", 1)
    lost.command_answered.result = b"\xff"
    nameless = says(run, "", 1)
    assert await room.tell(wrong, lost, nameless) == [inbox_pb2.VERDICT_REFUSED] * 3
    assert await room.tell(says(run, "two", 1, JOIN)) == [APPLIED]
    assert (await room.ticket(run, 2))["waits"].keys() == {"two"}
