"""Waits behind readiness' inbox, on real PostgreSQL: repeats, reordering, races, clocks, replicas. The scheduler is played by the test."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from runway.launch.v1 import launch_service_pb2 as pb
from runway.readiness.v1 import readiness_service_pb2 as rd
from runway_sdk import RunwayError
from runway_sdk.values import from_value, to_value

from libs.pg import Queries
from libs.testkit.hosts import Peer, running_host
from libs.testkit.waiting import wait_until
from services.readiness.app.take_waits import correlation_key
from tests.rpc.waits.room import APPLIED, HOUR_MS, INPUT, RETRY, WAIT, Room, asks, room, yields

_Q = Queries.load(Path(__file__).parents[3] / "services" / "readiness" / "store" / "sql" / "waits.sql")
__all__ = ["room"]
KEPT_20_S = {"RUNWAY_RETENTION_MS": "20000", "RUNWAY_READINESS_SIGNAL_KEEP_MS": "20000"}
"""And looked at every two seconds, so that a test sees rows go."""


@pytest.mark.requirement("step.wait")
async def test_a_yield_that_overtakes_what_it_asks_comes_again(room: Room) -> None:
    run = await room.launch()
    assert await room.tell(yields(run, 1, "nap")) == [RETRY]
    assert (await room.state(run)).state == rd.STEP_STATE_READY
    assert await room.tell(asks(run, "nap", {"for_ms": HOUR_MS})) == [APPLIED]
    assert await room.tell(yields(run, 1, "nap")) == [APPLIED]
    assert (await room.state(run)).wait_reason == "timer"
    other = await room.launch()
    late_first = [yields(other, 1, "nap"), asks(other, "nap", {"for_ms": HOUR_MS})]
    assert await room.tell(*late_first) == [APPLIED, APPLIED], "in one delivery the order does not matter"
    assert (await room.state(other)).state == rd.STEP_STATE_WAITING
    unknown = str(UUID(int=(room.clock.now_ms() << 80) | 7))
    assert await room.tell(asks(unknown, "nap", {"for_ms": 1})) == [RETRY], "its launch may still come"


@pytest.mark.requirement("step.wait")
async def test_repeated_commands_and_yields_change_nothing_and_the_first_command_of_a_slot_stands(room: Room) -> None:
    run = await room.launch()
    command, yielded = asks(run, "nap", {"for_ms": 10_000}), yields(run, 1, "nap")
    for _ in range(3):
        assert await room.tell(command, yielded) == [APPLIED, APPLIED]
        assert await room.tell(asks(run, "nap", {"for_ms": 1}), asks(run, "nap", {"event": "other"})) == [APPLIED] * 2
    assert [tuple(row) for row in await room.db.fetch("SELECT kind, due_ms - asked_ms FROM wait")] == [(1, 10_000)]
    version = (await room.state(run)).version
    room.clock.advance(9_999)
    await room.tell(yielded)
    assert ((await room.state(run)).state, (await room.state(run)).version) == (rd.STEP_STATE_WAITING, version)
    room.clock.advance(2_000)  # rows are looked at once a second
    told = await room.ticket(run, 2)
    assert told["waits"]["nap"]["state"] == "done"
    await room.tell(command, yielded)
    assert ((await room.state(run)).state, len(room.tickets(run))) == (rd.STEP_STATE_READY, 2)
    await room.tell(yields(run, 2, "nap"))
    assert "nap" in (await room.ticket(run, 3))["waits"], "a slot that has ended lets the step go on at once"


@pytest.mark.requirement("step.wait")
async def test_clocks_that_jump_fire_no_timer_twice_and_lose_none(room: Room) -> None:
    runs = [await room.launch() for _ in range(6)]
    for number, run in enumerate(runs):
        await room.tell(asks(run, "nap", {"for_ms": (number + 1) * HOUR_MS}), yields(run, 1, "nap"))
    room.clock.jump(2 * HOUR_MS)  # the first two fire early
    room.clock.advance(2_000)
    for run in runs[:2]:
        await room.ticket(run, 2)
    room.clock.jump(-2 * HOUR_MS)
    room.clock.advance(5_000)
    assert [(await room.state(run)).state for run in runs] == [rd.STEP_STATE_READY] * 2 + [rd.STEP_STATE_WAITING] * 4
    room.clock.jump(-2 * HOUR_MS)
    room.clock.advance(5_000)
    for _ in range(10):
        room.clock.advance(HOUR_MS)
        await asyncio.sleep(0)
    for run in runs:
        await room.ticket(run, 2)
    assert [len(room.tickets(run)) for run in runs] == [2] * 6, "each woke once"


@pytest.mark.requirement("step.wait")
async def test_an_event_and_a_timeout_have_one_winner(room: Room) -> None:
    ends = []
    for number in range(12):
        run = await room.launch()
        await room.tell(asks(run, "e", {"event": "go", "timeout_ms": 1_000}), yields(run, 1, "e"))
        room.clock.advance(999 + number % 3)  # before, at and after the moment
        told = await room.client.signal("go", number, run_id=run)
        room.clock.advance(2_000)
        wait = (await room.ticket(run, 2))["waits"]["e"]
        assert (wait["state"], wait["value"]) == (("done", number) if told.used else ("timed_out", None))
        assert len(room.tickets(run)) == 2
        ends.append(told.used)
    assert ends == [True, False, False] * 4, "at its time a wait is over, whether or not anybody has noted it"
    kept = await room.db.fetchval("SELECT count(*) FROM signal WHERE used_ms = 0")
    assert kept == ends.count(False)


@pytest.mark.requirement("step.wait")
async def test_events_and_timeouts_at_once_from_two_processes_wake_each_step_once(room: Room) -> None:
    runs = [await room.launch() for _ in range(40)]
    for run in runs:
        await room.tell(asks(run, "e", {"event": "go", "timeout_ms": 1_000}), yields(run, 1, "e"))
    async with AsyncExitStack() as stack:
        twin = await stack.enter_async_context(
            running_host(["readiness"], room.urls, peers=[Peer("scheduler"), Peer("launch")], clock=room.clock)
        )
        assert twin is not room.host
        room.clock.advance(998)
        early, racing = (
            [room.client.signal("go", 1, run_id=run, event_id=f"{run}{n}") for run in part for n in range(3)]
            for part in (runs[:20], runs[20:])
        )
        in_time = await asyncio.gather(*early)
        assert sorted(answer.run_id for answer in in_time if answer.used) == sorted(runs[:20]), (
            "of three events each wait used one"
        )

        async def tick() -> None:
            for _ in range(4):
                await asyncio.sleep(0)
                room.clock.advance(1)

        answers, _ = await asyncio.gather(asyncio.gather(*racing), tick())
        room.clock.advance(5_000)

        async def all_ready() -> bool:
            return await room.db.fetchval("SELECT count(*) FROM step WHERE state = 2 AND ticket_sequence = 2") == len(runs)

        await wait_until(all_ready, what="every step woken once")
    used = [answer.run_id for answer in (*in_time, *answers) if answer.used]
    assert len(used) == len(set(used)), "no wait used two events"
    rows = await room.db.fetch("SELECT run_id, state FROM wait")
    assert {str(row["run_id"]) for row in rows if row["state"] == 2} == set(used)
    assert all(row["state"] in (2, 3) for row in rows)


@pytest.mark.requirement("step.wait")
async def test_an_event_may_come_before_its_wait_and_even_before_its_run(room: Room) -> None:
    run_id = UUID(int=(room.clock.now_ms() << 80) | 9)
    first = await room.client.signal("go", "early", correlation="c")
    assert not first.used
    room.clock.advance(1)
    run = await room.launch()
    await room.client.signal("go", "by run", run_id=run, correlation="c")
    await room.tell(asks(run, "a", {"event": "go", "correlation": "c"}), yields(run, 1, "a"))
    assert (await room.ticket(run, 2))["waits"]["a"]["value"] == "early", "the oldest that fits"
    await room.tell(asks(run, "b", {"event": "go", "correlation": "c"}), asks(run, "c", {"event": "go", "correlation": "c"}))
    await room.tell(yields(run, 2, "b", "c"))
    assert (await room.ticket(run, 3))["waits"]["b"]["value"] == "by run"
    assert await room.db.fetchval("SELECT count(*) FROM wait WHERE state = 1") == 1
    with pytest.raises(RunwayError) as refused:
        await room.client.signal("go", 1, run_id=str(run_id))
    assert refused.value.reason == "NOT_FOUND"


@pytest.mark.requirement("step.wait")
async def test_an_event_that_names_no_run_and_a_wait_that_begins_never_miss_each_other(room: Room) -> None:
    runs = [await room.launch() for _ in range(30)]

    async def begin(run: str) -> None:
        await room.tell(asks(run, "e", {"event": "go", "correlation": run}), yields(run, 1, "e"))

    calls = [call for run in runs for call in (begin(run), room.client.signal("go", run, correlation=run))]
    await asyncio.gather(*calls)
    for run in runs:
        assert (await room.ticket(run, 2))["waits"]["e"]["value"] == run


BLOCKED = (
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database"
)
BLOCKED += " WHERE datname = current_database())"


async def blocked_or_done(room: Room, task: "asyncio.Task[Any]") -> None:
    async def seen() -> bool:
        return task.done() or await room.db.fetchval(BLOCKED) > 0

    await wait_until(seen, what="somebody who waits for the lock, or does not")


@pytest.mark.requirement("step.wait")
async def test_whoever_comes_second_sees_who_has_not_committed_yet(room: Room) -> None:
    """The two halves of the race, each held open by hand as another process would."""
    run = await room.launch()
    other = await asyncpg.connect(room.urls["readiness"])
    try:
        async with other.transaction():
            await other.fetch(_Q.lock_correlations.sql, [correlation_key("go", "c")])
            signal = (
                ["acme"],
                ["e1"],
                ["default"],
                [None],
                ["go"],
                ["c"],
                [to_value("held").SerializeToString()],
                [b""],
                [1],
                ["me"],
            )
            await other.fetch(_Q.add_signals.sql, *signal)
            asking = asyncio.create_task(room.tell(asks(run, "a", {"event": "go", "correlation": "c"}), yields(run, 1, "a")))
            await blocked_or_done(room, asking)
        assert await asking == [APPLIED, APPLIED]
        assert (await room.ticket(run, 2))["waits"]["a"]["value"] == "held"
        async with other.transaction():
            await other.fetch(_Q.lock_correlations.sql, [correlation_key("go", "c")])
            wait = (
                [UUID(run)],
                ["only"],
                ["b"],
                ["acme"],
                ["default"],
                [2],
                [1],
                ["go"],
                ["c"],
                [0],
                [b""],
                [1],
                [b""],
                [0],
                [""],
                [0],
                [None],
            )
            await other.fetch(_Q.add_waits.sql, *wait)
            telling = asyncio.create_task(room.client.signal("go", "then", correlation="c"))
            await blocked_or_done(room, telling)
        assert (await telling).slot == "b"
    finally:
        await other.close()


@pytest.mark.requirement("step.wait")
async def test_what_cannot_be_read_ends_the_wait_as_refused(room: Room) -> None:
    wrong: list[tuple[Any, int]] = [
        ({}, WAIT),
        ("soon", WAIT),
        ({"for_ms": -1}, WAIT),
        ({"for_ms": 1, "event": "e"}, WAIT),
        ({"event": ""}, WAIT),
        ({"event": "e" * 201}, WAIT),
        ({"until_ms": "tomorrow"}, WAIT),
        ({"for_ms": 10**15}, WAIT),
        ({"prompt": 3}, INPUT),
        ({"prompt": "?", "schema": []}, INPUT),
        ({"prompt": "?", "schema": {"type": "nonsense"}}, INPUT),
    ]
    run = await room.launch()
    for number, (payload, kind) in enumerate(wrong):
        slot = f"s{number}"
        assert await room.tell(asks(run, slot, payload, kind), yields(run, number + 1, slot)) == [APPLIED, APPLIED]
        told = (await room.ticket(run, number + 2))["waits"][slot]
        assert told["state"] == "refused", payload
        assert told["by"], payload


@pytest.mark.requirement("step.wait")
@pytest.mark.parametrize("room", [KEPT_20_S], indirect=True, ids=["kept-20-s"])
async def test_a_cancel_ends_the_wait_and_rows_go_with_their_run(room: Room) -> None:
    run = await room.launch()
    await room.tell(asks(run, "e", {"event": "go", "correlation": "c", "timeout_ms": 1_000}), yields(run, 1, "e"))
    await room.client.signal("go", 1, run_id=run, correlation="other")
    assert (await room.client.cancel(run)).run.state in (pb.RUN_STATE_CANCELLING, pb.RUN_STATE_CANCELLED, pb.RUN_STATE_CLOSING)

    async def closed() -> bool:
        return (await room.state(run)).state == rd.STEP_STATE_CANCELLED

    await wait_until(closed, what="the step's end")
    room.clock.advance(10_000)
    assert not (await room.client.signal("go", 2, correlation="c", event_id="late")).used
    assert await room.tell(asks(run, "f", {"for_ms": 1}), yields(run, 1, "f")) == [APPLIED, APPLIED]
    assert len(room.tickets(run)) == 1, "nothing of it starts again"
    store = room.db
    assert await store.fetchval("SELECT count(*) FROM wait WHERE run_id = $1", UUID(run)) == 1
    room.clock.advance(31 * 24 * HOUR_MS)

    async def forgotten() -> bool:
        waits = await store.fetchval("SELECT count(*) FROM wait")
        return waits + await store.fetchval("SELECT count(*) FROM signal") == 0

    await wait_until(forgotten, timeout_s=20, what="rows that go with their run")


@pytest.mark.requirement("run.input")
async def test_a_hundred_answers_at_once_have_one_winner(room: Room) -> None:
    run = await room.launch()
    question = {"prompt": "Which?", "schema": {"type": "integer"}}
    await room.tell(asks(run, "q", question, INPUT), asks(run, "q", {"prompt": "Other?"}, INPUT), yields(run, 1, "q"))
    assert [item.prompt for item in await room.client.inputs(run)] == ["Which?"]

    async def answer(number: int) -> int | None:
        try:
            done = await room.client.answer(run, number % 10)
        except RunwayError as refused:
            reasons.add(refused.reason)
            return None
        return int(from_value(done.input.answer))

    reasons: set[str] = set()
    told = [said for said in await asyncio.gather(*(answer(number) for number in range(100))) if said is not None]
    assert reasons == {"INPUT_CLOSED"}
    assert (len(told), len(set(told))) == (10, 1), "the winner, and those who said the same"
    assert (await room.ticket(run, 2))["waits"]["q"]["value"] == told[0]
    await room.tell(yields(run, 2))
    assert (await room.ticket(run, 3))["waits"]["q"]["by"] == "tests", "also a later attempt is given it"


@pytest.mark.requirement("run.input")
async def test_several_questions_are_answered_by_name_and_listed_in_pages(room: Room) -> None:
    run = await room.launch()
    questions = [asks(run, f"q{number}", {"prompt": str(number)}, INPUT) for number in range(5)]
    await room.tell(*questions, yields(run, 1, *(f"q{number}" for number in range(5))))
    with pytest.raises(RunwayError) as refused:
        await room.client.answer(run, 1)
    assert refused.value.reason == "INVALID_FIELD"
    assert (await room.client.answer(run, 1, step_key="only", slot="q3")).input.slot == "q3"
    stub = room.client._readiness
    found: list[str] = []
    token = ""
    while True:
        page = await room.client._call(stub.ListInputs, rd.ListInputsRequest(page_size=2, page_token=token))
        found += [item.slot for item in page.inputs]
        token = page.next_page_token
        if not token:
            break
    assert found == ["q0", "q1", "q2", "q4"]


@pytest.mark.requirement("step.wait")
async def test_a_step_that_has_waited_for_more_than_a_ticket_carries_fails(room: Room) -> None:
    run = await room.launch()
    count = 70
    slots = [f"e{number}" for number in range(count)]
    await room.tell(*(asks(run, slot, {"event": slot}) for slot in slots))
    await asyncio.gather(*(room.client.signal(slot, "x" * 65_000, run_id=run) for slot in slots))
    with pytest.raises(RunwayError) as refused:
        await room.client.signal("big", "x" * 66_000, run_id=run)
    assert refused.value.reason == "TOO_LARGE"
    await room.tell(yields(run, 1, *slots))
    final = await room.client.wait(run, timeout_s=20)
    assert (final.failure.failure_class, final.failure.type) == ("validation", "TOO_LARGE")
