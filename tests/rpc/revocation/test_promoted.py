"""A revocation of which launch's promoted database lost the commit: a point that holds it brings it back."""

from uuid import UUID

import pytest
from runway.internal.fence.v1 import fence_pb2

from libs.fence.grants import Revoked, revoked_of
from libs.testkit.waiting import wait_until
from tests.rpc.launch.test_promotion import POINTS, Installation, answered, before, holding, installation

__all__ = ["installation"]


@pytest.mark.requirement("child.bounded")
async def test_what_one_point_knows_to_be_taken_stays_taken(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = await before(installation)
    lost = Revoked("tool:git.push", 77, "key:olga")
    installation.hold()
    gate = fence_pb2.RunGate(run_id=UUID(run.run_id).bytes, epoch=run.epoch + 1, capabilities=[lost.text()])
    installation.peers["checkpoint"].answer = holding(gate)  # type: ignore[assignment]
    monkeypatch.setenv("RUNWAY_RESTORE_COUNTER", "1")
    async with installation.launch() as bench:
        found = await answered(bench, run)
        assert [(one.capability, one.by) for one in found.revoked] == [("tool:git.push", "key:olga")]
        for point in POINTS:
            await wait_until(
                lambda name=point: installation.raised(name, UUID(run.run_id).bytes), timeout_s=20, what=f"a raise at {point}"
            )
            last = installation.raised(point, UUID(run.run_id).bytes)[-1]
            assert revoked_of(last.capabilities) == [lost]
            assert "tool:git.push" not in last.capabilities

        async def confirmed() -> bool:
            return "run.revocation_enforced" in [event.kind for event in await bench.client.events(run.run_id)]

        await wait_until(confirmed, timeout_s=20, what="a confirmation of every point")
