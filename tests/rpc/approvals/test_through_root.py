"""A child asks through its root: there its approvals and questions are listed, logged and explained, and nobody on the way
decides."""

import asyncio
from typing import Any
from uuid import UUID

import grpc
import pytest
from runway.events.v1 import events_pb2 as ev
from runway.internal.inbox.v1 import inbox_pb2
from runway.launch.v1 import approval_service_pb2 as pb
from runway.launch.v1 import approval_service_pb2_grpc
from runway.launch.v1 import launch_service_pb2 as la
from runway.readiness.v1 import readiness_service_pb2 as rd
from runway_sdk import ApprovalRule, Child, Context, RunwayError, Workflow, step, workflow

from libs.testkit.waiting import wait_until
from tests.rpc.approvals.room import PENDING, Room

TOOL = "http.request"
TOKENS: list[bytes] = []


@step(tools=[TOOL], approvals=[ApprovalRule([TOOL])])
async def post(ctx: Context) -> int:
    TOKENS.append(ctx._token())
    arguments = {"target": "api", "method": "POST", "path": f"/leaf/{ctx.run_id}"}
    return int((await ctx.tool(TOOL, arguments, slot="post")).value["status"])


@step
async def ask(ctx: Context) -> Any:
    first = await ctx.input("Which colour?", slot="colour")
    return [first.value, (await ctx.input("How many?", slot="number")).value]


def spawning(name: str, of: str) -> Workflow:
    @step(key="spawn", tools=[TOOL])
    async def spawn(ctx: Context) -> object:
        one = await ctx.spawn(of, None, name="only")
        return (await ctx.join(one)).outputs["only"]

    return workflow(name, steps=[spawn])


POSTS, ASKS = workflow("posts", steps=[post]), workflow("asks", steps=[ask])
TOP, MIDDLE, ASKING = spawning("top", "middle"), spawning("middle", "posts"), spawning("asking", "asks")


async def heard(room: Room, run_id: str, kind: str) -> la.RunEvent:
    """The first entry of this kind that a watcher of the run is told."""
    async for item in room.client.watch(run_id):
        if item.WhichOneof("item") == "event" and item.event.kind == kind:
            return item.event
    raise AssertionError(f"the run ended without {kind}")


async def logged(room: Room, run_id: str, kind: str, count: int = 1) -> list[la.RunEvent]:
    """Entries of this kind in a run's log, once there are so many."""

    async def there() -> list[la.RunEvent] | None:
        found = [event for event in await room.client.events(run_id) if event.kind == kind]
        return found if len(found) >= count else None

    found = await wait_until(there, timeout_s=20, what=f"{count} entries {kind}")
    assert found is not None
    return found


@pytest.mark.requirement("child.approval")
@pytest.mark.requirement("fx.approval")
async def test_a_childs_approval_stands_under_its_root(room: Room) -> None:
    async with (
        room.person("mona", scopes=("reviewer", "automation")) as mona,
        room.person("lena", scopes=("reviewer", "automation")) as lena,
        room.person("agent", scopes=("worker", "automation"), register=False) as agent,
        room.person("rita", scopes=("reviewer", "automation")) as rita,
    ):
        await mona.client.publish(MIDDLE)
        async with room.worker(TOP, MIDDLE, POSTS):
            root = (await lena.client.launch("top")).run_id
            watching = asyncio.create_task(heard(room, root, "child.approval_requested"))
            other = (await rita.client.launch("posts")).run_id
            (beside,) = await room.asked(other)
            assert beside.root_run_id == other
            (asked,) = await room.asked(root)
            middle = next(c.run.run_id for c in await room.client.trees.children(root))
            assert (asked.root_run_id, asked.step_key, asked.requester) == (root, "post", "lena")
            assert asked.run_id not in (root, middle)
            assert sorted(asked.owners_above) == ["mona", "olga"]
            assert [one.approval_id for one in await room.client.approvals.find(asked.run_id)] == [asked.approval_id]
            assert [one.approval_id for one in await room.client.approvals.find(root, states=[PENDING])] == [asked.approval_id]
            assert [one.approval_id for one in await room.client.approvals.find(other)] == [beside.approval_id]
            assert await room.client.approvals.find(middle) == []

            assert (await asyncio.wait_for(watching, 20)).detail["approval_id"] == asked.approval_id, (
                "who watches the root learns of it"
            )
            (entry,) = await logged(room, root, "child.approval_requested")
            assert (entry.detail["child_run_id"], entry.detail["approval_id"]) == (asked.run_id, asked.approval_id)
            said = [one for one in (await room.client.explain(root)).blockers if one.code == "APPROVAL"]
            assert [(one.detail["approval_id"], one.detail["child_run_id"]) for one in said] == [
                (asked.approval_id, asked.run_id)
            ]
            assert asked.run_id in said[0].message
            assert f"runway approval approve {asked.approval_id}" in said[0].remedy
            assert [one.code for one in (await room.client.explain(middle)).blockers] == []

            for person, why in ((lena, "launched the run"), (mona, "published a workflow above it")):
                with pytest.raises(RunwayError) as no:
                    await person.decide(asked.approval_id)
                assert no.value.reason == "APPROVAL_NOT_ELIGIBLE"
                assert why in str(no.value)
            with pytest.raises(RunwayError) as no:
                await agent.decide(asked.approval_id)
            assert no.value.reason == "METHOD_DENIED"
            await refuses_a_lease(room, asked)
            assert room.provider.requests == []
            await rita.decide(asked.approval_id)
            assert await room.client.result(root, timeout_s=30) == 200
            assert len(await logged(room, root, "child.approval_requested")) == 1


async def refuses_a_lease(room: Room, asked: pb.Approval) -> None:
    """The lease of the attempt that waits, and no key: nobody who may decide."""
    async with grpc.aio.insecure_channel(room.host.addresses.public) as channel:
        stub = approval_service_pb2_grpc.ApprovalServiceStub(channel)
        request = pb.DecideApprovalRequest(
            approval_id=asked.approval_id, decision=pb.DECISION_APPROVE, key_id="k", signature=bytes(64)
        )
        with pytest.raises(grpc.aio.AioRpcError) as no:
            await stub.DecideApproval(request, metadata=(("runway-lease-bin", TOKENS[-1]),))
    assert no.value.code() == grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.requirement("child.approval")
@pytest.mark.requirement("run.input")
async def test_a_childs_question_stands_under_its_root(room: Room) -> None:
    async with (
        room.worker(ASKING, ASKS),
        room.person("agent", scopes=("worker", "automation"), register=False) as agent,
        room.person("rita", scopes=("reviewer",)) as rita,
    ):
        root = (await agent.client.launch("asking")).run_id
        beside = (await agent.client.launch("asking")).run_id
        first = (await logged(room, root, "child.input_requested"))[0]
        (question,) = await room.client.inputs(root)
        assert (question.root_run_id, question.step_key, question.slot) == (root, "ask", "colour")
        assert question.run_id != root
        assert first.detail["child_run_id"] == question.run_id
        assert (first.detail["child_step"], first.detail["prompt"]) == ("ask", "Which colour?")
        assert [one.run_id for one in await room.client.inputs(question.run_id)] == [question.run_id]
        await logged(room, beside, "child.input_requested")
        assert {one.root_run_id for one in await room.client.inputs()} == {root, beside}
        (other,) = await room.client.inputs(beside)

        (said,) = (await room.client.explain(root)).blockers
        assert (said.code, said.detail["reason"], said.detail["child_run_id"]) == (
            "WAITS_FOR",
            "user_input",
            question.run_id,
        )
        assert f"runway run answer {question.run_id}" in said.remedy
        assert "Which colour?" in said.message

        with pytest.raises(RunwayError) as no:
            await agent.client.answer(question.run_id, "blue")
        assert no.value.reason == "METHOD_DENIED"
        await rita.client.answer(question.run_id, "blue")
        entries = await logged(room, root, "child.input_requested", 2)
        assert [entry.detail["slot"] for entry in entries] == ["colour", "number"], "one entry a question"
        again = ev.InputAsked(
            run_id=UUID(question.run_id).bytes,
            root_run_id=UUID(root).bytes,
            step_key="ask",
            slot="colour",
            prompt="Which colour?",
            asked_ms=1,
        )
        event = ev.Event(event_id=bytes(16), at_ms=1, input_asked=again)
        told = inbox_pb2.DeliverRequest(service="launch", events=[event.SerializeToString()])
        answer = await room.host.peers.deliver("launch", told)
        assert answer.verdicts[0].verdict == inbox_pb2.VERDICT_APPLIED
        done = await rita.client.answer(root, 3)
        assert (done.input.run_id, done.input.slot) == (question.run_id, "number"), "the only one that is open below it"
        assert await room.client.result(root, timeout_s=30) == ["blue", 3]
        assert len(await logged(room, root, "child.input_requested")) == 2, "a repeat says nothing new"
        states = [one.state for one in await room.client.inputs(root)]
        assert states == [rd.INPUT_STATE_ANSWERED] * 2
        assert (await room.client.explain(beside)).blockers[0].detail["child_run_id"] == other.run_id
        await room.client.cancel(beside)


@pytest.mark.requirement("child.approval")
async def test_pages_of_a_roots_questions_miss_none(room: Room) -> None:
    @step(key="spawn")
    async def spawn(ctx: Context) -> object:
        many = await ctx.spawn_many([Child("asks", None, name=f"c{n}") for n in range(3)])
        return (await ctx.join(many)).outputs

    async with room.worker(workflow("wide", steps=[spawn]), ASKS):
        root = (await room.client.launch("wide")).run_id
        await logged(room, root, "child.input_requested", 3)
        found: list[str] = []
        token = ""
        while True:
            page = await room.client._call(
                room.client._readiness.ListInputs, rd.ListInputsRequest(run_id=root, page_size=1, page_token=token)
            )
            found += [one.run_id for one in page.inputs]
            token = page.next_page_token
            if not token:
                break
        assert len(found) == len(set(found)) == 3
        assert len((await room.client.explain(root)).blockers) == 3
        async with room.person("rita") as rita:
            with pytest.raises(RunwayError, match="which question below it") as no:
                await rita.client.answer(root, "blue")
            assert no.value.reason == "INVALID_FIELD"
        async with room.person("eve", tenant="other", register=False) as eve:
            with pytest.raises(RunwayError) as no:
                await eve.client.answer(root, "blue")
            assert no.value.reason == "NOT_FOUND", "what is below it is not named to a stranger"
        await room.client.cancel(root)
