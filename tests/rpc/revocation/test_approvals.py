"""A call that waits for people while its capability is taken: whatever they decide, it is not sent."""

import pytest

from tests.rpc.approvals.conftest import room
from tests.rpc.approvals.room import PENDING, Room, posting

__all__ = ["room"]


@pytest.mark.requirement("fx.approval")
@pytest.mark.requirement("child.bounded")
async def test_an_approval_allows_nothing_that_was_taken(room: Room) -> None:
    async with room.worker(posting()), room.person("paula") as paula:
        run = await room.client.launch("posting")
        (approval,) = await room.asked(run.run_id)
        assert approval.state == PENDING
        await room.waiting(run.run_id)
        await room.client.trees.revoke(run.run_id, ["tool:http.request"], "why")
        await paula.decide(approval.approval_id)
        done = await room.client.wait(run.run_id, settled=True, timeout_s=20)
    assert (done.outcome, done.failure.type) == ("failed", "CAPABILITY_DENIED")
    assert room.provider.requests == []
    assert (await room.effect(run.run_id, "post")).dispatches == 0
