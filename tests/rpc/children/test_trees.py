"""Trees of runs through launch's public API: what a child may be, how cancel, pause and every end reach all below, what is
paid."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from runway.events.v1 import events_pb2 as ev
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk import workflow

from libs.kernel.refusal import unreachable
from libs.testkit.waiting import wait_until
from services.launch.domain.facts import Version
from services.launch.store.catalogue import CatalogueStore
from tests.rpc.children.room import APPLIED, Room
from tests.rpc.children.trees_room import OPEN, PLAIN, bytes_of, parent, plain, returned, room

__all__ = ["room"]


@pytest.mark.requirement("child.bounded")
async def test_a_child_has_no_more_than_its_parent(room: Room) -> None:
    top = await parent(room, priority=5, run_class="migration", deadline=timedelta(hours=1))
    asked = {"workflow": "child", "priority": 900, "deadline_ms": 9 * 3_600_000, "name": "wide"}
    less = {"workflow": "child", "priority": -3, "deadline_ms": 1000, "capabilities": ["model:small"], "name": "less"}
    wide, narrowed = await room.spawn(top, asked, less)
    above = await room.client.get(top)
    first, second = await room.client.get(wide), await room.client.get(narrowed)
    assert (first.run_class, first.priority, first.deadline) == (above.run_class, 5, above.deadline)
    assert (second.priority, second.deadline.seconds < above.deadline.seconds) == (-3, True)
    assert (first.tenant, first.project, first.root_id, first.depth) == (above.tenant, above.project, top, 1)
    rows = {str(row["run_id"]): row["capabilities"] for row in await room.launch.fetch("SELECT run_id, capabilities FROM run")}
    assert (rows[wide], rows[narrowed]) == (["tool:http.request"], [])
    told = {event.run_launched.run_id.hex(): event.run_launched for event in await room.readiness.wait_for("run_launched", 3)}
    assert list(told[wide.replace("-", "")].capabilities) == ["tool:http.request"]
    assert {fact.launched_by for fact in told.values()} == {"tests"}


@pytest.mark.requirement("child.bounded")
@pytest.mark.requirement("run.retry-fork")
async def test_a_child_that_is_begun_again_has_no_more_than_it_had(room: Room) -> None:
    top = await parent(room)
    asked = [{"workflow": "child", "name": "wide"}, {"workflow": "child", "name": "less", "capabilities": ["model:small"]}]
    children = await room.spawn(top, *asked)
    for run_id in children:
        await room.finish(run_id, "failed")
    await room.settled(*children)
    again = [(await room.client.fork(run_id, ["act"])).run_id for run_id in children]
    rows = {str(row["run_id"]): row["capabilities"] for row in await room.launch.fetch("SELECT run_id, capabilities FROM run")}
    assert [rows[run_id] for run_id in again] == [["tool:http.request"], []]


@pytest.mark.requirement("wf.pin")
async def test_a_version_that_is_published_meanwhile_does_not_divide_the_children_of_one_command(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = CatalogueStore.resolve

    async def published_after(self: CatalogueStore, tenant: str, project: str, name: str) -> Version:
        found = await resolve(self, tenant, project, name)
        if name == "plain":
            await room.client.publish(workflow("plain", steps=[plain], description=f"number {len(asked)}"))
            asked.append(name)
        return found

    asked: list[str] = []
    top = await parent(room)
    monkeypatch.setattr(CatalogueStore, "resolve", published_after)
    made = await room.spawn(top, PLAIN, PLAIN, PLAIN)
    versions = {(await room.client.get(run_id)).workflow.digest for run_id in made}
    assert (len(versions), asked) == (1, ["plain"])


@pytest.mark.requirement("child.bounded")
@pytest.mark.parametrize(
    ("children", "more", "why"),
    [
        ([{"workflow": "nobody"}], {}, "WORKFLOW_UNKNOWN"),
        ([{"workflow": "typed", "input": "text"}], {}, "INPUT_MISFIT"),
        ([{"workflow": "plain", "tenant": "other"}], {}, "SPAWN_UNREADABLE"),
        ([PLAIN] * 1_001, {}, "SPAWN_UNREADABLE"),
        ([PLAIN | {"name": "a"}, PLAIN | {"name": "a"}], {}, "SPAWN_UNREADABLE"),
        ([PLAIN] * 4, {}, "FANOUT_EXCEEDED"),
        ([PLAIN], {"independent": True}, "INDEPENDENT_DENIED"),
        ([PLAIN | {"budget": {"micros": 1_001}}], {}, "BUDGET_EXHAUSTED"),
    ],
)
async def test_what_may_not_be_is_refused_whole(room: Room, children: list[Any], more: dict[str, Any], why: str) -> None:
    run = await room.client.launch("strict", None, budget_micros=1_000)
    assert await room.spawn(run.run_id, *children, **more) == []
    assert await room.refusals(run.run_id) == [why]
    await room.sums()


@pytest.mark.requirement("child.bounded")
async def test_depth_fan_out_and_the_tenants_cap_are_counted_whole(room: Room) -> None:
    run = (await room.client.launch("strict", None)).run_id
    (below,) = await room.spawn(run, {"workflow": "parent"})
    assert await room.spawn(run, PLAIN, PLAIN, PLAIN) == []
    assert len(await room.spawn(run, PLAIN, PLAIN)) == 2
    assert await room.refusals(run) == ["FANOUT_EXCEEDED"]
    assert await room.spawn(below, PLAIN) == []
    assert await room.refusals(below) == ["DEPTH_EXCEEDED"]
    await room.limit_descendants(5)
    top = await parent(room)
    assert await room.spawn(top, PLAIN, PLAIN, PLAIN) == []
    assert len(await room.spawn(top, PLAIN, PLAIN)) == 2
    assert await room.refusals(top) == ["QUOTA_EXCEEDED"]
    (first, _) = await room.client.trees.children(top)
    await room.finish(first.run.run_id)
    await room.settled(first.run.run_id)
    assert len(await room.spawn(top, PLAIN)) == 1
    await room.sums()


@pytest.mark.requirement("child.bounded")
async def test_a_command_is_obeyed_once_in_whatever_order_it_comes(room: Room) -> None:
    top = await parent(room)
    spawn = room.spawn_event(top, [PLAIN | {"budget": {"micros": 100}}, PLAIN], slot="s")
    join = room.join_event(top, groups=["s"], slots=["s"])
    assert await room.tell(join, join) == [APPLIED, APPLIED]
    assert not room.answers(top)
    await asyncio.gather(*(room.tell(spawn, spawn) for _ in range(6)))
    children = [child.run.run_id for child in await room.client.trees.children(top)]
    assert len(children) == 2
    for child in children:
        await room.finish(child, output=7)
    told = await room.answer(top)
    assert (told["met"], told["succeeded"], [one["output"] for one in told["children"]]) == (True, 2, [7, 7])
    assert await room.tell(spawn, join) == [APPLIED, APPLIED]
    assert len(room.answers(top)) == 1
    assert (await room.nodes(top))[0].delegated_micros == 100
    await room.sums()


@pytest.mark.requirement("child.join")
@pytest.mark.parametrize(
    ("policy", "ends", "met"),
    [
        ({"need": "all"}, ["succeeded", "succeeded", "failed"], False),
        ({"need": "all", "on_failure": "ignore"}, ["succeeded", "cancelled", "failed"], True),
        ({"need": 2}, ["succeeded", "failed", "succeeded"], True),
        ({"need": 2}, ["failed", "failed", "succeeded"], False),
        ({"need": 4}, ["succeeded", "succeeded", "succeeded"], False),
    ],
)
async def test_joins_that_wait_for_all_of_them(room: Room, policy: dict[str, Any], ends: list[str], met: bool) -> None:
    top = await parent(room)
    children = await room.spawn(top, PLAIN, PLAIN, PLAIN, slot="s")
    await room.tell(room.join_event(top, groups=["s"], slots=["s"], **policy))
    for child, outcome in list(zip(children, ends, strict=True))[:-1]:
        await room.finish(child, outcome)
    assert not room.answers(top)
    await room.finish(children[-1], ends[-1])
    told = await room.answer(top)
    assert (told["met"], told["total"]) == (met, 3)
    assert [one["outcome"] for one in told["children"]] == ends


@pytest.mark.requirement("child.join")
@pytest.mark.parametrize(
    ("policy", "end", "met"),
    [
        ({"need": "all", "on_failure": "fail", "rest": "cancel"}, "failed", False),
        ({"need": 1, "rest": "cancel"}, "succeeded", True),
    ],
)
async def test_losers_are_cancelled_and_every_point_holds_it_before_the_parent_goes_on(
    room: Room, policy: dict[str, Any], end: str, met: bool
) -> None:
    top = await parent(room)
    children = await room.spawn(top, PLAIN, PLAIN, PLAIN, slot="s")
    await room.tell(room.join_event(top, groups=["s"], slots=["s"], **policy))
    room.scheduler.refuse = unreachable("the scheduler")
    await room.finish(children[0], end)
    assert not room.answers(top), "it is not settled: a point does not answer"
    await quiet(room, children[0])
    for child in children[1:]:
        await wait_until(lambda child=child: _state(room, child, pb.RUN_STATE_CANCELLING), what="a loser that is cancelled")
    await wait_until(lambda: _elsewhere(room, children[1]), what="the other points")
    await quiet(room, children[1])
    assert (await room.client.get(children[1])).state == pb.RUN_STATE_CANCELLED
    assert not room.answers(top), "a point does not hold the cancel of one of them yet"
    room.scheduler.refuse = None
    told = await room.answer(top)
    assert told["met"] is met
    raised = {gate.run_id for request in room.scheduler.raised for gate in request.gates}
    assert {bytes_of(child) for child in children[1:]} <= raised
    losers = await room.settled(*children[1:])
    assert [run.outcome for run in losers] == ["cancelled", "cancelled"]


async def quiet(room: Room, run_id: str) -> None:
    """The scheduler says that nothing of the run is left there."""
    epoch = (await room.client.get(run_id)).epoch
    await room.tell(ev.Event(point_quiesced=ev.PointQuiesced(run_id=bytes_of(run_id), point="scheduler", epoch=epoch)))


async def _elsewhere(room: Room, run_id: str) -> bool:
    """Every point but the scheduler holds the run's end."""
    receipts = (await room.client.get(run_id)).receipts
    return all(receipt.quiesced for receipt in receipts if receipt.point != "scheduler")


@pytest.mark.requirement("child.join")
async def test_an_output_that_the_version_does_not_promise_is_a_failure(room: Room) -> None:
    top = await parent(room)
    good, bad = await room.spawn(top, {"workflow": "typed", "input": 1}, {"workflow": "typed", "input": 2}, slot="s")
    await room.tell(room.join_event(top, groups=["s"], slots=["s"], on_failure="ignore"))
    await room.finish(good, output=5)
    await room.finish(bad, output="text")
    told = await room.answer(top)
    first, second = told["children"]
    assert (first["outcome"], first["output"]) == ("succeeded", 5)
    assert (second["outcome"], second["output"], second["failure"]["class"]) == ("failed", None, "validation")


@pytest.mark.requirement("run.cancel")
@pytest.mark.requirement("child.join")
async def test_a_cancel_reaches_all_below_and_what_is_independent_stays(room: Room) -> None:
    top = await parent(room)
    one, two = await room.spawn(top, {"workflow": "parent", "budget": {"micros": 500}}, PLAIN)
    (leaf,) = await room.spawn(one, {"workflow": "child", "budget": {"micros": 200}})
    (apart,) = await room.spawn(top, PLAIN, independent=True)
    assert await room.spend(leaf, 150)
    answer = await room.client.cancel(top)
    assert answer.phase in (pb.CANCEL_PHASE_ENFORCED, pb.CANCEL_PHASE_QUIESCED)
    assert (answer.descendants.total, answer.descendants.accepted, answer.descendants.enforced) == (3, 3, 3)
    ended = await room.settled(leaf, one, two, top)
    assert {run.outcome for run in ended} == {"cancelled"}
    assert (await room.client.get(apart)).state == OPEN
    again = await room.client.cancel(top)
    assert (again.phase, again.descendants.quiesced) == (pb.CANCEL_PHASE_QUIESCED, 3)
    await wait_until(lambda: returned(room), what="slices that came back")
    await room.sums()


@pytest.mark.requirement("run.terminal")
async def test_a_parent_is_not_terminal_before_its_children(room: Room) -> None:
    top = await parent(room)
    (child,) = await room.spawn(top, PLAIN)
    room.scheduler.quiesced = False
    answer = await room.client.cancel(top)
    assert (answer.phase, answer.descendants.enforced, answer.descendants.quiesced) == (pb.CANCEL_PHASE_ENFORCED, 1, 0)
    epoch = (await room.client.get(top)).epoch
    await room.tell(ev.Event(point_quiesced=ev.PointQuiesced(run_id=bytes_of(top), point="scheduler", epoch=epoch)))
    assert (await room.client.get(top)).state == pb.RUN_STATE_CLOSING
    epoch = (await room.client.get(child)).epoch
    await room.tell(ev.Event(point_quiesced=ev.PointQuiesced(run_id=bytes_of(child), point="scheduler", epoch=epoch)))
    ended = await room.settled(child, top)
    assert [run.state for run in ended] == [pb.RUN_STATE_CANCELLED] * 2


@pytest.mark.requirement("child.join")
@pytest.mark.parametrize("outcome", ["succeeded", "failed"])
async def test_children_that_run_when_their_parent_ends_are_cancelled(room: Room, outcome: str) -> None:
    top = await parent(room)
    (child,) = await room.spawn(top, {"workflow": "parent"})
    (leaf,) = await room.spawn(child, PLAIN)
    (apart,) = await room.spawn(top, PLAIN | {"budget": {"micros": 300}}, independent=True)
    await room.finish(top, outcome)
    ended = await room.settled(leaf, child, top)
    assert [run.outcome for run in ended] == ["cancelled", "cancelled", outcome]
    assert (await room.client.get(apart)).state == OPEN
    await room.sums()
    await room.finish(apart)
    await room.settled(apart)
    await room.sums()
    assert (await room.client.trees.tenant_budget()).reserved_micros == 0


@pytest.mark.requirement("run.pause")
async def test_a_pause_reaches_all_below_and_so_does_the_resume(room: Room) -> None:
    top = await parent(room)
    (child,) = await room.spawn(top, {"workflow": "parent"})
    (leaf,) = await room.spawn(child, PLAIN)
    await room.client.pause(top)
    for run_id in (top, child, leaf):
        await wait_until(lambda run_id=run_id: _state(room, run_id, pb.RUN_STATE_PAUSED), what="a paused run")
    (born,) = await room.spawn(child, PLAIN)
    assert (await room.client.get(born)).state == pb.RUN_STATE_PAUSED
    await room.client.resume(top)
    assert {(await room.client.get(run_id)).state for run_id in (top, child, leaf, born)} == {pb.RUN_STATE_RUNNING}


@pytest.mark.requirement("run.pause")
async def test_a_parent_that_gives_money_for_the_first_time_while_it_pauses_is_paused_in_the_end(room: Room) -> None:
    """From then on it touches the gateway, which was not asked to pause it."""
    top = (await room.client.launch("plain", None, budget_micros=1_000)).run_id
    room.scheduler.quiesced = False
    paused = await room.client.pause(top)
    assert paused.run.state == pb.RUN_STATE_PAUSING
    (child,) = await room.spawn(top, PLAIN | {"budget": {"micros": 300}})
    await room.tell(ev.Event(point_quiesced=ev.PointQuiesced(run_id=bytes_of(top), point="scheduler", epoch=paused.run.epoch)))
    assert (await room.client.get(top)).state == pb.RUN_STATE_PAUSED
    assert (await room.client.get(child)).state == pb.RUN_STATE_PAUSED
    room.scheduler.quiesced = True
    await room.client.resume(top)
    await room.finish(child)
    await room.settled(child)
    await room.finish(top)
    await room.settled(top)
    await room.sums()


@pytest.mark.requirement("run.pause")
async def test_trees_that_are_paused_at_once_pause_each_for_its_own_reason(room: Room) -> None:
    tops = [await parent(room) for _ in range(4)]
    below = [(await room.spawn(top, {"workflow": "parent"}, {"workflow": "parent"})) for top in tops]
    leaves = [[(await room.spawn(child, PLAIN))[0] for child in children] for children in below]
    own = below[3][0]  # asked for by itself, beside the run above it
    asks = [*((top, f"tree {place}") for place, top in enumerate(tops)), (own, "its own")]
    await asyncio.gather(*(room.client.pause(run_id, reason=reason) for run_id, reason in asks))
    for place, (children, leaf) in enumerate(zip(below, leaves, strict=True)):
        for run_id in (*children, *leaf):
            said = [event.detail["reason"] for event in await room.client.events(run_id) if event.kind == "run.pausing"]
            allowed = {f"tree {place}", "its own"} if run_id in (own, leaves[3][0]) else {f"tree {place}"}
            assert [reason in allowed for reason in said] == [True], f"{run_id}: {said}"


async def _state(room: Room, run_id: str, state: Any) -> bool:
    return bool((await room.client.get(run_id)).state == state)
