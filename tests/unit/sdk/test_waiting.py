"""Waits as a step sees them: what has an answer passes, what has none ends the attempt, what makes no sense fails it."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from runway.scheduler.v1 import worker_service_pb2 as pb
from runway_sdk import StepFailed
from runway_sdk.waiting import StepWaits, Yielding, milliseconds, unix_ms


def told(kind: str, state: str = "done", value: Any = None, by: str = "") -> dict[str, Any]:
    return {"kind": kind, "state": state, "value": value, "at_ms": 1_000, "by": by}


@pytest.mark.requirement("step.wait")
async def test_a_slot_with_an_answer_passes_and_one_without_ends_the_attempt() -> None:
    waits = StepWaits({"a": told("event", value=3, by="ann")})
    got = await waits.wait("event", "a", {"event": "e"})
    assert (got.value, got.timed_out, got.by, got.at) == (3, False, "ann", datetime.fromtimestamp(1, UTC))
    with pytest.raises(Yielding):
        await waits.wait("timer", "b", {"for_ms": 1})
    (command,) = waits.yielded().commands
    assert (command.slot, command.type) == ("b", pb.COMMAND_TYPE_WAIT)
    late = await StepWaits({"a": told("input", "timed_out")}).wait("input", "a", {})
    assert (late.timed_out, late.value) == (True, None)


@pytest.mark.requirement("step.wait")
async def test_waits_of_one_moment_are_asked_together_and_a_step_does_not_catch_them_in_passing() -> None:
    waits = StepWaits(None)

    async def careless(slot: str) -> None:
        try:
            await waits.wait("input", slot, {"prompt": slot})
        except Exception:
            raise AssertionError("a yield is no error of the step") from None

    with pytest.raises(Yielding):
        await asyncio.gather(careless("a"), careless("b"))
    assert [(c.slot, c.type) for c in waits.yielded().commands] == [("a", pb.COMMAND_TYPE_INPUT), ("b", pb.COMMAND_TYPE_INPUT)]


@pytest.mark.requirement("step.wait")
async def test_a_refused_wait_and_a_slot_that_meant_something_else_fail_the_step() -> None:
    for given, kind in ((told("unreadable", "refused", by="no number"), "WAIT_REFUSED"), (told("timer"), "SLOT_TAKEN")):
        with pytest.raises(StepFailed) as failed:
            await StepWaits({"a": given}).wait("event", "a", {})
        assert (failed.value.failure_class, failed.value.type) == ("validation", kind)


@pytest.mark.requirement("step.wait")
async def test_how_a_wait_for_capacity_ended_is_said_by_the_lease_and_later_by_the_slot() -> None:
    for lapsed, told_ in (
        (False, told("capacity", "open")),
        (True, told("capacity", "open")),
        (False, told("capacity", "timed_out")),
    ):
        answer = await StepWaits({"c": told_}, lapsed).wait("capacity", "c", {})
        assert answer.timed_out == (lapsed or told_["state"] == "timed_out")


def test_slots_are_named_by_the_author_or_by_order() -> None:
    waits = StepWaits(None)
    named = [waits.slot("sleep", ""), waits.slot("sleep", "mine"), waits.slot("sleep", ""), waits.slot("event:e", "")]
    assert named == ["sleep#1", "mine", "sleep#2", "event:e#1"]


def test_times_are_rounded_up_and_say_their_zone() -> None:
    assert [milliseconds(timedelta(microseconds=us)) for us in (-5, 0, 1, 1_000, 1_001)] == [0, 0, 1, 1, 2]
    assert unix_ms(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == 1_000
    assert unix_ms(datetime(1960, 1, 1, tzinfo=UTC)) == 0
    with pytest.raises(StepFailed):
        unix_ms(datetime(2030, 1, 1))
