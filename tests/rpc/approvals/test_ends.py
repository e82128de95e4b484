"""How approvals end without being used, through the public API: stale, withdrawn, expired; and what a pause does to them."""

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from runway.launch.v1 import approval_service_pb2 as pb
from runway.launch.v1 import launch_service_pb2 as la
from runway_sdk import ApproverKey, Context, RunwayError, step, workflow

from libs.testkit.clocks import ManualClock
from libs.testkit.waiting import wait_until
from tests.rpc.approvals.room import APPROVED, EXPIRED, PENDING, REJECTED, STALE, WITHDRAWN, Room, posting

pytestmark = pytest.mark.requirement("fx.approval")
TAKEN_BACK, TOO_LATE = pb.WITHDRAWAL_OUTCOME_WITHDRAWN, pb.WITHDRAWAL_OUTCOME_ALREADY_CONSUMED


async def test_a_changed_proposal_makes_what_was_approved_stale(room: Room) -> None:
    said: list[int] = []

    def bodies(_slot: str) -> dict[str, int]:
        said.append(min(len(said) + 1, 2))
        return {"amount": said[-1]}

    async with room.worker(posting(bodies=bodies)), room.person("rita") as rita, room.person("rolf") as rolf:
        run = await room.client.launch("posting")
        (first,) = await room.asked(run.run_id)
        assert (await rita.decide(first.approval_id)).approval.state == APPROVED
        first, second = await room.asked(run.run_id, 2)
        assert (first.state, second.state) == (STALE, PENDING)
        assert (first.digest != second.digest, second.proposal_version) == (True, first.proposal_version + 1)
        assert room.provider.requests == []
        with pytest.raises(RunwayError) as no:
            await rolf.decide(first.approval_id)
        assert no.value.reason == "APPROVAL_STALE"

        async def taken_back() -> bool:
            return await room.gateway.fetchval("SELECT bool_and(standing = 2) FROM approval_certificate")

        await wait_until(taken_back, what="the gateway holds the stale one no more")
        await rita.decide(second.approval_id)
        assert await room.client.result(run.run_id, timeout_s=20) == [200]
    assert len(room.provider.requests) == 1
    assert b'"amount": 2' in room.provider.requests[0].body or b'"amount":2' in room.provider.requests[0].body
    assert (await room.log(run.run_id)).count("stale") == 1


async def test_what_a_step_asked_for_is_what_it_gets(room: Room) -> None:
    asked: list[int] = []

    @step
    async def release(ctx: Context) -> str:
        asked.append(1)
        return (await ctx.approval("go", "Release?", {"version": len(asked)})).approval_id

    async with room.worker(workflow("releasing", steps=[release])), room.person("rita") as rita:
        run = await room.client.launch("releasing")
        (found,) = await room.asked(run.run_id)
        await rita.decide(found.approval_id)
        final = await room.client.wait(run.run_id, settled=True, timeout_s=20)
    assert (final.outcome, final.failure.failure_class, final.failure.type) == ("failed", "policy", "APPROVAL_STALE")


async def test_taken_back_before_and_after_its_use(room: Room) -> None:
    flow = posting(slots=["one", "two"])
    async with room.worker(flow), room.person("rita") as rita, room.person("rolf") as rolf:
        run = await room.client.launch("posting")
        (one,) = await room.asked(run.run_id)
        await rita.decide(one.approval_id)
        _, two = await room.asked(run.run_id, 2)
        late = await rolf.client.approvals.withdraw(one.approval_id, "no")
        assert (late.outcome, late.approval.state, late.approval.HasField("consumed_at")) == (TOO_LATE, APPROVED, True)
        assert (await rolf.client.approvals.withdraw(two.approval_id, "not this")).outcome == TAKEN_BACK
        final = await room.client.wait(run.run_id, settled=True, timeout_s=20)
        assert (final.failure.failure_class, final.failure.type) == ("policy", "APPROVAL_WITHDRAWN")
        assert "not this" in final.failure.message
        again = await rolf.client.approvals.withdraw(two.approval_id, "not this")
        assert (again.outcome, again.approval.state) == (TAKEN_BACK, WITHDRAWN)
        with pytest.raises(RunwayError) as no:
            await rita.decide(two.approval_id)
        assert no.value.reason == "APPROVAL_CLOSED"
    assert [asked.path for asked in room.provider.requests] == [f"/one/{run.run_id}"]


async def test_an_approval_that_was_given_can_be_taken_back_until_it_is_used(room: Room) -> None:
    flow = posting()
    async with room.person("rita") as rita:
        async with room.worker(flow):
            run = await room.client.launch("posting")
            (asked,) = await room.asked(run.run_id)
            await room.waiting(run.run_id)
        assert (await rita.decide(asked.approval_id)).approval.effective  # and nobody works on it
        back = await rita.client.approvals.withdraw(asked.approval_id, "second thoughts")
        assert (back.outcome, back.approval.state) == (TAKEN_BACK, WITHDRAWN)
        async with room.worker(flow):
            final = await room.client.wait(run.run_id, settled=True, timeout_s=20)
        assert (final.failure.failure_class, final.failure.type) == ("policy", "APPROVAL_WITHDRAWN")
    assert room.provider.requests == []
    assert await room.gateway.fetchval("SELECT standing FROM approval_certificate") == 2


async def test_what_nobody_decides_in_time_fails_the_run(still: tuple[Room, ManualClock]) -> None:
    room, clock = still
    async with room.worker(posting(expires_in=timedelta(minutes=5))), room.person("rita") as rita:
        run = await room.client.launch("posting")
        (asked,) = await room.asked(run.run_id)
        assert asked.expires_at.ToMilliseconds() - asked.requested_at.ToMilliseconds() == 300_000
        clock.advance(299_000)
        assert (await room.client.approvals.get(asked.approval_id)).state == PENDING
        clock.advance(1_000)
        with pytest.raises(RunwayError) as late:  # whether or not it was noted yet
            await rita.decide(asked.approval_id)
        assert late.value.reason == "APPROVAL_CLOSED"
        await room.stands(asked.approval_id, EXPIRED)
        final = await room.client.wait(run.run_id, timeout_s=20)
    assert (final.outcome, final.failure.failure_class, final.failure.type) == ("failed", "policy", "APPROVAL_EXPIRED")
    assert room.provider.requests == []


async def test_deciding_and_expiring_have_one_winner(still: tuple[Room, ManualClock]) -> None:
    room, clock = still
    async with room.worker(posting(expires_in=timedelta(minutes=5), slots=["a"])), room.person("rita") as rita:
        runs = [await room.client.launch("posting") for _ in range(6)]
        asked = [(await room.asked(run.run_id))[0] for run in runs]
        clock.advance(299_999)

        async def decide(approval: pb.Approval) -> bool:
            try:
                await rita.decide(approval.approval_id)
            except RunwayError:
                return False
            return True

        deciding = [asyncio.create_task(decide(approval)) for approval in asked]
        await asyncio.sleep(0)
        clock.advance(1)
        won = await asyncio.gather(*deciding)
        for run, approval, yes in zip(runs, asked, won, strict=True):
            await room.stands(approval.approval_id, APPROVED if yes else EXPIRED)
            if not yes:
                assert (await room.client.wait(run.run_id, timeout_s=20)).failure.type == "APPROVAL_EXPIRED"


async def test_time_stands_still_for_a_paused_run_and_its_approval_outlives_the_pause(
    still: tuple[Room, ManualClock],
) -> None:
    room, clock = still
    async with room.worker(posting(expires_in=timedelta(minutes=5))), room.person("rita") as rita:
        run = await room.client.launch("posting")
        (asked,) = await room.asked(run.run_id)
        await room.waiting(run.run_id)
        paused = await room.client.pause(run.run_id, longest=timedelta(days=1))

        async def is_paused() -> bool:
            return (await room.client.get(run.run_id)).state == la.RUN_STATE_PAUSED

        await wait_until(is_paused, what="a run that is paused over a proposal")
        (other,) = await room.asked((await room.client.launch("posting")).run_id)
        clock.advance(1_800_000)
        await room.stands(other.approval_id, EXPIRED)  # of a run that goes on: so it was looked at
        with pytest.raises(RunwayError) as meanwhile:
            await rita.decide(asked.approval_id)
        assert meanwhile.value.reason == "RUN_PAUSED", (
            "it has not expired, and what is signed would name a time that has passed"
        )
        resumed = await room.client.resume(run.run_id)
        assert resumed.epoch > paused.run.epoch
        later = await room.client.approvals.get(asked.approval_id)
        assert later.state == PENDING
        assert later.expires_at.ToMilliseconds() == asked.expires_at.ToMilliseconds() + 1_800_000
        with pytest.raises(RunwayError) as old:
            await rita.client.approvals.decide(_with_content(asked, later), rita.key, "rita", approve=True)
        assert old.value.reason == "SIGNATURE_INVALID", "it was signed for another end"
        await rita.decide(asked.approval_id)
        assert await room.client.result(run.run_id, timeout_s=20) == [200]
    assert len(room.provider.requests) == 1


def _with_content(approval: pb.Approval, full: Any) -> pb.Approval:
    found = pb.Approval()
    found.CopyFrom(approval)
    found.content.CopyFrom(full.content)
    return found


async def test_what_was_approved_in_a_pause_is_used_after_it(room: Room) -> None:
    async with room.worker(posting()), room.person("rita") as rita:
        run = await room.client.launch("posting")
        (asked,) = await room.asked(run.run_id)
        await room.waiting(run.run_id)
        await room.client.pause(run.run_id)
        assert (await rita.decide(asked.approval_id)).approval.state == APPROVED
        assert room.provider.requests == []
        await room.client.resume(run.run_id)
        assert await room.client.result(run.run_id, timeout_s=20) == [200]
    assert len(room.provider.requests) == 1


async def test_keys_are_somebodys_and_end(room: Room) -> None:
    async with room.worker(posting()), room.person("rita") as rita, room.person("rolf") as rolf:
        with pytest.raises(RunwayError) as taken:
            await rolf.client.approvals.register(rita.key)
        assert taken.value.reason == "APPROVER_KEY_TAKEN"
        assert (await rita.client.approvals.register(rita.key)).approver == "rita"
        run = await room.client.launch("posting")
        (asked,) = await room.asked(run.run_id)
        approval = await rita.client.approvals.get(asked.approval_id)
        for key, name in ((ApproverKey.generate(), "rita"), (rolf.key, "rita"), (rita.key, "rolf")):
            with pytest.raises(RunwayError) as no:
                await rita.client.approvals.decide(approval, key, name, approve=True)
            assert no.value.reason == "SIGNATURE_INVALID"
        with pytest.raises(RunwayError) as theirs:
            await rolf.client.approvals.revoke(rita.key.key_id)
        assert theirs.value.reason == "NOT_FOUND"
        assert (await rita.client.approvals.revoke(rita.key.key_id)).HasField("revoked_at")
        with pytest.raises(RunwayError) as revoked:
            await rita.decide(asked.approval_id)
        assert revoked.value.reason == "SIGNATURE_INVALID"
        with pytest.raises(RunwayError) as back:
            await rita.client.approvals.register(rita.key)
        assert back.value.reason == "APPROVER_KEY_TAKEN"
        assert {key.approver for key in await room.client.approvals.keys()} == {"rita", "rolf"}


async def test_pages_are_stable_and_what_is_decided_stays(room: Room) -> None:
    async with room.worker(posting()), room.person("rita") as rita:
        runs = [await room.client.launch("posting") for _ in range(5)]
        asked = [(await room.asked(run.run_id))[0] for run in runs]
        await rita.decide(asked[0].approval_id, approve=False)
        pending = await room.client.approvals.find(states=[pb.APPROVAL_STATE_PENDING])
        assert [a.approval_id for a in pending] == sorted((a.approval_id for a in asked[1:]), reverse=True)
        seen, token = [], ""
        while True:
            request = pb.ListApprovalsRequest(page_size=2, page_token=token)
            page = await room.client.approvals._connection.call(room.client.approvals._stub.ListApprovals, request)
            seen += [approval.approval_id for approval in page.approvals]
            token = page.next_page_token
            if not token:
                break
        assert seen == sorted((a.approval_id for a in asked), reverse=True)
    for change in ("state = 2", "digest = '\\x00'", "need = 9"):
        with pytest.raises(asyncpg.IntegrityConstraintViolationError):
            await room.launch.execute(f"UPDATE approval SET {change} WHERE state = {REJECTED}")
    with pytest.raises(asyncpg.IntegrityConstraintViolationError):
        await room.launch.execute("UPDATE approval_decision SET approve = true")
