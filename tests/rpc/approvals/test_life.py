"""An approval from the question to its use, through the public API: who may decide, what is sent, what fails the run."""

import asyncio

import pytest
from runway.gateway.v1 import gateway_service_pb2 as gw
from runway.launch.v1 import launch_service_pb2 as la
from runway_sdk import Context, NotFound, RunwayError, step, workflow
from runway_sdk.approvals import digest_of

from tests.rpc.approvals.room import APPROVED, PENDING, REJECTED, WITHDRAWN, Room, posting

pytestmark = pytest.mark.requirement("fx.approval")


async def test_a_call_waits_for_an_approval_and_uses_it_once(room: Room) -> None:
    async with room.worker(posting()), room.person("rita") as rita:
        run = await room.client.launch("posting")
        (asked,) = await room.asked(run.run_id)
        await room.waiting(run.run_id)
        assert (asked.state, asked.step_key, asked.slot, asked.tool) == (PENDING, "post", "post", "http.request")
        assert (asked.requester, asked.owner, asked.need, asked.workflow) == ("olga", "olga", 1, "posting@1")
        assert room.provider.requests == []
        effect = await room.effect(run.run_id, "post")
        assert (effect.state, effect.dispatches, effect.proposal_digest) == (gw.EFFECT_STATE_PROPOSED, 0, asked.digest)
        shown = await rita.client.approvals.get(asked.approval_id)
        assert digest_of(shown.content) == asked.digest
        decided = await rita.decide(asked.approval_id, reason="looks right")
        assert (decided.approval.state, decided.approval.effective, decided.replayed) == (APPROVED, True, False)
        assert await room.client.result(run.run_id, timeout_s=20) == [200]
        used = await room.used(asked.approval_id)
    assert len(room.provider.asked(f"/post/{run.run_id}")) == 1
    assert [(d.approver, d.decision, d.reason, d.break_glass) for d in used.decisions] == [("rita", 1, "looks right", False)]
    assert await room.log(run.run_id) == ["requested", "decision", "approved", "effective", "consumed"]
    (row,) = await room.gateway.fetch("SELECT consumed_n, standing, approvers FROM approval_certificate")
    assert tuple(row) == (1, 1, 1)
    assert (await room.client.get(run.run_id)).outcome == "succeeded"


async def test_enough_approvers_must_agree_and_each_counts_once(room: Room) -> None:
    flow = posting(need=2, eligible=["rita", "rolf"])
    async with room.worker(flow), room.person("rita") as rita, room.person("rolf") as rolf, room.person("rosa") as rosa:
        run = await room.client.launch("posting")
        (asked,) = await room.asked(run.run_id)
        first = await rita.decide(asked.approval_id)
        assert (first.approval.state, len(first.approval.decisions)) == (PENDING, 1)
        again = await rita.decide(asked.approval_id)
        assert (again.replayed, again.approval.state) == (True, PENDING)
        with pytest.raises(RunwayError) as no:
            await rosa.decide(asked.approval_id)
        assert no.value.reason == "APPROVAL_NOT_ELIGIBLE"
        with pytest.raises(RunwayError) as other:
            await rita.decide(asked.approval_id, approve=False)
        assert other.value.reason == "APPROVAL_CLOSED"
        second = await rolf.decide(asked.approval_id)
        assert second.approval.state == APPROVED
        assert await room.client.result(run.run_id, timeout_s=20) == [200]
    (row,) = await room.gateway.fetch("SELECT approvers FROM approval_certificate")
    assert row["approvers"] == 2


async def test_neither_requester_nor_owner_nor_a_plain_caller_may_decide(room: Room) -> None:
    flow = posting()
    async with room.worker(flow), room.person("lena", scopes=("reviewer", "automation")) as lena:
        async with (
            room.person("olga", scopes=("reviewer", "automation")) as olga,
            room.person("carl", scopes=(), register=False) as carl,
        ):
            run = await lena.client.launch("posting")
            (asked,) = await room.asked(run.run_id)
            assert (asked.requester, asked.owner) == ("lena", "olga")
            for person, reason in ((lena, "APPROVAL_NOT_ELIGIBLE"), (olga, "APPROVAL_NOT_ELIGIBLE"), (carl, "METHOD_DENIED")):
                with pytest.raises(RunwayError) as no:
                    await person.decide(asked.approval_id)
                assert no.value.reason == reason, person.name
            with pytest.raises(RunwayError) as glass:
                await lena.decide(asked.approval_id, break_glass=True, reason="it burns")
            assert glass.value.reason == "APPROVAL_NOT_ELIGIBLE", "a reviewer is no operator"
        async with room.person("otto", scopes=("operator",)) as otto:
            with pytest.raises(RunwayError) as silent:
                await otto.decide(asked.approval_id, break_glass=True)
            assert silent.value.reason == "INVALID_FIELD", "without a reason"
            broken = await otto.decide(asked.approval_id, break_glass=True, reason="it burns")
            assert (broken.approval.state, broken.approval.decisions[0].break_glass) == (APPROVED, True)
        assert await room.client.result(run.run_id, timeout_s=20) == [200]
    events = [event for event in await room.client.events(run.run_id) if event.kind == "approval.decision"]
    assert [(e.actor, e.detail["break_glass"], e.detail["reason"]) for e in events] == [("approver:otto", True, "it burns")]
    (row,) = await room.gateway.fetch("SELECT break_glass FROM approval_certificate")
    assert row["break_glass"] is True


async def test_a_no_fails_the_run_as_policy_and_nothing_is_sent(room: Room) -> None:
    async with room.worker(posting()), room.person("rita") as rita, room.person("rolf") as rolf:
        run = await room.client.launch("posting")
        (asked,) = await room.asked(run.run_id)
        no = await rita.decide(asked.approval_id, approve=False, reason="not on a Friday")
        assert no.approval.state == REJECTED
        final = await room.client.wait(run.run_id, settled=True, timeout_s=20)
        assert (final.outcome, final.failure.failure_class, final.failure.type) == ("failed", "policy", "APPROVAL_REJECTED")
        assert "not on a Friday" in final.failure.message
        assert (await rita.decide(asked.approval_id, approve=False)).replayed
        with pytest.raises(RunwayError) as late:
            await rolf.decide(asked.approval_id)
        assert late.value.reason == "APPROVAL_CLOSED"
    assert room.provider.requests == []
    assert (await room.effect(run.run_id, "post")).state == gw.EFFECT_STATE_NOT_SENT
    assert (await room.client.get(run.run_id)).state == la.RUN_STATE_FAILED


async def test_a_cancelled_run_is_quiet_although_a_call_of_it_was_proposed(room: Room) -> None:
    async with room.worker(posting()), room.person("rita") as rita:
        run = await room.client.launch("posting")
        (asked,) = await room.asked(run.run_id)
        await room.waiting(run.run_id)
        answer = await room.client.cancel(run.run_id)
        assert not answer.effects_in_flight
        final = await room.client.wait(run.run_id, settled=True, timeout_s=20)
        assert (final.outcome, final.state) == ("cancelled", la.RUN_STATE_CANCELLED)
        ended = await room.client.approvals.get(asked.approval_id)
        assert (ended.state, ended.reason) == (WITHDRAWN, "the run is over")
        with pytest.raises(RunwayError) as late:
            await rita.decide(asked.approval_id)
        assert late.value.reason == "APPROVAL_CLOSED"
    assert (await room.effect(run.run_id, "post")).state == gw.EFFECT_STATE_NOT_SENT
    assert room.provider.requests == []


async def test_a_step_asks_by_itself_and_goes_on_with_what_was_said(room: Room) -> None:
    seen: list[str] = []

    @step
    async def release(ctx: Context) -> list[str]:
        given = await ctx.approval("go", "Release 1.2?", {"version": "1.2", "size": 3}, need=2, eligible=["rita", "rolf"])
        seen.append(given.approval_id)
        return list(given.approvers)

    flow = workflow("releasing", steps=[release])
    async with room.worker(flow), room.person("rita") as rita, room.person("rolf") as rolf:
        run = await room.client.launch("releasing")
        (asked,) = await room.asked(run.run_id)
        assert (asked.tool, asked.title, asked.slot) == ("", "Release 1.2?", "go")
        await asyncio.gather(rita.decide(asked.approval_id), rolf.decide(asked.approval_id))
        assert await room.client.result(run.run_id, timeout_s=20) == ["rita", "rolf"]
    assert seen == [asked.approval_id]
    assert await room.gateway.fetchval("SELECT count(*) FROM approval_certificate") == 0


async def test_of_another_tenant_it_is_not_found(room: Room) -> None:
    async with room.worker(posting()), room.person("eve", tenant="evil", scopes=("reviewer", "operator")) as eve:
        run = await room.client.launch("posting")
        (asked,) = await room.asked(run.run_id)
        assert await eve.client.approvals.find() == []
        mine = await room.client.approvals.get(asked.approval_id)
        for call in (
            eve.client.approvals.find(run.run_id),
            eve.client.approvals.get(asked.approval_id),
            eve.client.approvals.decide(mine, eve.key, "eve", approve=True),
            eve.client.approvals.withdraw(asked.approval_id, "mine"),
        ):
            with pytest.raises(NotFound):
                await call
        assert [key.approver for key in await eve.client.approvals.keys()] == ["eve"]
        assert await room.client.approvals.keys() == []
