"""Rules by the class of an effect and by what a run spends in all, from the workflow to the call, through the public API."""

import asyncio
from contextlib import suppress

import pytest
from runway_sdk import ApprovalRule, Context, RunwayError, step, workflow

from tests.rpc.approvals.room import PENDING, Room

pytestmark = pytest.mark.requirement("fx.approval")
TOOL = "http.request"


async def test_effects_of_a_class_wait_whatever_is_called_and_reads_go_on(room: Room) -> None:
    @step(tools=[TOOL], approvals=[ApprovalRule(effects=["non_replayable"]), ApprovalRule(effects=["reconcilable"], need=2)])
    async def act(ctx: Context) -> list[int]:
        target = {"target": "api", "path": f"/act/{ctx.run_id}"}
        read = await ctx.tool(TOOL, {**target, "method": "GET"}, slot="read")
        sent = await ctx.tool(TOOL, {**target, "method": "POST"}, slot="sent", replay="idempotent")
        return [read.value["status"], sent.value["status"]]

    async with room.worker(workflow("acting", steps=[act])), room.person("rita") as rita:
        run = await room.client.launch("acting")
        (asked,) = await room.asked(run.run_id)
        assert (asked.slot, asked.effect_class, asked.need) == ("sent", "idempotent non_replayable", 1)
        assert [request.method for request in room.provider.requests] == ["GET"]
        await rita.decide(asked.approval_id)
        assert await room.client.result(run.run_id, timeout_s=20) == [200, 200]
        await room.used(asked.approval_id)
    assert [request.method for request in room.provider.requests] == ["GET", "POST"]


@pytest.mark.requirement("gw.budget")
async def test_spend_above_a_threshold_waits_for_an_approval_that_lifts_it(room: Room) -> None:
    @step(tools=[TOOL], approvals=[ApprovalRule(["*"], above_total_micros=250)])
    async def spend(ctx: Context) -> int:
        async def call(number: int) -> int:
            arguments = {"target": "api", "method": "POST", "path": f"/spend/{ctx.run_id}/{number}"}
            return int((await ctx.tool(TOOL, arguments, slot=f"n{number}", hold_micros=100)).value["status"])

        return sum(await asyncio.gather(*map(call, range(6))))

    async with room.worker(workflow("spending", steps=[spend])), room.person("rita") as rita:
        run = await room.client.launch("spending", budget_micros=10_000)
        result = asyncio.create_task(room.client.result(run.run_id, timeout_s=60))
        lifts: list[int] = []
        while not result.done():
            for approval in await room.client.approvals.find(run.run_id, states=[PENDING]):
                assert len(room.provider.requests) * 100 <= max([250, *lifts]), "nothing passes what was allowed"
                assert approval.total_micros in (500, 750), approval
                with suppress(RunwayError):  # the run has ended without it: nobody is asked any more
                    await rita.decide(approval.approval_id)
                lifts.append(approval.total_micros)
            await asyncio.wait([result], timeout=0.02)
        assert await result == 6 * 200
    assert len(room.provider.requests) == 6
    used = await room.gateway.fetch("SELECT total FROM approval_certificate WHERE consumed_ms > 0")
    assert {row["total"] for row in used} == {500, 750}
    assert len(used) <= len(lifts) < 6, "not one for each call"
