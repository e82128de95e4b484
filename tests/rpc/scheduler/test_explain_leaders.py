"""Tickets explained at any replica: by the leader of their shard, and by their rows where nobody leads."""

import asyncio
from typing import Any
from uuid import UUID

import pytest
from runway.internal.scheduler.v1 import scheduler_internal_pb2 as pb
from runway.internal.scheduler.v1 import scheduler_internal_pb2_grpc

from libs.rpc.channels import open_channel
from libs.testkit.waiting import wait_until
from tests.rpc.scheduler.calls import claim, complete
from tests.rpc.scheduler.harness import SECRET, Replica, World, new_run
from tests.rpc.scheduler.test_holds import run_led_by, two


async def ask(replica: Replica, run_id: UUID, *step_keys: str) -> list[pb.TicketExplained]:
    channel = open_channel(replica.host.addresses.control, secret=SECRET)
    replica.channels.append(channel)
    stub = scheduler_internal_pb2_grpc.SchedulerInternalServiceStub(channel)
    request = pb.ExplainTicketsRequest(run_id=run_id.bytes, step_keys=step_keys)
    return list((await stub.ExplainTickets(request, timeout=10)).tickets)


def codes(ticket: pb.TicketExplained) -> list[str]:
    return [blocker.code for blocker in ticket.blockers]


@pytest.mark.requirement("run.explain")
async def test_any_replica_answers_as_the_leader_of_the_shard(world: World) -> None:
    one, other = await two(world)
    run_id = run_led_by(other)
    await world.ready(one, run_id)
    assert await claim(other.worker(), handlers=["demo.other@1"], wait_ms=0) == []
    answers = [await ask(replica, run_id) for replica in (one, other)]
    assert [codes(answer[0]) for answer in answers] == [["NO_WORKER_CARRIES_BUILD"]] * 2
    assert [answer[0].position.line_length for answer in answers] == [1, 1], "only its leader has it in a queue"
    assert await claim(one.worker(), capabilities=["x"], handlers=["demo.work@1"], slots=4, wait_ms=5_000)
    (leased,) = await ask(one, run_id, "s")
    assert (leased.standing, codes(leased), leased.worker_id) == (pb.TICKET_STANDING_LEASED, [], "w1")
    assert await ask(one, new_run()) == []


@pytest.mark.requirement("run.explain")
async def test_without_a_leader_the_rows_say_what_they_can(world: World) -> None:
    replica = await world.replica()
    run_id = new_run()
    await world.ready(replica, run_id)
    assert codes((await ask(replica, run_id))[0]) == ["NO_WORKER_CARRIES_BUILD"]
    replica.book.drop(range(64))
    (told,) = await ask(replica, run_id)
    assert codes(told) == ["NO_LEADER"]
    await world.hand.execute("UPDATE run_gate SET epoch = epoch + 1, mode = 1")
    assert codes((await ask(replica, run_id))[0]) == ["RUN_PAUSED", "NO_LEADER"]


@pytest.mark.requirement("run.explain")
async def test_an_end_that_a_point_has_not_acknowledged_is_named(world: World) -> None:
    replica = await world.replica()
    run_id = new_run()
    await world.ready(replica, run_id, points=1)
    (lease,) = await claim(replica.worker())
    world.gateway.open.clear()
    failure: Any = {"failure": {"failure_class": "transient", "message": "m", "type": "t"}}
    assert (await complete(replica.worker(), lease.lease_token, **failure)).recorded
    (told,) = await ask(replica, run_id)
    assert (told.standing, codes(told)) == (pb.TICKET_STANDING_ENDING, ["RAISE_PENDING"])
    assert told.blockers[0].message == "it waits until gateway confirmed that what its attempt may still do is ended"
    world.gateway.open.set()
    await world.finished(run_id)
    (told,) = await ask(replica, run_id, "s")
    assert (told.standing, codes(told)) == (pb.TICKET_STANDING_OVER, [])


@pytest.mark.requirement("run.explain")
async def test_many_steps_are_planned_for_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from services.scheduler.domain import explain

    replica = await world.replica()
    run_id = new_run()
    for number in range(20):
        await world.ready(replica, run_id, f"s{number:02}", requires=["gpu"] if number % 2 else [])
    waiting = asyncio.create_task(claim(replica.worker(), handlers=["demo.work@1", "x@1"], slots=1, wait_ms=200))
    await waiting
    plans = []
    real = explain.play
    monkeypatch.setattr(explain, "play", lambda *given: plans.append(1) or real(*given))
    await wait_until(lambda: len(replica.book.ready) == 19, what="one is granted")
    told = await ask(replica, run_id)
    assert len(told) == 20
    assert {tuple(codes(one)) for one in told if one.standing == pb.TICKET_STANDING_WAITING and int(one.step_key[1:]) % 2} == {
        ("NO_WORKER_HAS_LABELS",)
    }
    places = sorted(one.position.ahead_in_line for one in told if one.HasField("position") and int(one.step_key[1:]) % 2 == 0)
    assert places == list(range(9))
    assert plans == [1]
