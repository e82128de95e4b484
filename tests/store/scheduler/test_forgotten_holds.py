"""Holds of steps go by themselves once nothing of their run is kept; holds of what lasts stay, however old."""

from uuid import UUID

import pytest

from libs.kernel.ids import shard_of
from libs.pg import Database
from services.scheduler.domain.holds import Hold, HoldKind, HoldMode
from services.scheduler.store.holds import HoldStore
from tests.store.scheduler.harness import Field, Leader

DAY_MS = 86_400_000


@pytest.mark.requirement("run.pause")
async def test_a_hold_of_a_step_is_dropped_with_what_was_kept_of_its_run(field_: Field, one: Leader) -> None:
    kept, gone = UUID(int=1 << 80 | 1), UUID(int=1 << 80 | 2)
    await one.enqueue(field_.ticket(kept))
    db = Database(field_.url, name="scheduler", size=1)
    await db.open()
    try:
        holds = HoldStore(db)
        for kind, name, at_ms in (
            (HoldKind.STEP, f"{kept}/s", DAY_MS),
            (HoldKind.STEP, f"{gone}/s", DAY_MS),
            (HoldKind.STEP, f"{gone}/young", 3 * DAY_MS),
            (HoldKind.QUEUE, "a", DAY_MS),
            (HoldKind.SHARD, str(shard_of(gone)), DAY_MS),
        ):
            await holds.place(Hold(0, kind, name, HoldMode.HOLD, "why", "ann", at_ms))
        await holds.forget(2 * DAY_MS, 0)
        left = {hold.name for hold in await holds.listed(0, True, 2**62, 100)}
        assert left == {f"{kept}/s", f"{gone}/young", "a", str(shard_of(gone))}
    finally:
        await db.close()
