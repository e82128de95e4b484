"""Rules of approval go down the tree: a child asks by its own version's rules, and by those of the step that spawned it."""

import pytest
from runway_sdk import ApprovalRule, Context, RunwayError, Step, Workflow, step, workflow

from tests.rpc.approvals.room import Room

TOOL = "http.request"


def child(rules: list[ApprovalRule]) -> Workflow:
    @step(tools=[TOOL], approvals=rules)
    async def post(ctx: Context) -> int:
        arguments = {"target": "api", "method": "POST", "path": f"/child/{ctx.run_id}"}
        return int((await ctx.tool(TOOL, arguments, slot="post")).value["status"])

    return workflow("child", steps=[post])


def spawning(rules: list[ApprovalRule]) -> Step:
    @step(tools=[TOOL], approvals=rules)
    async def spawn(ctx: Context) -> object:
        one = await ctx.spawn("child", None, name="only")
        return (await ctx.join(one)).outputs["only"]

    return spawn


@pytest.mark.requirement("fx.approval")
@pytest.mark.requirement("child.bounded")
@pytest.mark.parametrize(
    ("own", "inherited", "need"),
    [
        ([ApprovalRule([TOOL])], [], 1),
        ([], [ApprovalRule(["*"])], 1),
        ([ApprovalRule([TOOL])], [ApprovalRule([TOOL], need=2)], 2),
    ],
    ids=["its own", "its parent's", "the one that needs more"],
)
async def test_a_child_cannot_get_round_a_rule(
    room: Room, own: list[ApprovalRule], inherited: list[ApprovalRule], need: int
) -> None:
    parent = workflow("parent", steps=[spawning(inherited)])
    async with room.worker(child(own), parent), room.person("rita") as rita, room.person("rolf") as rolf:
        async with room.person("lena", scopes=("reviewer", "automation")) as lena:
            run = await lena.client.launch("parent")
            (asked,) = await room.asked("")
            assert (asked.requester, asked.need, asked.run_id != run.run_id) == ("lena", need, True)
            with pytest.raises(RunwayError) as no:
                await lena.decide(asked.approval_id)
            assert no.value.reason == "APPROVAL_NOT_ELIGIBLE", "she launched what spawned it"
        assert room.provider.requests == []
        for person in (rita, rolf)[:need]:
            await person.decide(asked.approval_id)
        assert await room.client.result(run.run_id, timeout_s=30) == 200
    assert [request.path for request in room.provider.requests] == [f"/child/{asked.run_id}"]


@pytest.mark.requirement("fx.approval")
@pytest.mark.requirement("child.bounded")
@pytest.mark.parametrize(
    ("own", "inherited"),
    [
        ([], [ApprovalRule([TOOL], eligible=["rita"])]),
        ([ApprovalRule([TOOL], eligible=["rita"])], [ApprovalRule(["*"])]),
        ([ApprovalRule(["*"]), ApprovalRule([TOOL], eligible=["rita"])], []),
        ([ApprovalRule([TOOL], eligible=["rita", "rolf"])], [ApprovalRule(["*"], eligible=["rita"])]),
    ],
    ids=["its parent's", "its own beside its parent's", "the second of its own", "both"],
)
async def test_whom_a_rule_names_no_other_rule_replaces(
    room: Room, own: list[ApprovalRule], inherited: list[ApprovalRule]
) -> None:
    parent = workflow("parent", steps=[spawning(inherited)])
    async with room.worker(child(own), parent), room.person("rita") as rita, room.person("rolf") as rolf:
        run = await room.client.launch("parent")
        (asked,) = await room.asked("")
        assert list(asked.eligible) == ["rita"]
        with pytest.raises(RunwayError) as no:
            await rolf.decide(asked.approval_id)
        assert no.value.reason == "APPROVAL_NOT_ELIGIBLE"
        await rita.decide(asked.approval_id)
        assert await room.client.result(run.run_id, timeout_s=30) == 200


@pytest.mark.requirement("fx.approval")
@pytest.mark.requirement("child.bounded")
async def test_an_inherited_rule_is_the_one_of_the_step_that_spawned(room: Room) -> None:
    """Another step of the parent has the same rule, for other people: that is none of the child's business."""

    @step(tools=[TOOL], approvals=[ApprovalRule([TOOL], eligible=["rolf"])])
    async def other(ctx: Context, spawn: object) -> object:
        return spawn

    parent = workflow("parent", steps=[other, spawning([ApprovalRule([TOOL], eligible=["rita"])])])
    async with room.worker(child([]), parent), room.person("rita") as rita, room.person("rolf") as rolf:
        run = await room.client.launch("parent")
        (asked,) = await room.asked("")
        assert list(asked.eligible) == ["rita"]
        with pytest.raises(RunwayError) as no:
            await rolf.decide(asked.approval_id)
        assert no.value.reason == "APPROVAL_NOT_ELIGIBLE"
        await rita.decide(asked.approval_id)
        assert await room.client.result(run.run_id, timeout_s=30) == 200
